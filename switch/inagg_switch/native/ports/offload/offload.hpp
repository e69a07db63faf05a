// SPDX-License-Identifier: Apache-2.0
//
// A frame's offloads as a packet socket with PACKET_VNET_HDR describes them: struct virtio_net_hdr of
// linux/virtio_net.h (C++ cannot include that header), in host byte order.
#ifndef INAGG_SWITCH_PORTS_OFFLOAD_HPP
#define INAGG_SWITCH_PORTS_OFFLOAD_HPP

#include <cstdint>

namespace inagg::ports {

struct Offload {
    static constexpr uint8_t kNeedsChecksum =
        1;  // flags: sum from checksum_start on, store at checksum_offset

    // gso_type: how the frame is to be cut.
    static constexpr uint8_t kNone = 0;
    static constexpr uint8_t kTcpIpv4 = 1;
    static constexpr uint8_t kTcpIpv6 = 4;
    static constexpr uint8_t kUdp = 5;     // since Linux 6.2
    static constexpr uint8_t kEcn = 0x80;  // with a TCP type: only the first segment has CWR

    uint8_t flags;
    uint8_t gso_type;
    uint16_t header_bytes;   // a hint
    uint16_t segment_bytes;  // payload of a segment
    uint16_t checksum_start;
    uint16_t checksum_offset;  // from checksum_start
};
static_assert(sizeof(Offload) == 10);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_OFFLOAD_HPP
