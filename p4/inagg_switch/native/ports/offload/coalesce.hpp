// SPDX-License-Identifier: Apache-2.0
//
// Joins UDP datagrams to one large frame, if the kernel's segmentation (UDP_L4) of that frame gives exactly
// these datagrams. One bit may differ: a datagram without a checksum gets a correct one if the kernel cuts
// the frame.
#ifndef INAGG_SWITCH_PORTS_COALESCE_HPP
#define INAGG_SWITCH_PORTS_COALESCE_HPP

#include <array>
#include <cstddef>
#include <cstdint>

#include "ports/offload/headers.hpp"
#include "ports/offload/offload.hpp"

namespace inagg::ports {

// Consecutive datagrams that form one large frame. The first one's headers determine those of all.
class Row {
  public:
    // Starts a row with a packet. Others may join only if it is a UDP datagram without VLAN tag and IP
    // options, with correct lengths and checksums. In IPv4 a UDP checksum of 0 counts as correct.
    void start(const uint8_t* packet, size_t length);
    // Ends the row: no packet joins the last one.
    void stop() { headers_.payload = 0; }

    // Returns whether the packet is the row's next segment, and adds it if so.
    bool add(const uint8_t* packet, size_t length);

    size_t header_bytes() const { return headers_.payload; }  // 0: no packet can join

  private:
    // UDP_MAX_SEGMENTS of kernels before 6.9; later ones accept 128.
    static constexpr unsigned kMaxSegments = 64;
    static constexpr size_t kMaxBytes = 65535;
    static constexpr size_t kMaxHeaders = 14 + 40 + 8;

    bool is_exact(const uint8_t* packet, size_t length);
    bool is_next(const uint8_t* packet, size_t length) const;
    bool has_right_checksum(const uint8_t* packet, size_t length) const;
    void expect_next();

    Headers headers_{};
    bool has_checksum_ = false;
    unsigned segments_ = 0;
    size_t segment_bytes_ = 0;  // payload of every packet except the last
    size_t bytes_ = 0;          // length of the frame so far
    bool ended_ = false;        // a shorter packet was the last
    std::array<uint8_t, kMaxHeaders>
        expected_;  // headers of the next packet if it has full size, without UDP checksum
};

// Rewrites the first packet's headers to those of the joined frame of `length` bytes. It may be called again
// after more packets have joined.
Offload coalesce(uint8_t* frame, size_t length, size_t segment_bytes);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_COALESCE_HPP
