// SPDX-License-Identifier: Apache-2.0
#include "ports/offload/headers.hpp"

#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include "ports/offload/checksum.hpp"

namespace inagg::ports {
namespace {

constexpr size_t kVlanBytes = 4;
constexpr uint16_t kServiceTag = 0x88A8;  // IEEE 802.1ad
constexpr size_t kIpv6Bytes = sizeof(ip6_hdr);
constexpr size_t kIpv6Addresses = offsetof(ip6_hdr, ip6_src);

// Extension headers that GSO frames may have, as in the kernel's ipv6_gso_pull_exthdrs(); type and length
// come first.
bool is_extension(uint8_t next) {
    return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS;
}

// Moves `at` from the IP header to the transport header. Returns the protocol, or nullopt if there is no
// transport header.
std::optional<uint8_t> skip_ipv4(const uint8_t* frame, size_t length, size_t& at) {
    if (length - at < sizeof(iphdr)) return std::nullopt;
    const uint8_t* header = frame + at;
    const size_t bytes = size_t{4} * (header[0] & 0x0F);
    if (header[0] >> 4 != 4 || bytes < sizeof(iphdr) || bytes > length - at) return std::nullopt;
    if (load16(header + offsetof(iphdr, frag_off)) & (IP_MF | IP_OFFMASK)) return std::nullopt;
    at += bytes;
    return header[offsetof(iphdr, protocol)];
}

std::optional<uint8_t> skip_ipv6(const uint8_t* frame, size_t length, size_t& at) {
    if (length - at < kIpv6Bytes || frame[at] >> 4 != 6) return std::nullopt;
    uint8_t next = frame[at + offsetof(ip6_hdr, ip6_nxt)];
    at += kIpv6Bytes;
    while (is_extension(next)) {
        if (length - at < sizeof(ip6_ext)) return std::nullopt;
        const size_t bytes = 8 * (size_t{frame[at + 1]} + 1);
        if (bytes > length - at) return std::nullopt;
        next = frame[at];
        at += bytes;
    }
    return next;
}

size_t transport_bytes(const uint8_t* transport, size_t room, uint8_t protocol) {
    if (protocol == IPPROTO_UDP) return sizeof(udphdr);
    return room < sizeof(tcphdr) ? sizeof(tcphdr) : size_t{4} * (transport[12] >> 4);
}

}  // namespace

size_t Headers::checksum() const {
    return transport + (protocol == IPPROTO_UDP ? offsetof(udphdr, check) : offsetof(tcphdr, check));
}

std::optional<Headers> find_headers(const uint8_t* frame, size_t length) {
    size_t at = offsetof(ether_header, ether_type);
    if (length < ETH_HLEN) return std::nullopt;
    uint16_t type = load16(frame + at);
    at = ETH_HLEN;
    while (type == ETHERTYPE_VLAN || type == kServiceTag) {
        if (length - at < kVlanBytes) return std::nullopt;
        type = load16(frame + at + 2);
        at += kVlanBytes;
    }
    if (type != ETHERTYPE_IP && type != ETHERTYPE_IPV6) return std::nullopt;
    Headers headers{type == ETHERTYPE_IPV6, 0, at, 0, 0};
    const auto protocol = headers.ipv6 ? skip_ipv6(frame, length, at) : skip_ipv4(frame, length, at);
    if (!protocol || (*protocol != IPPROTO_TCP && *protocol != IPPROTO_UDP)) return std::nullopt;
    headers.protocol = *protocol;
    headers.transport = at;
    const size_t least = *protocol == IPPROTO_UDP ? sizeof(udphdr) : sizeof(tcphdr);
    const size_t bytes = transport_bytes(frame + at, length - at, *protocol);
    if (bytes < least || bytes > length - at) return std::nullopt;
    headers.payload = at + bytes;
    return headers;
}

uint64_t pseudo_header_sum(const uint8_t* frame, const Headers& headers) {
    const uint8_t* network = frame + headers.network;
    const uint64_t addresses = headers.ipv6 ? ones_sum(network + kIpv6Addresses, 2 * sizeof(in6_addr))
                                            : ones_sum(network + offsetof(iphdr, saddr), 2 * sizeof(in_addr));
    return addresses + htons(headers.protocol);
}

void set_network_length(uint8_t* frame, const Headers& headers, size_t length) {
    uint8_t* network = frame + headers.network;
    if (headers.ipv6) {
        store16(network + offsetof(ip6_hdr, ip6_plen), length - headers.network - kIpv6Bytes);
        return;
    }
    store16(network + offsetof(iphdr, tot_len), length - headers.network);
    uint8_t* check = network + offsetof(iphdr, check);
    store_sum(check, 0);
    store_sum(check, checksum_of(ones_sum(network, size_t{4} * (network[0] & 0x0F))));
}

void advance_sequence(uint8_t* tcp, size_t bytes) {
    uint32_t sequence;
    std::memcpy(&sequence, tcp + offsetof(tcphdr, seq), sizeof sequence);
    sequence = htonl(ntohl(sequence) + static_cast<uint32_t>(bytes));
    std::memcpy(tcp + offsetof(tcphdr, seq), &sequence, sizeof sequence);
}

}  // namespace inagg::ports
