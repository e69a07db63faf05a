// SPDX-License-Identifier: Apache-2.0
//
// The way back from segments to one frame: UDP datagrams that the kernel's segmentation (UDP_L4) would make
// of one large frame, bit for bit, may leave as that frame. Only a datagram without a checksum may get a
// right one, where the kernel does cut the frame again.
#ifndef INAGG_SWITCH_PORTS_COALESCE_HPP
#define INAGG_SWITCH_PORTS_COALESCE_HPP

#include <array>
#include <cstddef>
#include <cstdint>

#include "ports/offload/headers.hpp"
#include "ports/offload/offload.hpp"

namespace inagg::ports {

// Datagrams in a row, of which the headers of the first stand for all.
class Row {
  public:
    // Begins with a datagram. Not with one that has a VLAN tag or IP options, or whose lengths or checksums
    // are wrong: it stays alone, as does whatever else is not one. A UDP checksum of zero counts as right in
    // IPv4.
    void start(const uint8_t* packet, size_t length);
    // The next packet stays alone, whatever it is.
    void stop() { headers_.payload = 0; }

    // Takes the packet in if it is the row's next segment.
    bool add(const uint8_t* packet, size_t length);

    size_t header_bytes() const { return headers_.payload; }  // 0: the packet stays alone

  private:
    // UDP_MAX_SEGMENTS of kernels before 6.9; later ones take 128.
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
    size_t segment_bytes_ = 0;  // payload of every packet but the last
    size_t bytes_ = 0;          // of the whole frame so far
    bool ended_ = false;        // by a shorter packet
    std::array<uint8_t, kMaxHeaders>
        expected_;  // headers of a next packet of full size; without UDP checksum
};

// Gives the first packet of a row the headers of the whole frame, `length` bytes long. May be called again
// when it has grown.
Offload coalesce(uint8_t* frame, size_t length, size_t segment_bytes);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_COALESCE_HPP
