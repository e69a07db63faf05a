// SPDX-License-Identifier: Apache-2.0
//
// Values of varbit<W>: as many bits as were extracted, most significant first, as they lie in a packet.
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

    // Reads `count` bits from bit `offset` (0 to 7) of p on.
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
    // Adds the bits to what is at bit `offset` of p, which must be zero.
    void store(std::uint8_t* p, unsigned offset) const {
        for (std::size_t i = 0; i < length(); ++i) {
            p[i] = static_cast<std::uint8_t>(p[i] | data[i] >> offset);
            if (offset != 0) p[i + 1] = static_cast<std::uint8_t>(p[i + 1] | data[i] << (8 - offset));
        }
    }
    // BMv2 compares the numbers that the bits spell: leading zeros, and with them the lengths, do not count.
    bool operator==(const Varbit& other) const {
        const Varbit& longer = length() >= other.length() ? *this : other;
        const Varbit& shorter = length() >= other.length() ? other : *this;
        const std::size_t more = longer.length() - shorter.length();
        for (std::size_t i = 0; i < more; ++i) {
            if (longer.data[i] != 0) return false;
        }
        return std::memcmp(longer.data + more, shorter.data, shorter.length()) == 0;
    }
    // setValid() makes the bits zero and leaves their number (Header::reset in BMv2's headers.cpp).
    void clear() { std::memset(data, 0, sizeof data); }
};

}  // namespace isw

#endif  // INAGG_SWITCH_VARBIT_HPP
