// SPDX-License-Identifier: Apache-2.0
//
// Bytes that a hash or checksum is computed over, and the algorithms of v1model's HashAlgorithm.
#ifndef INAGG_SWITCH_CHECKSUM_HPP
#define INAGG_SWITCH_CHECKSUM_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bits.hpp"

namespace isw {

// Up to N bits of fields, one after the other, as a packet would hold them; filled up with zero bits to whole
// bytes.
template <unsigned N>
struct FieldList {
    std::uint8_t bytes[N == 0 ? 1 : (N + 7) / 8] = {};
    std::size_t length = 0;  // in bytes
    unsigned bits = 0;

    // At a place that is known; the caller sets `length`.
    template <unsigned Offset, unsigned W>
    void put(const value_t<W>& v) {
        store_bits<Offset, W>(bytes, v);
    }
    template <unsigned W>
    void append(const value_t<W>& v) {
        if constexpr (W <= 64) {
            or_span(bytes, bits, W, v);
        } else {
            wide_store<W>(bytes, bits, v);
        }
        bits += W;
        length = (bits + 7) / 8;
    }
};

// RFC 1071, over the fields and then `more` bytes that follow them directly.
inline std::uint16_t csum16(const std::uint8_t* p, std::size_t n, const std::uint8_t* more = nullptr,
                            std::size_t more_n = 0) {
    std::uint64_t sum = 0;
    std::size_t i = 0;
    for (; i + 1 < n; i += 2) sum += static_cast<std::uint64_t>(p[i]) << 8 | p[i + 1];
    if (i < n) sum += static_cast<std::uint64_t>(p[i]) << 8 | (more_n > 0 ? more[0] : 0);
    for (std::size_t j = n % 2; j < more_n; j += 2) {
        sum += static_cast<std::uint64_t>(more[j]) << 8 | (j + 1 < more_n ? more[j + 1] : 0);
    }
    while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
}

}  // namespace isw

#endif  // INAGG_SWITCH_CHECKSUM_HPP
