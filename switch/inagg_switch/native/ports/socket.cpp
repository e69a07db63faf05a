// SPDX-License-Identifier: Apache-2.0
#include "ports/socket.hpp"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "runtime/program.h"

namespace inagg::ports {
namespace {

constexpr size_t kMacBytes = size_t{2} * ETH_ALEN;
constexpr size_t kVlanBytes = 4;
// Bytes in front of each received frame: for its virtio_net_hdr, and then to move the MAC addresses forward
// when a VLAN tag is put back.
constexpr size_t kHeadroom = 16;
static_assert(kHeadroom >= sizeof(Offload) && kHeadroom >= kVlanBytes);
// Distance between frames of a burst. Not a power of two, so that the frames start in different cache sets.
constexpr size_t kStride = kHeadroom + ISW_MAX_FRAME + 64;
constexpr size_t kSendBatch = 128;

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

// Owns a file descriptor.
class ScopedFd {
  public:
    explicit ScopedFd(int fd) : fd_(fd) {}
    ~ScopedFd() {
        if (fd_ >= 0) ::close(fd_);
    }
    ScopedFd(const ScopedFd&) = delete;
    ScopedFd& operator=(const ScopedFd&) = delete;
    int get() const { return fd_; }

  private:
    int fd_;
};

void set_option(int fd, int level, int name, const char* label, const void* value, socklen_t length) {
    if (setsockopt(fd, level, name, value, length) < 0) fail(errno, label);
}

// Sets a socket buffer's size. The FORCE option may exceed net.core.[rw]mem_max but needs CAP_NET_ADMIN;
// without it the kernel's limit applies.
void set_buffer(int fd, int force_name, int name, size_t bytes) {
    const int value = static_cast<int>(bytes);
    if (setsockopt(fd, SOL_SOCKET, force_name, &value, sizeof value) < 0) {
        setsockopt(fd, SOL_SOCKET, name, &value, sizeof value);
    }
}

// The kernel strips the outer VLAN tag from a received frame; this restores it from the auxiliary data.
void put_vlan_tag_back(ReceivedFrame& frame, const tpacket_auxdata& aux) {
    frame.data -= kVlanBytes;
    std::memmove(frame.data, frame.data + kVlanBytes, kMacBytes);
    const uint16_t type =
        (aux.tp_status & TP_STATUS_VLAN_TPID_VALID) ? aux.tp_vlan_tpid : uint16_t{ETHERTYPE_VLAN};
    const uint16_t tag[2] = {htons(type), htons(aux.tp_vlan_tci)};
    std::memcpy(frame.data + kMacBytes, tag, sizeof tag);
    frame.length += kVlanBytes;
    frame.wire_length += kVlanBytes;
    frame.offload.checksum_start = static_cast<uint16_t>(frame.offload.checksum_start + kVlanBytes);
}

}  // namespace

Link read_link(const std::string& interface) {
    Link link;
    const ScopedFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) fail(errno, "socket");
    ifreq request{};
    if (interface.empty() || interface.size() >= sizeof request.ifr_name) return link;
    std::memcpy(request.ifr_name, interface.c_str(), interface.size() + 1);
    if (ioctl(fd.get(), SIOCGIFFLAGS, &request) < 0) return link;
    link.up = (request.ifr_flags & IFF_UP) != 0;
    if (ioctl(fd.get(), SIOCGIFMTU, &request) < 0) return link;
    link.mtu = static_cast<size_t>(request.ifr_mtu);
    if (ioctl(fd.get(), SIOCGIFINDEX, &request) < 0) return link;
    link.index = static_cast<unsigned>(request.ifr_ifindex);
    return link;
}

bool kernel_has_offloads() {
    // Packet sockets have VIRTIO_NET_HDR_GSO_UDP_L4 from Linux 6.2 on. Older kernels lose a large UDP frame
    // when it is read. The kernel's version decides, because a probe would have to send a frame.
    utsname kernel{};
    std::pair<int, int> version{0, 0};
    if (uname(&kernel) < 0) return false;
    // NOLINTNEXTLINE(bugprone-unchecked-string-to-number-conversion): a kernel's version does not overflow.
    if (std::sscanf(kernel.release, "%d.%d", &version.first, &version.second) != 2) return false;
    return version >= std::pair{6, 2};
}

ReceiveBatch::ReceiveBatch(bool offloads)
    : prefix_bytes_(offloads ? sizeof(Offload) : 0),
      bytes_(std::make_unique_for_overwrite<uint8_t[]>(kFrames * kStride)) {
    for (size_t i = 0; i < kFrames; ++i) {
        vectors_[i] = {bytes_.get() + i * kStride + kHeadroom - prefix_bytes_, prefix_bytes_ + ISW_MAX_FRAME};
        messages_[i].msg_hdr.msg_iov = &vectors_[i];
        messages_[i].msg_hdr.msg_iovlen = 1;
        messages_[i].msg_hdr.msg_control = controls_[i].bytes.data();
    }
}

mmsghdr* ReceiveBatch::prepare() {
    for (auto& message : messages_) message.msg_hdr.msg_controllen = kControlBytes;
    return messages_.data();
}

ReceivedFrame ReceiveBatch::frame(size_t i) {
    mmsghdr& message = messages_[i];
    const auto* prefix = static_cast<uint8_t*>(vectors_[i].iov_base);
    const size_t length = message.msg_len - prefix_bytes_;
    ReceivedFrame frame{bytes_.get() + i * kStride + kHeadroom, length, length, false, {}};
    std::memcpy(&frame.offload, prefix, prefix_bytes_);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message.msg_hdr); c != nullptr; c = CMSG_NXTHDR(&message.msg_hdr, c)) {
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
        tpacket_auxdata aux{};
        std::memcpy(&aux, CMSG_DATA(c), sizeof aux);
        frame.wire_length = aux.tp_len;
        frame.partial_checksum = (aux.tp_status & TP_STATUS_CSUMNOTREADY) != 0;
        if ((aux.tp_status & TP_STATUS_VLAN_VALID) && frame.length >= kMacBytes)
            put_vlan_tag_back(frame, aux);
    }
    return frame;
}

void PacketSocket::open(const std::string& interface, std::span<const sock_filter> filter,
                        size_t receive_buffer_bytes, size_t send_buffer_bytes, bool offloads) {
    close();
    index_ = if_nametoindex(interface.c_str());
    if (index_ == 0) fail(ENODEV, "no such interface");
    // With protocol 0 the socket receives nothing until bind() sets the protocol and the interface. Otherwise
    // it would receive frames of other interfaces until then.
    fd_ = ::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd_ < 0) fail(errno, "AF_PACKET socket");
    try {
        configure(filter, receive_buffer_bytes, send_buffer_bytes, offloads);
    } catch (...) {
        close();
        throw;
    }
}

void PacketSocket::configure(std::span<const sock_filter> first_filter, size_t receive_buffer_bytes,
                             size_t send_buffer_bytes, bool offloads) {
    const int one = 1;
    filter(first_filter);
    if (offloads) set_option(fd_, SOL_PACKET, PACKET_VNET_HDR, "PACKET_VNET_HDR", &one, sizeof one);
    set_option(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING", &one, sizeof one);
    set_option(fd_, SOL_PACKET, PACKET_AUXDATA, "PACKET_AUXDATA", &one, sizeof one);
    set_buffer(fd_, SO_RCVBUFFORCE, SO_RCVBUF, receive_buffer_bytes);
    set_buffer(fd_, SO_SNDBUFFORCE, SO_SNDBUF, send_buffer_bytes);

    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(index_);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
        // ENETDOWN is no failure: the socket is bound, and the first receive reports that the interface is
        // down.
        if (errno != ENETDOWN) fail(errno, "bind");
    }
    // A switch receives every frame, whatever its destination address.
    packet_mreq membership{};
    membership.mr_ifindex = static_cast<int>(index_);
    membership.mr_type = PACKET_MR_PROMISC;
    set_option(fd_, SOL_PACKET, PACKET_ADD_MEMBERSHIP, "promiscuous mode", &membership, sizeof membership);
}

void PacketSocket::filter(std::span<const sock_filter> filter) {
    const sock_fprog code{static_cast<unsigned short>(filter.size()),
                          const_cast<sock_filter*>(filter.data())};
    set_option(fd_, SOL_SOCKET, SO_ATTACH_FILTER, "SO_ATTACH_FILTER", &code, sizeof code);
}

void PacketSocket::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
    index_ = 0;
}

int PacketSocket::receive(ReceiveBatch& batch) {
    const int count = recvmmsg(fd_, batch.prepare(), ReceiveBatch::kFrames, MSG_DONTWAIT, nullptr);
    if (count >= 0) return count;
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

int PacketSocket::send(const FramePieces* frames, size_t count) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): the loop fills what is sent.
    std::array<mmsghdr, kSendBatch> messages;
    count = std::min(count, messages.size());
    for (size_t i = 0; i < count; ++i) {
        messages[i].msg_hdr = {};
        messages[i].msg_hdr.msg_iov = const_cast<iovec*>(frames[i].data());
        messages[i].msg_hdr.msg_iovlen = frames[i][1].iov_len > 0 ? 2 : 1;
    }
    const int sent = sendmmsg(fd_, messages.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
    return sent >= 0 ? sent : -errno;
}

bool PacketSocket::has_unsent() const {
    int bytes = 0;
    return fd_ >= 0 && ioctl(fd_, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

uint64_t PacketSocket::take_overflow_count() {
    tpacket_stats counts{};
    socklen_t length = sizeof counts;
    if (fd_ < 0 || getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &counts, &length) < 0) return 0;
    return counts.tp_drops;
}

}  // namespace inagg::ports
