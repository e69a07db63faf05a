// SPDX-License-Identifier: Apache-2.0
//
// Where the headers of a frame lie and the fields that segmentation changes: Ethernet with VLAN tags, IPv4,
// IPv6, TCP, UDP.
#ifndef INAGG_SWITCH_PORTS_HEADERS_HPP
#define INAGG_SWITCH_PORTS_HEADERS_HPP

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace inagg::ports {

// Offsets in the frame. Everything below `payload` is there.
struct Headers {
    bool ipv6;
    uint8_t protocol;  // TCP or UDP
    size_t network;
    size_t transport;
    size_t payload;

    size_t checksum() const;  // of TCP or UDP
};

// Nothing for a frame that is not TCP or UDP over IP, is a fragment, or is shorter than its headers claim.
// Lengths of what follows the headers are not looked at.
std::optional<Headers> find_headers(const uint8_t* frame, size_t length);

// The part of the pseudo header's sum that is the same for every segment: all but the length (RFC 768, 9293,
// 8200 section 8.1).
uint64_t pseudo_header_sum(const uint8_t* frame, const Headers& headers);

// Sets the IP length, and of IPv4 the header checksum, for a packet that ends at `length` bytes of frame.
void set_network_length(uint8_t* frame, const Headers& headers, size_t length);

inline uint16_t load16(const uint8_t* at) {
    uint16_t value;
    std::memcpy(&value, at, sizeof value);
    return ntohs(value);
}

inline void store16(uint8_t* at, size_t value) {
    const uint16_t wire = htons(static_cast<uint16_t>(value));
    std::memcpy(at, &wire, sizeof wire);
}

// A checksum or folded sum, which is in the order of the wire already.
inline void store_sum(uint8_t* at, uint16_t sum) { std::memcpy(at, &sum, sizeof sum); }

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_HEADERS_HPP
