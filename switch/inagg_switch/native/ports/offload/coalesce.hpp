// SPDX-License-Identifier: Apache-2.0
//
// Joins UDP datagrams or TCP segments to one large frame, if the kernel's segmentation of that frame gives
// exactly these packets. One field may differ: a datagram without a checksum gets a correct one if the kernel
// cuts the frame.
#ifndef INAGG_SWITCH_PORTS_COALESCE_HPP
#define INAGG_SWITCH_PORTS_COALESCE_HPP

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ports/offload/headers.hpp"
#include "ports/offload/offload.hpp"

namespace inagg::ports {

// Consecutive packets that form one large frame. The first one's headers determine those of all, except for
// TCP's FIN and PSH, which only the last may have.
class Row {
  public:
    // Starts a row with a packet. Others may join only if it is UDP or TCP without VLAN tag and IP options,
    // with correct lengths and checksums. In IPv4 a UDP checksum of 0 counts as correct. In TCP no flag but
    // ACK, ECE and CWR may be set.
    void start(const uint8_t* packet, size_t length);
    // Ends the row: no packet joins the last one.
    void stop() { headers_.payload = 0; }

    // Returns whether the packet is the row's next segment, and adds it if so. Then also call merge_flags().
    bool add(const uint8_t* packet, size_t length);
    // Gives the frame, whose headers are at `frame`, the flags of the packet that was added last.
    void merge_flags(uint8_t* frame, const uint8_t* packet) const;

    size_t header_bytes() const { return headers_.payload; }  // 0: no packet can join

  private:
    // UDP_MAX_SEGMENTS of kernels before 6.9; later ones accept 128.
    static constexpr unsigned kMaxSegments = 64;
    static constexpr size_t kMaxBytes = 65535;
    static constexpr size_t kMaxHeaders = 14 + 40 + 60;

    bool is_exact(const uint8_t* packet, size_t length);
    bool is_tcp() const { return headers_.protocol == IPPROTO_TCP; }
    bool is_next(const uint8_t* packet, size_t length, bool last) const;
    bool has_headers(const uint8_t* packet, const uint8_t* headers) const;
    bool has_right_checksum(const uint8_t* packet, size_t length) const;
    void expect_next();

    Headers headers_{};
    bool has_checksum_ = false;
    unsigned segments_ = 0;
    size_t segment_bytes_ = 0;  // payload of every packet except the last
    size_t bytes_ = 0;          // length of the frame so far
    bool ended_ = false;        // the last packet was shorter, or had FIN or PSH
    std::array<uint8_t, kMaxHeaders>
        expected_{};  // headers of the next packet, apart from its checksum, if it is not the last
};

// Rewrites the first packet's headers to those of the joined frame of `length` bytes. It may be called again
// after more packets have joined.
Offload coalesce(uint8_t* frame, size_t length, size_t segment_bytes);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_COALESCE_HPP
