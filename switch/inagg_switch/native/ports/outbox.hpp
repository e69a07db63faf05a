// SPDX-License-Identifier: Apache-2.0
//
// What a PacketLoop has to send: frames in the queues of their ports, and clones in the queue of one fan-out
// device. A port's frames leave in the order in which the program emitted them. A flush() after the
// bursts sends them; what the kernel does not accept waits until epoll reports the port writable.
#ifndef INAGG_SWITCH_PORTS_OUTBOX_HPP
#define INAGG_SWITCH_PORTS_OUTBOX_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ports/clock.hpp"
#include "ports/epoll.hpp"
#include "ports/events.hpp"
#include "ports/fan_out.hpp"
#include "ports/port.hpp"
#include "ports/shared.hpp"

namespace inagg::ports {

// Belongs to one PacketLoop, whose thread alone uses it.
class Outbox {
  public:
    using Ports = std::vector<std::unique_ptr<Port>>;

    // With `offloads`, the UDP payload that all copies of a packet have in common is stored once, in
    // `shared`. The arguments must outlive this object.
    Outbox(const Ports& ports, bool offloads, SharedBytes& shared, Epoll& epoll, const Clock& clock,
           EventQueue& events)
        : ports_(ports),
          offloads_(offloads),
          shared_(shared),
          epoll_(epoll),
          clock_(clock),
          events_(events) {}

    // The frames that follow are copies of another packet.
    void begin_packet() { payload_.reset(); }
    // Queues a frame. `shared`: the number of bytes at its end that are equal in all copies of the packet.
    void add(Port& port, uint32_t priority, const uint8_t* frame, size_t length, size_t shared);
    // Queues a frame for the kernel to clone. Returns false if every port has to send its own copy.
    bool add_clones(FanOut& fan, const uint8_t* frame, size_t length);

    // Sends all that was queued since the last flush.
    void flush();
    // Sends the port's queues until they are empty, their rates hold the rest, or the kernel accepts no more;
    // then epoll waits for EPOLLOUT.
    void flush(Port& port);
    // Hands all frames that wait for a device to the kernel.
    void flush_clones();
    // Sends from queues whose rate is due.
    void flush_held();
    // When flush_held() has something to send; PortQueues::kNever without rates.
    uint64_t due_us() const;

    // Changes the limits of a port's queues; see PortQueues::limit().
    void limit(Port& port, uint32_t priority, const std::function<void(QueueLimits&)>& change);
    // Whether a queue has or had a rate or a depth.
    bool is_limited() const { return limited_; }

    // Drops what waits for the port.
    void abandon(Port& port, Drop reason);
    // The packets that wait for the port here.
    size_t packets(const Port& port) const {
        return port.queues.packets() + (port.clones_wait ? cloning_->queue.packets() : 0);
    }

  private:
    std::span<const uint8_t> shared_payload(const uint8_t* frame, size_t length, size_t shared);
    bool begin_clones(FanOut& fan);
    bool drop_refused(Port& port, OutputQueue& queue, int error);
    void watch(Port& port, bool for_output);

    const Ports& ports_;
    const bool offloads_;
    SharedBytes& shared_;
    Epoll& epoll_;
    const Clock& clock_;
    EventQueue& events_;
    // The payload, in shared_, of the copies of the packet that is being processed. Empty: the payload is not
    // shared. nullopt: shared_payload() has not been called for this packet.
    std::optional<std::span<const uint8_t>> payload_;
    std::vector<Port*> dirty_;  // ports with frames to send at the next flush()
    // The one device with frames to send. Its ports' queues are empty, so that every port's frames leave in
    // the order in which the program emitted them.
    FanOut* cloning_ = nullptr;
    size_t longest_clone_ = 0;  // bytes, of a frame or of a packet in a coalesced frame
    bool limited_ = false;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_OUTBOX_HPP
