// SPDX-License-Identifier: Apache-2.0
//
// The checksum csum16 over fields, without writing them to memory first.
#ifndef INAGG_SWITCH_CHECKSUM_HPP
#define INAGG_SWITCH_CHECKSUM_HPP

#include <cstddef>
#include <cstdint>

#include "values/bits.hpp"

namespace isw {

// The sum of the 16-bit words that the fields would form in a packet. 2^16 is 1 modulo 2^16 - 1, so a field
// adds its value, shifted by the position of its last bit in a word.
struct FieldSum {
    std::uint64_t sum = 0;
    unsigned bits = 0;  // total width of the fields so far

    // Adds a field at bit Offset, known at compile time. The caller sets `bits`.
    template <unsigned Offset, unsigned W>
    void put(const value_t<W>& v) {
        add<W>(v, (16 - (Offset + W) % 16) % 16);
    }
    template <unsigned W>
    void append(const value_t<W>& v) {
        bits += W;
        add<W>(v, (16 - bits % 16) % 16);
    }

  private:
    template <unsigned W>
    void add(const value_t<W>& v, unsigned shift) {
        if constexpr (W <= 64) {
            add_limb(v, shift);
        } else {
            for (const std::uint64_t limb : v.limb) add_limb(limb, shift);
        }
    }
    void add_limb(std::uint64_t limb, unsigned shift) {
        sum += ((limb & 0xFFFFFFFF) << shift) + ((limb >> 32) << shift);
    }
};

// The checksum of RFC 1071 over the fields, padded to whole bytes, and the `n` bytes after them.
inline std::uint16_t csum16(const FieldSum& fields, const std::uint8_t* p = nullptr, std::size_t n = 0) {
    std::uint64_t bytes = 0;
    std::size_t i = 0;
    for (; i + 1 < n; i += 2) bytes += static_cast<std::uint64_t>(p[i]) << 8 | p[i + 1];
    if (i < n) bytes += static_cast<std::uint64_t>(p[i]) << 8;
    const bool odd = (fields.bits + 7) / 8 % 2 != 0;
    std::uint64_t sum = fields.sum + (odd ? bytes << 8 : bytes);
    while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
}

}  // namespace isw

#endif  // INAGG_SWITCH_CHECKSUM_HPP
