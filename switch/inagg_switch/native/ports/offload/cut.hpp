// SPDX-License-Identifier: Apache-2.0
//
// Segmentation: cuts a frame that the kernel delivers with PACKET_VNET_HDR into the packets that the kernel's
// own software segmentation gives (net/ipv4/udp_offload.c, tcp_offload.c, af_inet.c, net/ipv6/ip6_offload.c).
//
// Only headers are copied. After segment k has been processed, the headers of segment k + 1 overwrite the end
// of segment k's payload, directly in front of their own.
#ifndef INAGG_SWITCH_PORTS_CUT_HPP
#define INAGG_SWITCH_PORTS_CUT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ports/offload/headers.hpp"
#include "ports/offload/offload.hpp"
#include "runtime/program.h"

namespace inagg::ports {

class Cutter {
  public:
    enum class Result {
        kOk,
        kMalformed,  // the virtio header does not match the frame's headers
        kUnknown,    // a kind of segmentation that this class does not support
    };

    // Starts a frame. The caller keeps it until the last call of next(), which writes into it. If the result
    // is not kOk, the frame has no packets.
    Result start(const Offload& offload, uint8_t* frame, size_t length);

    // Returns the next packet, with all checksums but UDP's, which may be late(), or an empty span after the
    // last one. It overwrites the previous packet.
    std::span<uint8_t> next();

    // The UDP checksum of the packet that next() has returned, if it is not filled in; valid until the next
    // packet. Most programs do not look at it, and most packets are not passed on.
    const isw_late* late() const { return late_packet_ != nullptr ? &late_ : nullptr; }
    void fill();

  private:
    // Ethernet, two VLAN tags, IPv4 and TCP with all options, or IPv6 with a few extension headers.
    static constexpr size_t kMaxHeaders = 256;

    Result start_segments(const Offload& offload);
    void write_headers(uint8_t* packet, size_t payload_bytes);
    static void fill_late(void* self) { static_cast<Cutter*>(self)->fill(); }
    uint64_t write_udp(uint8_t* transport, size_t bytes) const;
    uint64_t write_tcp(uint8_t* transport, bool last) const;

    uint8_t* frame_ = nullptr;
    size_t length_ = 0;
    size_t segment_bytes_ = 0;  // payload of every segment except the last; 0: the frame is one packet
    size_t at_ = 0;             // offset in the frame: the bytes before it have been returned
    Headers headers_{};
    std::array<uint8_t, kMaxHeaders>
        template_{};               // the frame's headers; fields that differ between segments are 0
    uint16_t identification_ = 0;  // of the first segment
    uint64_t network_sum_ = 0;     // of the template's IPv4 header
    uint64_t pseudo_sum_ = 0;      // without the length
    uint64_t transport_sum_ = 0;   // of the template's TCP or UDP header
    isw_late late_{0, &Cutter::fill_late, this};
    uint8_t* late_packet_ = nullptr;  // null if its checksum is right
    size_t late_payload_bytes_ = 0;
    uint64_t late_sum_ = 0;  // without the payload
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CUT_HPP
