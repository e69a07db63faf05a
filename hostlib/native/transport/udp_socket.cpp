// SPDX-License-Identifier: Apache-2.0
#include "transport/udp_socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace inagg {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

std::string text(const UdpAddress& address) { return address.ip + ":" + std::to_string(address.port); }

void set_option(int fd, int level, int option, int value, const char* what) {
    if (setsockopt(fd, level, option, &value, sizeof value) != 0) {
        throw_errno(what);
    }
}

// Whether a message of the error queue says that this host refuses to send a datagram of that size.
bool is_too_long(msghdr& message) {
    for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
         control = CMSG_NXTHDR(&message, control)) {
        if (control->cmsg_level == SOL_IP && control->cmsg_type == IP_RECVERR) {
            sock_extended_err error{};
            std::memcpy(&error, CMSG_DATA(control), sizeof error);
            return error.ee_origin == SO_EE_ORIGIN_LOCAL && error.ee_errno == EMSGSIZE;
        }
    }
    return false;
}

}  // namespace

sockaddr_in to_sockaddr(const UdpAddress& address) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(address.port);
    if (inet_pton(AF_INET, address.ip.c_str(), &out.sin_addr) != 1) {
        throw std::invalid_argument("not an IPv4 address: " + address.ip);
    }
    return out;
}

bool from_network(int error) {
    switch (error) {
        case ECONNREFUSED:
        case EHOSTUNREACH:
        case EHOSTDOWN:
        case ENETUNREACH:
        case ENETDOWN:
        case ENONET:
        case ENOPROTOOPT:
        case EOPNOTSUPP:
        case EPROTO:
        case EMSGSIZE:
            return true;
        default:
            return false;
    }
}

void Descriptor::close() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
    fd_ = -1;
}

UdpSocket UdpSocket::bound_to(const UdpAddress& local) {
    const sockaddr_in address = to_sockaddr(local);
    Descriptor descriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (descriptor.fd() < 0) {
        throw_errno("cannot open a UDP socket");
    }
    if (::bind(descriptor.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        throw_errno("cannot bind a UDP socket to " + text(local));
    }
    return UdpSocket(std::move(descriptor));
}

UdpSocket UdpSocket::duplicate_of(int fd) {
    int type = 0;
    socklen_t length = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) {
        throw_errno("descriptor " + std::to_string(fd) + " is not a socket");
    }
    sockaddr_storage address{};
    length = sizeof address;
    if (type != SOCK_DGRAM || getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
        address.ss_family != AF_INET) {
        throw std::invalid_argument("descriptor " + std::to_string(fd) + " is not a UDP/IPv4 socket");
    }
    Descriptor descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    const int flags = fcntl(descriptor.fd(), F_GETFL);
    if (descriptor.fd() < 0 || flags < 0 || fcntl(descriptor.fd(), F_SETFL, flags | O_NONBLOCK) != 0) {
        throw_errno("cannot take over descriptor " + std::to_string(fd));
    }
    return UdpSocket(std::move(descriptor));
}

void UdpSocket::prepare() {
    // The interface's MTU counts only: an MTU learned from ICMP may be forged.
    set_option(fd(), IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE, "cannot forbid fragmentation");
    // This option also makes send() return ENOBUFS when a queue of the kernel drops the datagram; without it,
    // that looks like success.
    set_option(fd(), IPPROTO_IP, IP_RECVERR, 1, "cannot ask for network errors");
    set_option(fd(), IPPROTO_IP, IP_TOS, IPTOS_ECN_ECT0, "cannot ask for congestion marks");
    set_option(fd(), IPPROTO_IP, IP_RECVTOS, 1, "cannot ask for congestion marks");
    // Kernels before 5.0 do not know it, and deliver each datagram as a message.
    const int one = 1;
    [[maybe_unused]] const int unsupported = setsockopt(fd(), SOL_UDP, UDP_GRO, &one, sizeof one);
}

void UdpSocket::disconnect() {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
        return;  // it is not connected
    }
    // Linux takes a port away that it has chosen itself.
    const sockaddr_in own = to_sockaddr(local_address());
    sockaddr_in none{};
    none.sin_family = AF_UNSPEC;
    if (::connect(fd(), reinterpret_cast<const sockaddr*>(&none), sizeof none) != 0) {
        throw_errno("cannot disconnect a UDP socket");
    }
    if (local_address().port != ntohs(own.sin_port) &&
        bind(fd(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) {
        throw_errno("cannot give a UDP socket its port back");
    }
}

void UdpSocket::connect(const UdpAddress& peer) {
    const sockaddr_in address = to_sockaddr(peer);
    prepare();
    if (::connect(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        throw_errno("cannot connect a UDP socket to the aggregator at " + text(peer));
    }
}

namespace {

// Where a header has its chunk (protocol.md, 2.1).
constexpr std::uint32_t CHUNK_OFFSET = 12;
constexpr std::uint32_t UDP_HEADER = 8;

// Loads the number of a chunk's part. `header`: where the inagg header begins.
std::vector<sock_filter> load_part(std::uint32_t header, unsigned parts) {
    return {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, header + CHUNK_OFFSET),
            BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, p4::RUN_BITS),
            BPF_STMT(BPF_ALU | BPF_AND | BPF_K, parts - 1)};
}

void attach(int fd, int option, std::vector<sock_filter>& steps) {
    const sock_fprog program{.len = static_cast<unsigned short>(steps.size()), .filter = steps.data()};
    if (setsockopt(fd, SOL_SOCKET, option, &program, sizeof program) != 0) {
        throw_errno("cannot divide the results among packet threads");
    }
}

}  // namespace

// The kernel shows such a program the UDP payload (Documentation/networking/filter.rst, reuseport).
void UdpSocket::steer_unicast(unsigned parts) {
    std::vector<sock_filter> steps = load_part(0, parts);
    steps.push_back(BPF_STMT(BPF_RET | BPF_A, 0));
    attach(fd(), SO_ATTACH_REUSEPORT_CBPF, steps);
}

// The kernel shows such a program the UDP header and what follows.
void UdpSocket::steer_multicast(unsigned part, unsigned parts) {
    std::vector<sock_filter> steps = load_part(UDP_HEADER, parts);
    steps.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, part, 0, 1));
    steps.push_back(BPF_STMT(BPF_RET | BPF_K, UINT32_MAX));
    steps.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
    attach(fd(), SO_ATTACH_FILTER, steps);
}

void UdpSocket::take_all() {
    int shared = 0;
    socklen_t length = sizeof shared;
    if (getsockopt(fd(), SOL_SOCKET, SO_REUSEPORT, &shared, &length) != 0) {
        throw_errno("cannot read whether others share the socket's address");
    }
    if (shared != 0) {
        steer_unicast(1);
    }
}

std::size_t UdpSocket::reserve_receive_buffer(std::size_t bytes) {
    if (const std::size_t present = receive_buffer(); present >= bytes) {
        return present;
    }
    // The kernel doubles the requested size.
    const int half = static_cast<int>(std::min<std::size_t>(bytes / 2 + 1, INT_MAX / 2));
    // More than net.core.rmem_max takes CAP_NET_ADMIN; without it, rmem_max is the most.
    if (setsockopt(fd(), SOL_SOCKET, SO_RCVBUFFORCE, &half, sizeof half) != 0) {
        set_option(fd(), SOL_SOCKET, SO_RCVBUF, half, "cannot set the size of the receive buffer");
    }
    return receive_buffer();
}

void UdpSocket::reserve_send_buffer(std::size_t bytes) {
    const int half = static_cast<int>(bytes / 2);
    if (setsockopt(fd(), SOL_SOCKET, SO_SNDBUFFORCE, &half, sizeof half) != 0) {
        set_option(fd(), SOL_SOCKET, SO_SNDBUF, half, "cannot set the size of the send buffer");
    }
}

std::size_t UdpSocket::receive_buffer() const {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    if (getsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &bytes, &length) != 0) {
        throw_errno("cannot read the size of the receive buffer");
    }
    return static_cast<std::size_t>(bytes);
}

UdpAddress UdpSocket::local_address() const {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    if (getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
        throw_errno("cannot read the socket's address");
    }
    std::array<char, INET_ADDRSTRLEN> ip{};
    inet_ntop(AF_INET, &address.sin_addr, ip.data(), ip.size());
    return {ip.data(), ntohs(address.sin_port)};
}

SocketErrors UdpSocket::take_errors() {
    SocketErrors errors;
    alignas(cmsghdr) std::array<std::byte, 128> control{};
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    while (recvmsg(fd(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0) {
        ++errors.count;
        errors.too_long |= is_too_long(message);
        message.msg_controllen = control.size();
    }
    int pending = 0;
    socklen_t length = sizeof pending;
    if (getsockopt(fd(), SOL_SOCKET, SO_ERROR, &pending, &length) == 0 && pending != 0 && errors.count == 0) {
        ++errors.count;
    }
    return errors;
}

Sent SendBatch::send(const UdpSocket& socket, std::span<const Outgoing> datagrams,
                     std::span<sockaddr_in> destinations) {
    std::size_t messages = 0;
    std::size_t taken = 0;
    std::size_t buffers = 0;
    const std::size_t offered = std::min(datagrams.size(), SENT_AT_ONCE);
    while (taken < offered) {
        const std::size_t segment = datagrams[taken].datagram.size();
        const unsigned destination = datagrams[taken].destination;
        const std::size_t room = segmentation_ ? datagrams_in_message(segment) : 1;
        msghdr& message = messages_[messages].msg_hdr;
        message = msghdr{};
        message.msg_iov = &buffers_[buffers];
        if (!destinations.empty()) {
            message.msg_name = &destinations[destination];
            message.msg_namelen = sizeof destinations[destination];
        }
        std::size_t end = taken;
        while (end < offered && end - taken < room && datagrams[end].datagram.size() == segment &&
               datagrams[end].destination == destination) {
            const std::span<const std::byte> datagram = datagrams[end].datagram;
            if (end > taken && datagram.data() == datagrams[end - 1].datagram.data() + segment) {
                buffers_[buffers - 1].iov_len += segment;
            } else {
                // sendmmsg only reads; iovec has no const form.
                buffers_[buffers++] = {const_cast<std::byte*>(datagram.data()), segment};
                ++message.msg_iovlen;
            }
            ++end;
        }
        counts_[messages] = end - taken;
        if (end - taken > 1) {
            message.msg_control = controls_[messages].bytes.data();
            message.msg_controllen = sizeof controls_[messages].bytes;
            cmsghdr* control = CMSG_FIRSTHDR(&message);
            control->cmsg_level = SOL_UDP;
            control->cmsg_type = UDP_SEGMENT;
            control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
            const auto bytes = static_cast<std::uint16_t>(segment);
            std::memcpy(CMSG_DATA(control), &bytes, sizeof bytes);
        }
        taken = end;
        ++messages;
    }
    const int sent = sendmmsg(socket.fd(), messages_.data(), static_cast<unsigned>(messages), MSG_DONTWAIT);
    if (sent < 0 && (errno == EIO || errno == EINVAL) && messages_[0].msg_hdr.msg_control != nullptr) {
        // EIO: the interface leaves checksums to us, and the kernel then does not segment.
        segmentation_ = false;
        return send(socket, datagrams, destinations);
    }
    if (sent < 0) {
        return {.datagrams = 0, .messages = 0, .error = errno};
    }
    const std::span whole = std::span(counts_).first(static_cast<std::size_t>(sent));
    return {.datagrams = std::accumulate(whole.begin(), whole.end(), std::size_t{0}),
            .messages = whole.size(),
            .error = 0};
}

// for_overwrite: pages that no message fills never become resident.
ReceiveBatch::ReceiveBatch(std::size_t more)
    : bytes_(std::make_unique_for_overwrite<std::byte[]>((MESSAGES + more) * MESSAGE_BYTES)),
      memories_(more) {
    for (std::size_t i = 0; i < MESSAGES; ++i) {
        messages_[i].msg_hdr.msg_iov = &buffers_[i];
        messages_[i].msg_hdr.msg_iovlen = 1;
        messages_[i].msg_hdr.msg_control = controls_[i].bytes.data();
        messages_[i].msg_hdr.msg_name = &sources_[i];
    }
}

// The first ones that are free, so that as few as possible pass through the processor's caches.
void ReceiveBatch::choose_memories() {
    std::size_t next = 0;
    for (std::size_t i = 0; i < MESSAGES; ++i) {
        while (next < memories_.size() && !memories_[next].is_free()) {
            ++next;
        }
        const bool found = next < memories_.size();
        chosen_[i] = found ? &memories_[next] : nullptr;
        const std::size_t place = found ? MESSAGES + next++ : i;
        buffers_[i] = {bytes_.get() + place * MESSAGE_BYTES, MESSAGE_BYTES};
    }
}

Received ReceiveBatch::receive(const UdpSocket& socket) {
    choose_memories();
    for (mmsghdr& message : messages_) {
        message.msg_hdr.msg_controllen = sizeof(Control);
        message.msg_hdr.msg_namelen = sizeof(sockaddr_in);
    }
    const int received = recvmmsg(socket.fd(), messages_.data(), MESSAGES, MSG_DONTWAIT, nullptr);
    return received < 0 ? Received{0, errno} : Received{static_cast<std::size_t>(received), 0};
}

ReceivedMessage ReceiveBatch::described(std::size_t message) const {
    const msghdr& header = messages_[message].msg_hdr;
    int bytes = 0;
    std::uint8_t tos = 0;
    for (const cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
         control = CMSG_NXTHDR(const_cast<msghdr*>(&header), const_cast<cmsghdr*>(control))) {
        if (control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_GRO) {
            std::memcpy(&bytes, CMSG_DATA(control), sizeof bytes);
        } else if (control->cmsg_level == SOL_IP && control->cmsg_type == IP_TOS) {
            std::memcpy(&tos, CMSG_DATA(control), sizeof tos);
        }
    }
    return {.bytes = {static_cast<const std::byte*>(buffers_[message].iov_base), messages_[message].msg_len},
            .datagram_bytes = bytes > 0 ? static_cast<std::size_t>(bytes) : MESSAGE_BYTES,
            .source = sources_[message],
            .congested = (tos & IPTOS_ECN_MASK) == IPTOS_ECN_CE,
            .memory = chosen_[message]};
}

}  // namespace inagg
