// SPDX-License-Identifier: Apache-2.0
//
// A non-blocking UDP/IPv4 socket, and batches of datagrams into and out of it. Failures to set one up are
// std::system_error; sending and receiving return the kernel's errno, for the caller to judge.
#ifndef INAGG_UDP_SOCKET_HPP
#define INAGG_UDP_SOCKET_HPP

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "wire/wire.hpp"

namespace inagg {

struct UdpAddress {
    std::string ip;  // dotted decimal
    std::uint16_t port = 0;
};

// Owns a descriptor.
class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Descriptor& operator=(Descriptor&&) = delete;
    int fd() const { return fd_; }  // -1 once it is closed
    void close();

  private:
    int fd_;
};

// too_long: one is this host's own refusal to send a datagram of that size. All others the network has
// reported.
struct SocketErrors {
    std::size_t count = 0;
    bool too_long = false;
};

class UdpSocket {
  public:
    // Bound to `local`; port 0 picks one.
    static UdpSocket bound_to(const UdpAddress& local);
    // A second descriptor of a bound socket; the caller keeps `fd`.
    static UdpSocket duplicate_of(int fd);

    // Only datagrams from `peer` are received from now on, several at once where the kernel can (UDP_GRO).
    // Never fragments; errors from the network are reported.
    void connect(const UdpAddress& peer);
    // Asks for a receive buffer of at least so many bytes; returns what the kernel grants.
    std::size_t reserve_receive_buffer(std::size_t bytes);

    UdpAddress local_address() const;
    int fd() const { return descriptor_.fd(); }
    void close() { descriptor_.close(); }

    // Takes the errors off the socket.
    SocketErrors take_errors();

  private:
    std::size_t receive_buffer() const;

    explicit UdpSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

    Descriptor descriptor_;
};

// As many datagrams of four words as the kernel takes in one message, which holds MAX_DATAGRAM bytes. Fewer
// than the segments it cuts one into (UDP_MAX_SEGMENTS: 64, and more since 6.9).
inline constexpr std::size_t BATCH = 62;

struct BatchResult {
    std::size_t count;
    int error;  // errno, or 0; only when count is 0
};

// Datagrams on their way into the kernel, at most BATCH at a time. Those of one size that lie one behind the
// other in memory go as one message, which the kernel, or the network card, cuts (UDP_SEGMENT) as late as it
// can: often that is never.
class SendBatch {
  public:
    BatchResult send(const UdpSocket& socket, std::span<const std::span<const std::byte>> datagrams);
    bool segmentation() const { return segmentation_; }

  private:
    struct alignas(cmsghdr) Control {
        std::array<std::byte, CMSG_SPACE(sizeof(std::uint16_t))> bytes;
    };

    bool segmentation_ = true;               // until the kernel or the interface turns out not to know it
    std::array<std::size_t, BATCH> counts_;  // datagrams of each message
    std::array<iovec, BATCH> buffers_;
    std::array<Control, BATCH> controls_;
    std::array<mmsghdr, BATCH> messages_;
};

// Room for one batch of received messages, each a datagram or several of one size (the last may be shorter)
// that the kernel has not cut or has put together (UDP_GRO).
class ReceiveBatch {
  public:
    ReceiveBatch();
    // Messages received.
    BatchResult receive(const UdpSocket& socket);
    // Calls take(datagram) for each datagram of the first `messages` messages.
    template <typename Take>
    void for_each(std::size_t messages, Take take) const {
        for (std::size_t i = 0; i < messages; ++i) {
            std::span<const std::byte> rest{static_cast<const std::byte*>(buffers_[i].iov_base),
                                            messages_[i].msg_len};
            const std::size_t segment = segment_bytes(i);
            do {
                take(rest.first(std::min(segment, rest.size())));
                rest = rest.subspan(std::min(segment, rest.size()));
            } while (!rest.empty());
        }
    }

    static constexpr std::size_t MESSAGES = 4;

  private:
    static constexpr std::size_t MESSAGE_BYTES = 65536;
    struct alignas(cmsghdr) Control {
        std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes;
    };

    std::size_t segment_bytes(std::size_t message) const;

    std::unique_ptr<std::byte[]> memory_;
    std::array<iovec, MESSAGES> buffers_;
    std::array<Control, MESSAGES> controls_;
    std::array<mmsghdr, MESSAGES> messages_;
};

}  // namespace inagg

#endif
