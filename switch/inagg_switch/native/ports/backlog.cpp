// SPDX-License-Identifier: Apache-2.0
#include "ports/backlog.hpp"

#include <linux/gen_stats.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

namespace inagg::ports {
namespace {

constexpr size_t kAnswerBytes = 8192;

struct Request {
    nlmsghdr header;
    tcmsg which;
};

// The first attribute of this type in `length` bytes; null if there is none.
const rtattr* find(const rtattr* attribute, int length, unsigned type) {
    for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length)) {
        if ((attribute->rta_type & NLA_TYPE_MASK) == type) return attribute;
    }
    return nullptr;
}

bool is_text(const rtattr* attribute, std::string_view text) {
    const auto* bytes = static_cast<const char*>(RTA_DATA(attribute));
    return std::string_view(bytes, strnlen(bytes, RTA_PAYLOAD(attribute))) == text;
}

Backlog parse(const nlmsghdr& answer) {
    if (answer.nlmsg_type != RTM_NEWQDISC) return {};
    const auto* which = static_cast<const tcmsg*>(NLMSG_DATA(&answer));
    const auto* all = reinterpret_cast<const rtattr*>(which + 1);
    const auto length = static_cast<int>(NLMSG_PAYLOAD(&answer, sizeof *which));
    const auto* kind = find(all, length, TCA_KIND);
    const auto* statistics = find(all, length, TCA_STATS2);
    if (kind == nullptr || statistics == nullptr || is_text(kind, "noqueue")) return {};
    const auto* queue = find(static_cast<const rtattr*>(RTA_DATA(statistics)),
                             static_cast<int>(RTA_PAYLOAD(statistics)), TCA_STATS_QUEUE);
    gnet_stats_queue found{};
    if (queue == nullptr || RTA_PAYLOAD(queue) < sizeof found) return {};
    std::memcpy(&found, RTA_DATA(queue), sizeof found);
    return {.queued = true, .frames = found.qlen, .bytes = found.backlog};
}

}  // namespace

BacklogReader::BacklogReader()
    : fd_(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "netlink socket");
}

BacklogReader::~BacklogReader() { close(fd_); }

Backlog BacklogReader::read(unsigned interface_index) {
    Request request{};
    request.header.nlmsg_len = sizeof request;
    request.header.nlmsg_type = RTM_GETQDISC;
    // Without NLM_F_ECHO the kernel only notifies those that watch disciplines.
    request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ECHO;
    request.header.nlmsg_seq = ++sequence_;
    request.which.tcm_ifindex = static_cast<int>(interface_index);
    request.which.tcm_parent = TC_H_ROOT;
    if (send(fd_, &request, sizeof request, 0) < 0) return {};
    // The answer is there when send() returns.
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): recv() fills what is read.
    alignas(nlmsghdr) std::array<char, kAnswerBytes> bytes;
    for (;;) {
        const ssize_t length = recv(fd_, bytes.data(), bytes.size(), 0);
        if (length < 0) return {};
        const auto* answer = reinterpret_cast<const nlmsghdr*>(bytes.data());
        if (NLMSG_OK(answer, static_cast<size_t>(length)) && answer->nlmsg_seq == sequence_)
            return parse(*answer);
    }
}

}  // namespace inagg::ports
