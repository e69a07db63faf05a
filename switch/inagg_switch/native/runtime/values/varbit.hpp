// SPDX-License-Identifier: Apache-2.0
//
// Values of varbit<W>: the extracted bits in packet order, most significant first.
#ifndef INAGG_SWITCH_VARBIT_HPP
#define INAGG_SWITCH_VARBIT_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace isw {

// extract() takes whole bytes only, so `bits` is a multiple of 8 and at most W.
template <unsigned W>
struct Varbit {
    std::uint32_t bits;
    std::uint8_t data[(W + 7) / 8];

    std::size_t length() const { return bits / 8; }

    // Reads `count` bits, beginning at bit `offset` (0 to 7) of p.
    void load(const std::uint8_t* p, unsigned offset, std::uint32_t count) {
        bits = count;
        if (offset == 0) {
            std::memcpy(data, p, length());
            return;
        }
        for (std::size_t i = 0; i < length(); ++i) {
            data[i] = static_cast<std::uint8_t>(p[i] << offset | p[i + 1] >> (8 - offset));
        }
    }
    // Writes the bits, beginning at bit `offset` of p. They must be zero before.
    void store(std::uint8_t* p, unsigned offset) const {
        for (std::size_t i = 0; i < length(); ++i) {
            p[i] = static_cast<std::uint8_t>(p[i] | data[i] >> offset);
            if (offset != 0) p[i + 1] = static_cast<std::uint8_t>(p[i + 1] | data[i] << (8 - offset));
        }
    }
    // As in BMv2: compares the bits as numbers, so that leading zeros and the length do not matter.
    bool operator==(const Varbit& other) const {
        const Varbit& longer = length() >= other.length() ? *this : other;
        const Varbit& shorter = length() >= other.length() ? other : *this;
        const std::size_t more = longer.length() - shorter.length();
        for (std::size_t i = 0; i < more; ++i) {
            if (longer.data[i] != 0) return false;
        }
        return std::memcmp(longer.data + more, shorter.data, shorter.length()) == 0;
    }
    // For setValid(): sets the bits to zero and keeps their number (Header::reset in BMv2's headers.cpp).
    void clear() { std::memset(data, 0, sizeof data); }
};

}  // namespace isw

#endif  // INAGG_SWITCH_VARBIT_HPP
