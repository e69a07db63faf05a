// SPDX-License-Identifier: Apache-2.0
//
// The Internet checksum (RFC 1071). Sums are kept as the bytes lie in memory: one's complement addition does
// not care about the byte order (section 2 (B)), so nothing is swapped, and a folded sum is stored as it is.
#ifndef INAGG_SWITCH_PORTS_CHECKSUM_HPP
#define INAGG_SWITCH_PORTS_CHECKSUM_HPP

#include <cstddef>
#include <cstdint>

namespace inagg::ports {

// The bytes as 16-bit words, an odd last one followed by a zero; congruent to their sum modulo 2^16 - 1, and
// zero only if all of them are. Below 2^33 times length / 8 + 1: sums of a few packets can be added up.
uint64_t ones_sum(const uint8_t* data, size_t length);

// To 16 bits, with end-around carry. Complement it to get the checksum.
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
