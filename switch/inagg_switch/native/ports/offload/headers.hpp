// SPDX-License-Identifier: Apache-2.0
//
// Finds the headers of a frame (Ethernet with VLAN tags, IPv4, IPv6, TCP, UDP) and sets the fields that
// segmentation changes.
#ifndef INAGG_SWITCH_PORTS_HEADERS_HPP
#define INAGG_SWITCH_PORTS_HEADERS_HPP

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace inagg::ports {

// Offsets in the frame. The frame has at least `payload` bytes.
struct Headers {
    bool ipv6;
    uint8_t protocol;  // TCP or UDP
    size_t network;
    size_t transport;
    size_t payload;

    size_t checksum() const;  // offset of the TCP or UDP checksum
};

// Where TCP has its flags in its header, and the flags (RFC 9293, RFC 3168).
constexpr size_t kTcpFlags = 13;
constexpr uint8_t kTcpFin = 0x01;
constexpr uint8_t kTcpPsh = 0x08;
constexpr uint8_t kTcpAck = 0x10;
constexpr uint8_t kTcpEce = 0x40;
constexpr uint8_t kTcpCwr = 0x80;
// Segmentation leaves these to the last segment and to the first.
constexpr uint8_t kTcpLastOnly = kTcpFin | kTcpPsh;
constexpr uint8_t kTcpFirstOnly = kTcpCwr;

// Returns nullopt for a frame that is not TCP or UDP over IP, is a fragment, or is shorter than its headers.
// It does not check the lengths of what follows the headers.
std::optional<Headers> find_headers(const uint8_t* frame, size_t length);

// Returns the pseudo header's sum without the length, which alone differs between segments (RFC 768, 9293,
// 8200 section 8.1).
uint64_t pseudo_header_sum(const uint8_t* frame, const Headers& headers);

// Sets the IP length, and the header checksum of IPv4, for a frame of `length` bytes.
void set_network_length(uint8_t* frame, const Headers& headers, size_t length);

// Adds to the sequence number of a TCP header.
void advance_sequence(uint8_t* tcp, size_t bytes);

inline uint16_t load16(const uint8_t* at) {
    uint16_t value;
    std::memcpy(&value, at, sizeof value);
    return ntohs(value);
}

inline void store16(uint8_t* at, size_t value) {
    const uint16_t wire = htons(static_cast<uint16_t>(value));
    std::memcpy(at, &wire, sizeof wire);
}

// Writes a checksum or folded sum, which already has the byte order of the wire.
inline void store_sum(uint8_t* at, uint16_t sum) { std::memcpy(at, &sum, sizeof sum); }

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_HEADERS_HPP
