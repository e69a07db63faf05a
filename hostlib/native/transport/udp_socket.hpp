// SPDX-License-Identifier: Apache-2.0
//
// A non-blocking UDP/IPv4 socket, and batches of datagrams into and out of it. Setting one up throws
// std::system_error; sending and receiving return the kernel's errno, for the caller to judge.
#ifndef INAGG_UDP_SOCKET_HPP
#define INAGG_UDP_SOCKET_HPP

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "wire/message_memory.hpp"
#include "wire/wire.hpp"

namespace inagg {

struct UdpAddress {
    std::string ip;  // dotted decimal
    std::uint16_t port = 0;
};

// Throws std::invalid_argument.
sockaddr_in to_sockaddr(const UdpAddress& address);

inline bool same(const sockaddr_in& a, const sockaddr_in& b) {
    return a.sin_addr.s_addr == b.sin_addr.s_addr && a.sin_port == b.sin_port;
}

// Owns a descriptor.
class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    int fd() const { return fd_; }  // -1: closed
    void close();

  private:
    int fd_;
};

// Whether a missing route or an ICMP error causes this errno (icmp_err_convert in the kernel's
// net/ipv4/icmp.c). Any host can forge ICMP errors, so they end nothing.
bool from_network(int error);

struct SocketErrors {
    std::size_t count = 0;
    bool too_long = false;  // one of them: this host refuses to send a datagram of that size
};

class UdpSocket {
  public:
    // Bound to `local`; port 0 picks one.
    static UdpSocket bound_to(const UdpAddress& local);
    // A second descriptor of a bound socket; the caller keeps `fd`.
    static UdpSocket duplicate_of(int fd);

    // From now on the kernel delivers datagrams several at once where it can (UDP_GRO). It never fragments,
    // and reports errors from the network. What leaves may be marked by switches with queues (ECN), and what
    // comes tells whether it was.
    void prepare();
    // The same, and it delivers datagrams from `peer` only.
    void connect(const UdpAddress& peer);
    // From now on it delivers datagrams from anybody.
    void disconnect();
    // This socket, of several that share its address, gets the datagrams of chunks whose runs, counted from
    // 0, are `part` modulo `parts`, a power of two. The sockets were bound in the order of their parts. A
    // unicast datagram goes to one of several sockets with SO_REUSEPORT, a multicast one to all.
    void steer_unicast(unsigned parts);
    void steer_multicast(unsigned part, unsigned parts);
    // This socket, the first that was bound of those that share its address, gets all unicast datagrams.
    void take_all();
    // Asks for a receive buffer of at least `bytes`; returns the bytes that the kernel grants.
    std::size_t reserve_receive_buffer(std::size_t bytes);
    // Asks for a send buffer of `bytes`; the kernel may grant less.
    void reserve_send_buffer(std::size_t bytes);

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

// Datagrams of four words that fit one message of MAX_DATAGRAM bytes. The kernel cuts a message into at most
// UDP_MAX_SEGMENTS datagrams: 64, and more since Linux 6.9.
inline constexpr std::size_t BATCH = 62;

// The most datagrams that a SendBatch takes at a time: a window of several servers' messages.
inline constexpr std::size_t SENT_AT_ONCE = 4 * BATCH;

// The most datagrams of this size that go as one message.
constexpr std::uint32_t datagrams_in_message(std::size_t bytes) {
    return static_cast<std::uint32_t>(std::min(BATCH, MAX_DATAGRAM / bytes));
}

// Bytes that the kernel charges for a received packet beyond its own: sk_buff, shared info, and rounding of
// the data area to a power of two.
inline constexpr std::size_t PACKET_OVERHEAD = 1280;

struct Sent {
    std::size_t datagrams;
    std::size_t messages;
    int error;  // errno, or 0; only when there are none
};

struct Received {
    std::size_t messages;
    int error;  // as Sent's
};

// Sends at most SENT_AT_ONCE datagrams at a time. Datagrams of one size and destination that follow one
// another go as one message (UDP_SEGMENT). The kernel or the network card cuts it as late as possible:
// between network namespaces, never.
class SendBatch {
  public:
    // `destinations`: of the datagrams; none if the socket is connected.
    Sent send(const UdpSocket& socket, std::span<const Outgoing> datagrams,
              std::span<sockaddr_in> destinations = {});
    bool segmentation() const { return segmentation_; }

  private:
    struct alignas(cmsghdr) Control {
        std::array<std::byte, CMSG_SPACE(sizeof(std::uint16_t))> bytes;
    };

    bool segmentation_ = true;                        // false once the kernel or the interface has refused it
    std::array<std::size_t, SENT_AT_ONCE> counts_{};  // datagrams of each message
    std::array<iovec, SENT_AT_ONCE> buffers_{};
    std::array<Control, SENT_AT_ONCE> controls_{};
    std::array<mmsghdr, SENT_AT_ONCE> messages_{};
};

// Datagrams of one size, of which the last may be shorter.
struct ReceivedMessage {
    std::span<const std::byte> bytes;
    std::size_t datagram_bytes;
    const sockaddr_in& source;
    bool congested;         // met a queue on the way: Congestion Experienced (RFC 3168)
    MessageMemory* memory;  // of `bytes`, if it may be held on to beyond the next receive()
};

// Receives a batch of messages. A message is one datagram, or several of one size (the last may be shorter)
// that the kernel has joined or never cut (UDP_GRO).
class ReceiveBatch {
  public:
    // `more`: memories beside those that each batch fills. It fills those first that nobody holds on to.
    explicit ReceiveBatch(std::size_t more = 0);
    Received receive(const UdpSocket& socket);
    // Calls take(ReceivedMessage) for each of the first `messages` messages.
    template <typename Take>
    void for_each(std::size_t messages, Take take) const {
        for (std::size_t i = 0; i < messages; ++i) {
            take(described(i));
        }
    }

    static constexpr std::size_t MESSAGES = 4;

  private:
    static constexpr std::size_t MESSAGE_BYTES = 65536;
    struct alignas(cmsghdr) Control {
        std::array<std::byte, CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(std::uint8_t))> bytes;
    };

    void choose_memories();
    ReceivedMessage described(std::size_t message) const;

    std::unique_ptr<std::byte[]> bytes_;   // for MESSAGES messages, and for each of memories_
    std::vector<MessageMemory> memories_;  // that may be held on to
    std::array<MessageMemory*, MESSAGES> chosen_{};
    std::array<iovec, MESSAGES> buffers_{};
    std::array<Control, MESSAGES> controls_{};
    std::array<sockaddr_in, MESSAGES> sources_{};
    std::array<mmsghdr, MESSAGES> messages_{};
};

}  // namespace inagg

#endif
