// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_SWITCH_PORTS_PORT_HPP
#define INAGG_SWITCH_PORTS_PORT_HPP

#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ports/backlog.hpp"
#include "ports/capture.hpp"
#include "ports/counters.hpp"
#include "ports/events.hpp"
#include "ports/impairment.hpp"
#include "ports/port_queues.hpp"
#include "ports/socket.hpp"

namespace inagg::ports {

// One port of a PacketLoop. The loop's thread owns it, except where a comment says otherwise.
struct Port {
    Port(uint32_t id_, std::string interface_, uint64_t token_, PortQueues queues_)
        : id(id_), interface(std::move(interface_)), token(token_), queues(std::move(queues_)) {}

    const uint32_t id;
    const std::string interface;
    const uint64_t token;  // the port's index in the loop; identifies it in epoll events
    PacketSocket socket;
    Link link;
    PortQueues queues;
    Waiting waiting;             // in the kernel
    uint64_t waiting_burst = 0;  // in which `waiting` was brought up to date
    PortCounters counters;
    std::shared_ptr<Capture> capture;  // null without a capture folder; all loops of a switch have the same
    uint64_t overflows = 0;            // Drop::kRxSocketFull; guarded by PacketLoop::sockets_mutex_
    std::atomic<bool> up{false};       // statistics() reads it on any thread
    bool dirty = false;                // the loop sends the queue after this burst
    bool blocked = false;              // the kernel accepts no more frames: epoll waits for EPOLLOUT
    bool held = false;                 // packets wait for the rate of their queue
    // Of received packets and of packets to send; null: none.
    std::unique_ptr<Impairment> impaired_in;
    std::unique_ptr<Impairment> impaired_out;
    // Clones for this port wait in the queue of a FanOut. Only then are `queues` empty.
    bool clones_wait = false;
    // The reasons for drops of received frames that have been logged.
    std::array<bool, static_cast<size_t>(Drop::kCount)> reported{};
    bool error_reported = false;  // a Drop::kTxError has been logged
};

inline Event event_of(const Port& port, bool warning, const std::string& message) {
    return {warning, port.id, "port " + std::to_string(port.id) + "@" + port.interface + ": " + message};
}

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_PORT_HPP
