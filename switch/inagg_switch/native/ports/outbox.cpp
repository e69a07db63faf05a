// SPDX-License-Identifier: Apache-2.0
#include "ports/outbox.hpp"

#include <net/ethernet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "ports/offload/headers.hpp"

namespace inagg::ports {
namespace {

constexpr size_t kSendBatch = 128;

}  // namespace

void Outbox::add(Port& port, uint32_t priority, const uint8_t* frame, size_t length, size_t shared) {
    if (port.clones_wait) flush_clones();
    const size_t limit = port.link.mtu + ETH_HLEN;
    const auto payload = shared_payload(frame, length, shared);
    if (!port.queues.push(priority, frame, length, limit, payload)) {
        // A burst may hold more frames for a port than its queue. Unless the kernel refuses frames, sending
        // makes room.
        if (!port.blocked) flush(port);
        if (!port.queues.push(priority, frame, length, limit, payload)) {
            port.counters.drop(Drop::kTxQueueFull).add(1);
            return;
        }
    }
    if (!port.dirty) {
        port.dirty = true;
        dirty_.push_back(&port);
    }
}

// Returns the UDP payload of a packet in shared_, which all copies of the packet have in common; empty if it
// is not there. Only UDP: nobody multicasts TCP.
std::span<const uint8_t> Outbox::shared_payload(const uint8_t* frame, size_t length, size_t shared) {
    if (!offloads_ || shared == 0) return {};
    if (!payload_) {
        const auto headers = find_headers(frame, length);
        const bool found = headers && headers->protocol == IPPROTO_UDP && length - headers->payload <= shared;
        payload_ = found ? shared_.add(frame + headers->payload, length - headers->payload)
                         : std::span<const uint8_t>{};
    }
    return *payload_;
}

bool Outbox::add_clones(FanOut& fan, const uint8_t* frame, size_t length) {
    if (cloning_ != &fan && !begin_clones(fan)) return false;
    if (length > longest_clone_) return false;
    if (fan.queue.push(frame, length, longest_clone_)) return true;
    flush_clones();
    return begin_clones(fan) && fan.queue.push(frame, length, longest_clone_);
}

bool Outbox::begin_clones(FanOut& fan) {
    flush_clones();
    for (Port* port : fan.ports) {
        if (!port->queues.empty() && !port->blocked) flush(*port);
        if (!port->queues.empty()) return false;
    }
    cloning_ = &fan;
    longest_clone_ = fan.longest();
    for (Port* port : fan.ports) port->clones_wait = true;
    return true;
}

// The kernel clones and sends the frames before it returns, so the device never refuses a frame because
// others wait. What a port's qdisc drops is not known here.
void Outbox::flush_clones() {
    if (cloning_ == nullptr) return;
    FanOut& fan = *std::exchange(cloning_, nullptr);
    int error = 0;
    while (!fan.queue.empty()) {
        FramePieces frame;
        fan.queue.peek(&frame, 1);
        const int result = fan.send(frame);
        if (result == -EINTR) continue;
        const OutputQueue::Amount amount = fan.queue.pop(1);
        for (Port* port : fan.ports) {
            if (result == 0) {
                port->counters.tx_packets.add(amount.packets);
                port->counters.tx_bytes.add(amount.bytes);
                port->waiting.sent(amount.packets, amount.bytes);
            } else {
                port->counters.drop(Drop::kTxError).add(amount.packets);
            }
        }
        if (result == 0) {
            fan.packets.add(amount.packets);
        } else {
            error = -result;
        }
    }
    for (Port* port : fan.ports) port->clones_wait = false;
    if (error != 0) {
        events_.push(event_of(
            *fan.ports.front(), true,
            "a frame could not be cloned to several ports: " + std::generic_category().message(error)));
        fan.broken = true;
    }
}

void Outbox::flush() {
    flush_clones();
    for (Port* port : dirty_) {
        port->dirty = false;
        if (!port->blocked) flush(*port);
    }
    dirty_.clear();
}

void Outbox::flush(Port& port) {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): peek() fills what is read.
    std::array<FramePieces, kSendBatch> frames;
    while (PortQueues::Queue* queue = port.queues.next(clock_.now_us())) {
        const size_t count = queue->packets.peek(frames.data(), queue->burst(frames.size()));
        const int sent = port.socket.send(frames.data(), count);
        if (sent > 0) {
            const OutputQueue::Amount amount = queue->packets.pop(static_cast<size_t>(sent));
            queue->sent(amount.packets);
            port.counters.tx_packets.add(amount.packets);
            port.counters.tx_bytes.add(amount.bytes);
            port.waiting.sent(amount.packets, amount.bytes);
        } else if (sent == -EAGAIN) {
            watch(port, true);
            return;
        } else if (sent != -EINTR && !drop_refused(port, queue->packets, -sent)) {
            return;
        }
    }
    watch(port, false);
    port.held = !port.queues.empty();
}

void Outbox::flush_held() {
    for (const auto& port : ports_) {
        if (port->held && !port->blocked) flush(*port);
    }
}

uint64_t Outbox::due_us() const {
    uint64_t due = PortQueues::kNever;
    for (const auto& port : ports_) {
        if (port->held) due = std::min(due, port->queues.due_us());
    }
    return due;
}

void Outbox::limit(Port& port, uint32_t priority, const std::function<void(QueueLimits&)>& change) {
    limited_ = true;
    port.queues.limit(priority, change);
    if (!port.blocked) flush(port);
}

// Drops a queue's oldest frame, which the kernel refused with this errno. Returns false if the interface is
// down or gone and all queues were dropped.
bool Outbox::drop_refused(Port& port, OutputQueue& queue, int error) {
    Drop reason = Drop::kTxError;
    switch (error) {
        case ENETDOWN:
        case ENXIO:
        case ENODEV:
            abandon(port, Drop::kTxPortDown);
            return false;
        case ENOBUFS:  // the qdisc, or the backlog of the link's other end, dropped the frame
            reason = Drop::kTxQdiscFull;
            break;
        case EMSGSIZE:
            reason = Drop::kTxLongerThanMtu;
            break;
        default:
            if (!port.error_reported) {
                port.error_reported = true;
                events_.push(event_of(
                    port, true, "a frame could not be sent: " + std::generic_category().message(error)));
            }
    }
    port.counters.drop(reason).add(queue.pop(1).packets);
    return true;
}

void Outbox::abandon(Port& port, Drop reason) {
    port.counters.drop(reason).add(port.queues.clear());
    port.held = false;
    watch(port, false);
}

// Makes epoll report when the kernel accepts frames of this port again, or stops that.
void Outbox::watch(Port& port, bool for_output) {
    if (port.blocked == for_output) return;
    port.blocked = for_output;
    if (!port.socket.is_open()) return;
    epoll_.change(port.socket.fd(), port.token, EPOLLIN | (for_output ? EPOLLOUT : 0u));
}

}  // namespace inagg::ports
