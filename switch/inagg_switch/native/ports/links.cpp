// SPDX-License-Identifier: Apache-2.0
//
// The link monitor, and the parts of PacketLoop that follow interfaces (down, removed, back) and read
// statistics.
#include "ports/links.hpp"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "ports/packet_loop.hpp"

namespace inagg::ports {

int open_link_monitor() {
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "netlink socket");
    sockaddr_nl address{};
    address.nl_family = AF_NETLINK;
    address.nl_groups = RTMGRP_LINK;
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) {
        const int error = errno;
        close(fd);
        throw std::system_error(error, std::generic_category(), "netlink socket");
    }
    return fd;
}

void drain_link_monitor(int fd) {
    std::array<char, 8192> ignored{};
    // ENOBUFS: messages were lost. The caller reads all interfaces anyway, so this is treated like a message.
    ssize_t length = 0;
    do {
        length = recv(fd, ignored.data(), ignored.size(), 0);
    } while (length > 0 || (length < 0 && errno == ENOBUFS));
}

// Opens the port's socket and adds it to epoll. Throws std::system_error.
void PacketLoop::attach(Port& port) {
    {
        const std::lock_guard guard(sockets_mutex_);
        port.socket.open(port.interface, filter_, options_.receive_buffer_bytes, options_.send_buffer_bytes,
                         offloads_);
    }
    port.link = read_link(port.interface);
    port.up = port.link.up;
    port.blocked = false;
    epoll_.add(port.socket.fd(), port.token, EPOLLIN);
}

// Drops the queued frames and closes the socket. Closing also removes it from epoll.
void PacketLoop::detach(Port& port) {
    port.up = false;
    port.link = {};
    outbox_.abandon(port, Drop::kTxPortDown);
    outbox_.flush_clones();
    fan_outs_.forget(port);
    const std::lock_guard guard(sockets_mutex_);
    take_overflows(port);
    port.socket.close();
}

void PacketLoop::refresh_links() {
    for (auto& port : ports_) refresh_link(*port);
}

void PacketLoop::refresh_link(Port& port) {
    const Link link = read_link(port.interface);
    if (port.socket.is_open() && link.index != port.socket.interface_index()) {
        detach(port);
        report_link(port, true, "the interface is gone");
    }
    if (link.index == 0) return;
    if (!port.socket.is_open()) {
        try {
            attach(port);
            report_link(port, false, "the interface is back");
        } catch (const std::system_error& error) {
            detach(port);
            events().push(event_of(port, true,
                                   std::string("the interface is back but cannot be used: ") + error.what()));
        }
        return;
    }
    if (link.up != port.link.up)
        report_link(port, !link.up, link.up ? "the interface is up" : "the interface is down");
    port.link = link;
    port.up = link.up;
    if (!link.up) outbox_.abandon(port, Drop::kTxPortDown);
}

// One of the loops of a switch reports it.
void PacketLoop::report_link(const Port& port, bool warning, const std::string& message) {
    if (first_ == nullptr) events().push(event_of(port, warning, message));
}

// Adds the kernel's count, which restarts at 0 at every reading. The caller holds sockets_mutex_ or has ended
// the thread.
void PacketLoop::take_overflows(Port& port) { port.overflows += port.socket.take_overflow_count(); }

std::vector<PacketLoop::PortStatistics> PacketLoop::statistics() {
    const std::lock_guard guard(sockets_mutex_);
    std::vector<PortStatistics> all;
    for (auto& port : ports_) {
        take_overflows(*port);
        const PortCounters& counters = port->counters;
        PortStatistics one{port->id,
                           port->interface,
                           port->up,
                           {counters.rx_packets.read(), counters.rx_bytes.read(), counters.tx_packets.read(),
                            counters.tx_bytes.read()},
                           {},
                           {},
                           {}};
        for (size_t i = 0; i < one.drops.size(); ++i) one.drops[i] = counters.drops[i].read();
        one.drops[static_cast<size_t>(Drop::kRxSocketFull)] = port->overflows;
        for (size_t i = 0; i < one.impaired_in.size(); ++i) {
            one.impaired_in[i] = counters.impaired_in.effects[i].read();
            one.impaired_out[i] = counters.impaired_out.effects[i].read();
        }
        all.push_back(std::move(one));
    }
    return all;
}

}  // namespace inagg::ports
