// SPDX-License-Identifier: Apache-2.0
#include "ports/port_queues.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

namespace inagg::ports {
namespace {

constexpr uint64_t kSecondUs = 1'000'000;

}  // namespace

// Counts from the time when the packet might have left, so that a queue that is served late catches up.
void PortQueues::Queue::sent(size_t count) {
    if (limits.packets_per_second != 0) next_us += count * kSecondUs / limits.packets_per_second;
}

PortQueues::PortQueues(size_t count, const std::function<OutputQueue()>& make) {
    queues_.reserve(count);
    for (size_t i = 0; i < count; ++i) queues_.emplace_back(make());
}

bool PortQueues::push(uint32_t priority, const uint8_t* packet, size_t length, size_t coalesced_limit,
                      std::span<const uint8_t> payload) {
    Queue& queue = queues_[priority];
    if (queue.limits.depth != 0 && queue.packets.packets() >= queue.limits.depth) return false;
    // A frame of several packets would leave at once.
    const bool may_join = queue.limits.packets_per_second == 0;
    const bool began = queue.packets.empty();
    if (!queue.packets.push(packet, length, may_join ? coalesced_limit : 0, payload)) return false;
    queue.began |= began;
    return true;
}

PortQueues::Queue* PortQueues::next(uint64_t now_us) {
    for (Queue& queue : std::views::reverse(queues_)) {
        // A pause saves nothing up.
        if (std::exchange(queue.began, false)) queue.next_us = std::max(queue.next_us, now_us);
        if (!queue.packets.empty() && (queue.limits.packets_per_second == 0 || queue.next_us <= now_us)) {
            return &queue;
        }
    }
    return nullptr;
}

uint64_t PortQueues::due_us() const {
    uint64_t due = kNever;
    for (const Queue& queue : queues_) {
        if (!queue.packets.empty()) due = std::min(due, queue.next_us);
    }
    return due;
}

size_t PortQueues::clear() {
    size_t count = 0;
    for (Queue& queue : queues_) count += queue.packets.clear().packets;
    return count;
}

bool PortQueues::empty() const {
    return std::ranges::all_of(queues_, [](const Queue& queue) { return queue.packets.empty(); });
}

size_t PortQueues::packets() const {
    size_t count = 0;
    for (const Queue& queue : queues_) count += queue.packets.packets();
    return count;
}

void PortQueues::limit(uint32_t priority, const std::function<void(QueueLimits&)>& change) {
    for (uint32_t i = 0; i < queues_.size(); ++i) {
        if (priority == kAll || priority == i) change(queues_[i].limits);
    }
}

}  // namespace inagg::ports
