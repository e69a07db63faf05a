// SPDX-License-Identifier: Apache-2.0
//
// The Internet checksum (RFC 1071). Sums have the byte order of the packet in memory: one's complement
// addition gives the same result in either byte order (section 2 (B)), so nothing is swapped.
#ifndef INAGG_SWITCH_PORTS_CHECKSUM_HPP
#define INAGG_SWITCH_PORTS_CHECKSUM_HPP

#include <cstddef>
#include <cstdint>

namespace inagg::ports {

// Adds the bytes as 16-bit words; an odd last byte is padded with a zero. The result is congruent to the sum
// modulo 2^16 - 1, and 0 only if all bytes are 0. It is less than 2^33 * (length / 8 + 1), so results of
// several packets can be added without overflow.
uint64_t ones_sum(const uint8_t* data, size_t length);

// Folds a sum to 16 bits, with end-around carry. The checksum is the complement.
inline uint16_t fold(uint64_t sum) {
    sum = (sum & 0xFFFFFFFF) + (sum >> 32);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return static_cast<uint16_t>(sum);
}

inline uint16_t checksum_of(uint64_t sum) { return static_cast<uint16_t>(~fold(sum)); }

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CHECKSUM_HPP
