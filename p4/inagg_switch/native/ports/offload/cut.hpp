// SPDX-License-Identifier: Apache-2.0
//
// Segmentation: a frame as the kernel hands it over with PACKET_VNET_HDR becomes the packets that its own
// software segmentation would have made of it (net/ipv4/udp_offload.c, tcp_offload.c, af_inet.c,
// net/ipv6/ip6_offload.c).
//
// Nothing is copied but headers. Segment k + 1 is made when segment k has been processed: its headers are
// written over the end of segment k's payload, right in front of its own.
#ifndef INAGG_SWITCH_PORTS_CUT_HPP
#define INAGG_SWITCH_PORTS_CUT_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ports/offload/headers.hpp"
#include "ports/offload/offload.hpp"

namespace inagg::ports {

class Cutter {
  public:
    enum class Result {
        kOk,
        kMalformed,  // the virtio header and the frame's own headers do not belong together
        kUnknown,    // a kind of segmentation that is not done here
    };

    // Takes a frame, which stays the caller's; it is changed and must outlive the last call of next(). Not
    // kOk: the frame may not be used.
    Result start(const Offload& offload, uint8_t* frame, size_t length);

    // The next packet, whole and with all checksums; empty when there is none. The one before it is gone
    // then.
    std::span<uint8_t> next();

  private:
    // Ethernet, two VLAN tags, IPv4 and TCP with all options, or IPv6 with a few extension headers.
    static constexpr size_t kMaxHeaders = 256;

    Result start_segments(const Offload& offload);
    void write_headers(uint8_t* packet, size_t payload_bytes);
    uint64_t write_udp(uint8_t* transport, size_t bytes) const;
    uint64_t write_tcp(uint8_t* transport, bool last) const;

    uint8_t* frame_ = nullptr;
    size_t length_ = 0;
    size_t segment_bytes_ = 0;  // payload of every segment but the last; 0: the frame is one packet already
    size_t at_ = 0;             // of the frame's bytes, those before this have been handed out
    Headers headers_{};
    std::array<uint8_t, kMaxHeaders>
        template_;                 // the frame's headers; zero what is not the same in all segments
    uint16_t identification_ = 0;  // of the first segment
    uint64_t network_sum_ = 0;     // of the template's IPv4 header
    uint64_t pseudo_sum_ = 0;      // without the length
    uint64_t transport_sum_ = 0;   // of the template's TCP or UDP header
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CUT_HPP
