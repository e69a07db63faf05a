// SPDX-License-Identifier: Apache-2.0
//
// The queues of a port, one for each priority. A packet leaves only if no packet of a higher priority may
// leave. A queue may have a rate and a depth, as with simple_switch_CLI's set_queue_rate and set_queue_depth.
// simple_switch has the same in QueueingLogicPriRL (include/bm/bm_sim/queueing.h).
#ifndef INAGG_SWITCH_PORTS_PORT_QUEUES_HPP
#define INAGG_SWITCH_PORTS_PORT_QUEUES_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "ports/queue.hpp"

namespace inagg::ports {

// Limits of a queue. 0: no rate; no depth but the memory's.
struct QueueLimits {
    uint64_t packets_per_second = 0;
    size_t depth = 0;
};

// Belongs to one port of a PacketLoop, whose thread alone uses it.
class PortQueues {
  public:
    static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

    struct Queue {
        explicit Queue(OutputQueue made) : packets(std::move(made)) {}

        OutputQueue packets;
        QueueLimits limits;
        uint64_t next_us = 0;  // when a queue with a rate may send
        bool began = false;    // it was empty before the packets in it came

        // Frames that may leave at once: a queue with a rate is asked before each.
        size_t burst(size_t most) const { return limits.packets_per_second == 0 ? most : 1; }
        // Packets have left.
        void sent(size_t count);
    };

    // Makes `count` queues, at least one.
    PortQueues(size_t count, const std::function<OutputQueue()>& make);

    // Appends a packet to the queue of a priority, which is below the number of queues. The rest is
    // OutputQueue::push()'s.
    bool push(uint32_t priority, const uint8_t* packet, size_t length, size_t coalesced_limit,
              std::span<const uint8_t> payload);
    // The queue to send from now; null if no packet may leave.
    Queue* next(uint64_t now_us);
    // When a queue that has packets may send; kNever if all are empty.
    uint64_t due_us() const;
    // Removes all packets. Returns their number.
    size_t clear();

    bool empty() const;
    size_t packets() const;
    // Whether the queue of a priority has no packets.
    bool empty(uint32_t priority) const { return queues_[priority].packets.empty(); }

    // Of one priority; of all if it is kAll.
    static constexpr uint32_t kAll = ~0u;
    void limit(uint32_t priority, const std::function<void(QueueLimits&)>& change);

  private:
    std::vector<Queue> queues_;  // by priority
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_PORT_QUEUES_HPP
