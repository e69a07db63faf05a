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

// In TCP only the IP header has a length.
void set_lengths(uint8_t* frame, const Headers& headers, size_t length) {
    set_network_length(frame, headers, length);
    if (headers.protocol == IPPROTO_UDP) {
        store16(frame + headers.transport + offsetof(udphdr, len), length - headers.transport);
    }
}

// The flags that the first segment of several may have.
constexpr uint8_t kFirstMay = kTcpAck | kTcpEce | kTcpCwr;

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
    if (is_tcp()) expected_[headers_.transport + kTcpFlags] &= static_cast<uint8_t>(~kTcpFirstOnly);
    expect_next();
}

bool Row::is_exact(const uint8_t* packet, size_t length) {
    const auto headers = find_headers(packet, length);
    if (!headers || headers->network != ETH_HLEN) return false;
    headers_ = *headers;
    const size_t ip_bytes = headers_.ipv6 ? sizeof(ip6_hdr) : sizeof(iphdr);
    if (headers_.transport != ETH_HLEN + ip_bytes || headers_.payload == length) return false;
    const uint8_t* network = packet + ETH_HLEN;
    const size_t bytes = length - ETH_HLEN;
    if (!(headers_.ipv6 ? is_ipv6_exact(network, bytes) : is_ipv4_exact(network, bytes))) return false;
    const uint8_t* transport = packet + headers_.transport;
    if (is_tcp()) {
        has_checksum_ = true;
        return (transport[kTcpFlags] & ~kFirstMay) == 0 && has_right_checksum(packet, length);
    }
    if (load16(transport + offsetof(udphdr, len)) != length - headers_.transport) return false;
    has_checksum_ = load16(transport + offsetof(udphdr, check)) != 0;
    return has_checksum_ ? has_right_checksum(packet, length) : !headers_.ipv6;
}

bool Row::add(const uint8_t* packet, size_t length) {
    if (headers_.payload == 0 || ended_ || segments_ == kMaxSegments) return false;
    if (length <= headers_.payload || length - headers_.payload > segment_bytes_) return false;
    const size_t payload_bytes = length - headers_.payload;
    const bool last = payload_bytes < segment_bytes_ ||
                      (is_tcp() && (packet[headers_.transport + kTcpFlags] & kTcpLastOnly) != 0);
    if (bytes_ + payload_bytes > kMaxBytes || !is_next(packet, length, last)) return false;
    ++segments_;
    bytes_ += payload_bytes;
    ended_ = last;
    expect_next();
    return true;
}

bool Row::is_next(const uint8_t* packet, size_t length, bool last) const {
    if (!last) {
        if (!has_headers(packet, expected_.data())) return false;
    } else {
        auto headers = expected_;
        set_lengths(headers.data(), headers_, length);
        if (is_tcp()) {
            const size_t flags = headers_.transport + kTcpFlags;
            headers[flags] |= packet[flags] & kTcpLastOnly;
        }
        if (!has_headers(packet, headers.data())) return false;
    }
    if (!has_checksum_) return load16(packet + headers_.checksum()) == 0;
    return has_right_checksum(packet, length);
}

// Whether the packet has these headers, apart from the checksum.
bool Row::has_headers(const uint8_t* packet, const uint8_t* headers) const {
    const size_t checksum = headers_.checksum();
    const size_t behind = checksum + sizeof(uint16_t);
    return std::memcmp(packet, headers, checksum) == 0 &&
           std::memcmp(packet + behind, headers + behind, headers_.payload - behind) == 0;
}

void Row::merge_flags(uint8_t* frame, const uint8_t* packet) const {
    const size_t flags = headers_.transport + kTcpFlags;
    if (is_tcp()) frame[flags] |= packet[flags];
}

// 0 and 0xFFFF are the same number in a sum. The kernel writes 0xFFFF for UDP, where 0 means "none" (RFC
// 768), and 0 for TCP.
bool Row::has_right_checksum(const uint8_t* packet, size_t length) const {
    if (load16(packet + headers_.checksum()) == (is_tcp() ? 0xFFFF : 0)) return false;
    const size_t bytes = length - headers_.transport;
    const uint64_t pseudo = pseudo_header_sum(packet, headers_) + htons(static_cast<uint16_t>(bytes));
    return checksum_of(pseudo + ones_sum(packet + headers_.transport, bytes)) == 0;
}

void Row::expect_next() {
    if (is_tcp()) advance_sequence(expected_.data() + headers_.transport, segment_bytes_);
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
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): find_headers() found them when the row began.
    const Headers headers = *find_headers(frame, length);
    set_lengths(frame, headers, length);
    const auto bytes = static_cast<uint16_t>(length - headers.transport);
    store_sum(frame + headers.checksum(), fold(pseudo_header_sum(frame, headers) + htons(bytes)));
    Offload offload{};
    offload.flags = Offload::kNeedsChecksum;
    offload.gso_type = Offload::kUdp;
    if (headers.protocol == IPPROTO_TCP) {
        offload.gso_type = headers.ipv6 ? Offload::kTcpIpv6 : Offload::kTcpIpv4;
        if (frame[headers.transport + kTcpFlags] & kTcpCwr) offload.gso_type |= Offload::kEcn;
    }
    offload.header_bytes = static_cast<uint16_t>(headers.payload);
    offload.segment_bytes = static_cast<uint16_t>(segment_bytes);
    offload.checksum_start = static_cast<uint16_t>(headers.transport);
    offload.checksum_offset = static_cast<uint16_t>(headers.checksum() - headers.transport);
    return offload;
}

}  // namespace inagg::ports
