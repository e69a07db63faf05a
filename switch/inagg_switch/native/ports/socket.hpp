// SPDX-License-Identifier: Apache-2.0
//
// An AF_PACKET socket on one network interface: receives and sends frames in bursts. Policy (what to drop,
// when to send) is the packet loop's. The kernel behaviour relied on is in packet(7),
// Documentation/networking/packet_mmap.rst (auxdata) and, for PACKET_VNET_HDR, include/linux/virtio_net.h.
#ifndef INAGG_SWITCH_PORTS_SOCKET_HPP
#define INAGG_SWITCH_PORTS_SOCKET_HPP

#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ports/offload/offload.hpp"
#include "ports/queue.hpp"

namespace inagg::ports {

// The state of a network interface.
struct Link {
    unsigned index = 0;  // the kernel's interface index; 0: no interface has that name
    bool up = false;
    size_t mtu = 0;  // bytes
};

// Reads the state from the kernel. Throws std::system_error if it cannot open a socket.
Link read_link(const std::string& interface);

// Whether this kernel's packet sockets can receive and send frames with offloads, UDP segmentation included.
// The answer holds for all ports: a frame that arrives at one port leaves by another.
bool kernel_has_offloads();

// A frame in a ReceiveBatch; valid until the batch's next prepare().
struct ReceivedFrame {
    uint8_t* data;
    size_t length;          // bytes at `data`, with the VLAN tag that the kernel strips put back
    size_t wire_length;     // the frame's original length; larger than `length` if the kernel truncated it
    bool partial_checksum;  // the sender left the transport checksum to hardware, and no hardware computed it
    Offload offload;  // the segmentation and checksum still to be done; all zero on a socket without offloads
};

// Buffers for a burst of frames. All ports share one batch, because the packet loop's thread finishes one
// port's burst before it receives the next.
class ReceiveBatch {
  public:
    static constexpr size_t kFrames = 64;

    // `offloads`: as given to PacketSocket::open() for the sockets that receive into this batch.
    explicit ReceiveBatch(bool offloads);

    // Returns kFrames empty messages for recvmmsg().
    mmsghdr* prepare();
    // Returns frame i of those that recvmmsg() stored. Call it once for each frame.
    ReceivedFrame frame(size_t i);

  private:
    static constexpr size_t kControlBytes = 64;  // room for a tpacket_auxdata with its cmsghdr
    struct alignas(cmsghdr) Control {
        std::array<uint8_t, kControlBytes> bytes;
    };

    const size_t prefix_bytes_;  // size of the virtio_net_hdr in front of each frame; 0 without offloads
    std::unique_ptr<uint8_t[]> bytes_;
    std::array<mmsghdr, kFrames> messages_{};
    std::array<iovec, kFrames> vectors_{};
    std::array<Control, kFrames> controls_{};
};

// Owns the socket. Only the packet loop's thread uses it; for open(), close() and take_overflow_count() see
// PacketLoop::sockets_mutex_.
class PacketSocket {
  public:
    PacketSocket() = default;
    ~PacketSocket() { close(); }
    PacketSocket(const PacketSocket&) = delete;
    PacketSocket& operator=(const PacketSocket&) = delete;

    // Opens the socket and puts the interface into promiscuous mode. It receives the frames that `filter`
    // accepts (steering.hpp). With `offloads`, a virtio_net_hdr (Offload) precedes each frame that is
    // received or sent. Buffer sizes are in bytes. Throws std::system_error and leaves the socket closed; the
    // code is ENODEV if no interface has that name.
    void open(const std::string& interface, std::span<const sock_filter> filter, size_t receive_buffer_bytes,
              size_t send_buffer_bytes, bool offloads);
    // Replaces the filter of an open socket. Throws std::system_error.
    void filter(std::span<const sock_filter> filter);
    void close();

    bool is_open() const { return fd_ >= 0; }
    int fd() const { return fd_; }
    unsigned interface_index() const { return index_; }

    // Receives a burst without waiting. Returns the number of frames (0: none is waiting) or -errno. -EINVAL:
    // the kernel lost one frame, because a virtio_net_hdr cannot express its offload.
    int receive(ReceiveBatch& batch);
    // Sends frames without waiting. Returns how many the kernel accepted, at least 1, or -errno of the first
    // frame.
    int send(const FramePieces* frames, size_t count);

    // Whether the kernel still has frames that were sent.
    bool has_unsent() const;

    // Returns how many frames the kernel dropped because the receive buffer was full, since the last call.
    uint64_t take_overflow_count();

  private:
    void configure(std::span<const sock_filter> first_filter, size_t receive_buffer_bytes,
                   size_t send_buffer_bytes, bool offloads);

    int fd_ = -1;
    unsigned index_ = 0;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_SOCKET_HPP
