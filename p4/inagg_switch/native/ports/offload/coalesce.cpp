// SPDX-License-Identifier: Apache-2.0
#include "ports/offload/coalesce.hpp"

#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>

#include "ports/offload/checksum.hpp"

namespace inagg::ports {
namespace {

// 0xFFFF as a checksum is right only if all summed bytes are 0. Otherwise the kernel writes 0 instead.
bool is_ipv4_exact(const uint8_t* network, size_t bytes) {
    return load16(network + offsetof(iphdr, tot_len)) == bytes &&
           load16(network + offsetof(iphdr, check)) != 0xFFFF &&
           checksum_of(ones_sum(network, sizeof(iphdr))) == 0;
}

bool is_ipv6_exact(const uint8_t* network, size_t bytes) {
    return load16(network + offsetof(ip6_hdr, ip6_plen)) == bytes - sizeof(ip6_hdr);
}

void set_lengths(uint8_t* frame, const Headers& headers, size_t length) {
    set_network_length(frame, headers, length);
    store16(frame + headers.transport + offsetof(udphdr, len), length - headers.transport);
}

}  // namespace

void Row::start(const uint8_t* packet, size_t length) {
    if (!is_exact(packet, length)) {
        stop();
        return;
    }
    segments_ = 1;
    segment_bytes_ = length - headers_.payload;
    bytes_ = length;
    ended_ = false;
    std::memcpy(expected_.data(), packet, headers_.payload);
    expect_next();
}

bool Row::is_exact(const uint8_t* packet, size_t length) {
    const auto headers = find_headers(packet, length);
    if (!headers || headers->protocol != IPPROTO_UDP || headers->network != ETH_HLEN) return false;
    headers_ = *headers;
    const size_t ip_bytes = headers_.ipv6 ? sizeof(ip6_hdr) : sizeof(iphdr);
    if (headers_.transport != ETH_HLEN + ip_bytes || headers_.payload == length) return false;
    const uint8_t* network = packet + ETH_HLEN;
    const size_t bytes = length - ETH_HLEN;
    if (!(headers_.ipv6 ? is_ipv6_exact(network, bytes) : is_ipv4_exact(network, bytes))) return false;
    const uint8_t* udp = packet + headers_.transport;
    if (load16(udp + offsetof(udphdr, len)) != length - headers_.transport) return false;
    has_checksum_ = load16(udp + offsetof(udphdr, check)) != 0;
    return has_checksum_ ? has_right_checksum(packet, length) : !headers_.ipv6;
}

bool Row::add(const uint8_t* packet, size_t length) {
    if (headers_.payload == 0 || ended_ || segments_ == kMaxSegments) return false;
    if (length <= headers_.payload || length - headers_.payload > segment_bytes_) return false;
    const size_t payload_bytes = length - headers_.payload;
    if (bytes_ + payload_bytes > kMaxBytes || !is_next(packet, length)) return false;
    ++segments_;
    bytes_ += payload_bytes;
    ended_ = payload_bytes < segment_bytes_;
    expect_next();
    return true;
}

bool Row::is_next(const uint8_t* packet, size_t length) const {
    const size_t before_checksum = headers_.checksum();
    if (length == headers_.payload + segment_bytes_) {
        if (std::memcmp(packet, expected_.data(), before_checksum) != 0) return false;
    } else {
        auto shorter = expected_;
        set_lengths(shorter.data(), headers_, length);
        if (std::memcmp(packet, shorter.data(), before_checksum) != 0) return false;
    }
    if (!has_checksum_) return load16(packet + before_checksum) == 0;
    return load16(packet + before_checksum) != 0 && has_right_checksum(packet, length);
}

bool Row::has_right_checksum(const uint8_t* packet, size_t length) const {
    const size_t bytes = length - headers_.transport;
    const uint64_t pseudo = pseudo_header_sum(packet, headers_) + htons(static_cast<uint16_t>(bytes));
    return checksum_of(pseudo + ones_sum(packet + headers_.transport, bytes)) == 0;
}

void Row::expect_next() {
    if (headers_.ipv6) return;
    uint8_t* network = expected_.data() + headers_.network;
    uint8_t* id = network + offsetof(iphdr, id);
    uint8_t* check = network + offsetof(iphdr, check);
    const uint16_t now = load16(id);
    const auto next = static_cast<uint16_t>(now + 1);
    // RFC 1624, equation 3.
    uint16_t checksum;
    std::memcpy(&checksum, check, sizeof checksum);
    const uint64_t sum =
        uint64_t{static_cast<uint16_t>(~checksum)} + static_cast<uint16_t>(~htons(now)) + htons(next);
    store16(id, next);
    store_sum(check, checksum_of(sum));
}

Offload coalesce(uint8_t* frame, size_t length, size_t segment_bytes) {
    const Headers headers = *find_headers(frame, length);
    set_lengths(frame, headers, length);
    const auto bytes = static_cast<uint16_t>(length - headers.transport);
    store_sum(frame + headers.checksum(), fold(pseudo_header_sum(frame, headers) + htons(bytes)));
    Offload offload{};
    offload.flags = Offload::kNeedsChecksum;
    offload.gso_type = Offload::kUdp;
    offload.header_bytes = static_cast<uint16_t>(headers.payload);
    offload.segment_bytes = static_cast<uint16_t>(segment_bytes);
    offload.checksum_start = static_cast<uint16_t>(headers.transport);
    offload.checksum_offset = offsetof(udphdr, check);
    return offload;
}

}  // namespace inagg::ports
