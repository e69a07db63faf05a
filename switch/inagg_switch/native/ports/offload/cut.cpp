// SPDX-License-Identifier: Apache-2.0
#include "ports/offload/cut.hpp"

#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ports/offload/checksum.hpp"

namespace inagg::ports {
namespace {

constexpr uint16_t kZeroChecksum =
    0xFFFF;  // stands for a checksum of 0, because 0 means "no checksum" (RFC 768)

bool fits(uint8_t gso_type, const Headers& headers) {
    switch (gso_type & ~Offload::kEcn) {
        case Offload::kTcpIpv4:
            return headers.protocol == IPPROTO_TCP && !headers.ipv6;
        case Offload::kTcpIpv6:
            return headers.protocol == IPPROTO_TCP && headers.ipv6;
        default:
            return headers.protocol == IPPROTO_UDP;
    }
}

bool is_known(uint8_t gso_type) {
    return gso_type == Offload::kUdp || (gso_type & ~Offload::kEcn) == Offload::kTcpIpv4 ||
           (gso_type & ~Offload::kEcn) == Offload::kTcpIpv6;
}

// SCTP has a CRC32c at this offset, which a sender may also leave to hardware. No other protocol has its
// checksum there.
constexpr uint16_t kSctpChecksumOffset = 8;

// As in the kernel's skb_checksum_help(): 0 becomes 0xFFFF, for every protocol.
bool fill_checksum(const Offload& offload, uint8_t* frame, size_t length) {
    const size_t start = offload.checksum_start;
    const size_t field = start + offload.checksum_offset;
    if (start < ETH_HLEN || start >= length || field + sizeof(uint16_t) > length) return false;
    const uint16_t checksum = checksum_of(ones_sum(frame + start, length - start));
    store_sum(frame + field, checksum == 0 ? kZeroChecksum : checksum);
    return true;
}

}  // namespace

Cutter::Result Cutter::start(const Offload& offload, uint8_t* frame, size_t length) {
    frame_ = frame;
    length_ = length;
    segment_bytes_ = 0;
    at_ = 0;
    late_packet_ = nullptr;
    Result result = Result::kOk;
    if (offload.gso_type != Offload::kNone) {
        result = start_segments(offload);
    } else if ((offload.flags & Offload::kNeedsChecksum) != 0 &&
               offload.checksum_offset == kSctpChecksumOffset) {
        result = Result::kUnknown;
    } else if ((offload.flags & Offload::kNeedsChecksum) != 0 && !fill_checksum(offload, frame, length)) {
        result = Result::kMalformed;
    }
    if (result != Result::kOk) length_ = 0;
    return result;
}

Cutter::Result Cutter::start_segments(const Offload& offload) {
    if (!is_known(offload.gso_type)) return Result::kUnknown;
    const auto headers = find_headers(frame_, length_);
    if (!headers || !fits(offload.gso_type, *headers) || offload.segment_bytes == 0)
        return Result::kMalformed;
    if (headers->payload > kMaxHeaders || headers->payload == length_) return Result::kMalformed;
    headers_ = *headers;
    if (offload.flags & Offload::kNeedsChecksum) {
        if (offload.checksum_start != headers_.transport) return Result::kMalformed;
        if (offload.checksum_start + offload.checksum_offset != headers_.checksum())
            return Result::kMalformed;
        // The field already has the pseudo header's sum. It is also correct behind a routing header, where
        // the final destination is not the one in the IP header.
        uint16_t partial;
        std::memcpy(&partial, frame_ + headers_.checksum(), sizeof partial);
        const auto bytes = htons(static_cast<uint16_t>(length_ - headers_.transport));
        pseudo_sum_ = uint64_t{partial} + static_cast<uint16_t>(~bytes);
    } else {
        pseudo_sum_ = pseudo_header_sum(frame_, headers_);
    }
    segment_bytes_ = offload.segment_bytes;
    at_ = headers_.payload;
    std::memcpy(template_.data(), frame_, headers_.payload);
    uint8_t* transport = template_.data() + headers_.transport;
    store_sum(template_.data() + headers_.checksum(), 0);
    if (headers_.protocol == IPPROTO_UDP) store16(transport + offsetof(udphdr, len), 0);
    transport_sum_ = ones_sum(transport, headers_.payload - headers_.transport);
    if (!headers_.ipv6) {
        uint8_t* network = template_.data() + headers_.network;
        identification_ = load16(network + offsetof(iphdr, id));
        for (const size_t field : {offsetof(iphdr, tot_len), offsetof(iphdr, id), offsetof(iphdr, check)}) {
            store16(network + field, 0);
        }
        network_sum_ = ones_sum(network, headers_.transport - headers_.network);
    }
    return Result::kOk;
}

std::span<uint8_t> Cutter::next() {
    late_packet_ = nullptr;
    if (at_ == length_) return {};
    if (segment_bytes_ == 0) {
        at_ = length_;
        return {frame_, length_};
    }
    const size_t payload_bytes = std::min(segment_bytes_, length_ - at_);
    uint8_t* packet = frame_ + at_ - headers_.payload;
    write_headers(packet, payload_bytes);
    at_ += payload_bytes;
    return {packet, headers_.payload + payload_bytes};
}

// The sum is computed from values in registers: reading back bytes that were just written stalls the
// processor.
void Cutter::write_headers(uint8_t* packet, size_t payload_bytes) {
    const size_t transport_bytes = headers_.payload - headers_.transport + payload_bytes;
    const size_t network_bytes = headers_.transport - headers_.network + transport_bytes;
    std::memcpy(packet, template_.data(), headers_.payload);
    uint8_t* network = packet + headers_.network;
    if (headers_.ipv6) {
        store16(network + offsetof(ip6_hdr, ip6_plen), network_bytes - sizeof(ip6_hdr));
    } else {
        const auto id = static_cast<uint16_t>(identification_ + (at_ - headers_.payload) / segment_bytes_);
        store16(network + offsetof(iphdr, tot_len), network_bytes);
        store16(network + offsetof(iphdr, id), id);
        const uint64_t sum = network_sum_ + htons(static_cast<uint16_t>(network_bytes)) + htons(id);
        store_sum(network + offsetof(iphdr, check), checksum_of(sum));
    }
    uint8_t* transport = packet + headers_.transport;
    const bool udp = headers_.protocol == IPPROTO_UDP;
    uint64_t sum = pseudo_sum_ + htons(static_cast<uint16_t>(transport_bytes));
    sum += udp ? write_udp(transport, transport_bytes) : write_tcp(transport, at_ + payload_bytes == length_);
    if (udp) {
        late_packet_ = packet;
        late_payload_bytes_ = payload_bytes;
        late_sum_ = sum;
        late_.offset = headers_.checksum();
    } else {
        const uint64_t payload = ones_sum(packet + headers_.payload, payload_bytes);
        store_sum(packet + headers_.checksum(), checksum_of(sum + payload));
    }
}

void Cutter::fill() {
    if (late_packet_ == nullptr) return;
    uint8_t* const packet = std::exchange(late_packet_, nullptr);
    const uint64_t payload = ones_sum(packet + headers_.payload, late_payload_bytes_);
    const uint16_t checksum = checksum_of(late_sum_ + payload);
    store_sum(packet + headers_.checksum(), checksum == 0 ? kZeroChecksum : checksum);
}

// Returns the sum of the header with a checksum of 0, as write_tcp() does.
uint64_t Cutter::write_udp(uint8_t* transport, size_t bytes) const {
    store16(transport + offsetof(udphdr, len), bytes);
    return transport_sum_ + htons(static_cast<uint16_t>(bytes));
}

uint64_t Cutter::write_tcp(uint8_t* transport, bool last) const {
    const size_t before = at_ - headers_.payload;
    advance_sequence(transport, before);
    if (!last) transport[kTcpFlags] &= static_cast<uint8_t>(~kTcpLastOnly);
    if (before > 0) transport[kTcpFlags] &= static_cast<uint8_t>(~kTcpFirstOnly);
    return ones_sum(transport, headers_.payload - headers_.transport);
}

}  // namespace inagg::ports
