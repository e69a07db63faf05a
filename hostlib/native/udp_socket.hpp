// SPDX-License-Identifier: Apache-2.0
//
// A non-blocking UDP/IPv4 socket, and batches of datagrams into and out of it. Failures to set one up are
// std::system_error; sending and receiving return the kernel's errno, for the caller to judge.
#ifndef INAGG_UDP_SOCKET_HPP
#define INAGG_UDP_SOCKET_HPP

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace inagg {

struct UdpAddress {
    std::string ip;  // dotted decimal
    std::uint16_t port = 0;
};

// Owns a descriptor.
class Descriptor {
  public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Descriptor& operator=(Descriptor&&) = delete;
    int fd() const { return fd_; }

  private:
    int fd_;
};

class UdpSocket {
  public:
    // Bound to `local`; port 0 picks one.
    static UdpSocket bound_to(const UdpAddress& local);
    // A second descriptor of a bound socket; the caller keeps `fd`.
    static UdpSocket duplicate_of(int fd);

    // Only datagrams from `peer` are received from now on. Never fragments; errors from the network are
    // reported.
    void connect(const UdpAddress& peer);
    // Asks for a receive buffer of at least so many bytes; returns what the kernel grants.
    std::size_t reserve_receive_buffer(std::size_t bytes);

    UdpAddress local_address() const;
    int fd() const { return descriptor_.fd(); }

    // Takes the errors off the socket that the network reported; how many.
    std::size_t take_errors();

  private:
    std::size_t receive_buffer() const;

    explicit UdpSocket(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

    Descriptor descriptor_;
};

inline constexpr std::size_t BATCH = 64;

struct BatchResult {
    std::size_t count;
    int error;  // errno, or 0; only when count is 0
};

BatchResult send_batch(const UdpSocket& socket, std::span<const std::span<const std::byte>> datagrams);

// Room for one batch of received datagrams of at most `bytes`; a longer one shows as bytes + 1.
class ReceiveBatch {
  public:
    explicit ReceiveBatch(std::size_t bytes);
    BatchResult receive(const UdpSocket& socket);
    std::span<const std::byte> datagram(std::size_t i) const;

  private:
    std::size_t stride_;
    std::vector<std::byte> memory_;
    std::array<iovec, BATCH> buffers_;
    std::array<mmsghdr, BATCH> messages_;
};

}  // namespace inagg

#endif
