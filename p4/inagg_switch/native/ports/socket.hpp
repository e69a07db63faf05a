// SPDX-License-Identifier: Apache-2.0
//
// One AF_PACKET socket on one network interface: frames in and out in bursts, nothing decided.
// Kernel behaviour relied on: packet(7), Documentation/networking/packet_mmap.rst (auxdata), and of
// PACKET_VNET_HDR include/linux/virtio_net.h.
#ifndef INAGG_SWITCH_PORTS_SOCKET_HPP
#define INAGG_SWITCH_PORTS_SOCKET_HPP

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ports/offload/offload.hpp"
#include "ports/queue.hpp"

namespace inagg::ports {

// An interface as it is now. index 0: there is none of that name.
struct Link {
    unsigned index = 0;
    bool up = false;
    size_t mtu = 0;
};

Link read_link(const std::string& interface);

// Whether packet sockets of this kernel take and give frames with offloads, those of UDP included. A switch
// needs it on all its ports, as a frame that came in by one leaves by another.
bool kernel_has_offloads();

struct ReceivedFrame {
    uint8_t* data;
    size_t length;          // bytes at `data`, a stripped VLAN tag put back
    size_t wire_length;     // more than `length` if the frame was cut short
    bool partial_checksum;  // the sender left the transport checksum to hardware that is not there
    Offload offload;        // what is left to do; nothing where the socket has no offloads
};

// Room for a burst of frames, shared by all ports: they are received one port after the other. With
// `offloads`, for sockets that have them.
class ReceiveBatch {
  public:
    static constexpr size_t kFrames = 64;

    explicit ReceiveBatch(bool offloads);

    mmsghdr* prepare();
    // Frame i of what recvmmsg() stored.
    ReceivedFrame frame(size_t i);

  private:
    static constexpr size_t kControlBytes = 64;  // a tpacket_auxdata with its header
    struct alignas(cmsghdr) Control {
        std::array<uint8_t, kControlBytes> bytes;
    };

    const size_t prefix_bytes_;  // of a virtio_net_hdr in front of each frame, or 0
    std::unique_ptr<uint8_t[]> bytes_;
    std::array<mmsghdr, kFrames> messages_{};
    std::array<iovec, kFrames> vectors_{};
    std::array<Control, kFrames> controls_{};
};

class PacketSocket {
  public:
    PacketSocket() = default;
    ~PacketSocket() { close(); }
    PacketSocket(const PacketSocket&) = delete;
    PacketSocket& operator=(const PacketSocket&) = delete;

    // Throws std::system_error; the socket is then closed. ENODEV when there is no such interface. With
    // `offloads`, each frame sent has a virtio_net_hdr in front.
    void open(const std::string& interface, size_t receive_buffer_bytes, size_t send_buffer_bytes,
              bool offloads);
    void close();

    bool is_open() const { return fd_ >= 0; }
    int fd() const { return fd_; }
    unsigned interface_index() const { return index_; }

    // Number of frames (0: none waiting), or -errno. -EINVAL: one was lost whose offload a virtio_net_hdr
    // cannot express.
    int receive(ReceiveBatch& batch);
    // Number of frames the kernel took, at least 1, or -errno, which is about the first one.
    int send(const FramePieces* frames, size_t count);

    // Frames that found the receive buffer full since the last call.
    uint64_t take_overflow_count();

  private:
    void configure(size_t receive_buffer_bytes, size_t send_buffer_bytes, bool offloads);

    int fd_ = -1;
    unsigned index_ = 0;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_SOCKET_HPP
