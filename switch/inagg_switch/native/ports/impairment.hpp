// SPDX-License-Identifier: Apache-2.0
//
// Impairs the packets of one port in one direction, as a bad link does: it loses, duplicates, corrupts,
// reorders and delays them at random. The meaning of each effect is that of the kernel's netem (tc-netem(8),
// net/sched/sch_netem.c), with one addition: without a delay, a reordered packet is held back.
#ifndef INAGG_SWITCH_PORTS_IMPAIRMENT_HPP
#define INAGG_SWITCH_PORTS_IMPAIRMENT_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "ports/counters.hpp"

namespace inagg::ports {

// Which packets of a port: those that it receives, or those that it sends.
enum class Direction : uint8_t { kIn, kOut };

// Probabilities are 0 to 1, and independent of each other.
struct ImpairmentSpec {
    double loss = 0;
    double duplicate = 0;
    double reorder = 0;  // is not delayed although others are; without a delay: is held back for kHoldBackUs
    double corrupt = 0;  // has one bit flipped behind the Ethernet header; checksums stay as they were
    uint64_t delay_us = 0;
    uint64_t jitter_us = 0;  // at most delay_us; a delay is uniform in delay_us -+ jitter_us
    uint64_t seed = 0;       // of all draws
};

// Belongs to one port of a PacketLoop, whose thread alone uses it. Time is an argument.
class Impairment {
  public:
    static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
    static constexpr uint64_t kHoldBackUs = 1000;
    static constexpr size_t kMaxBytes = size_t{64} << 20;

    // A packet that has waited. `number` orders packets that are due at the same time.
    struct Packet {
        uint64_t due_us;
        uint64_t number;
        uint32_t priority;
        std::vector<uint8_t> bytes;
    };

    // At most `max_bytes` wait; a packet beyond that is dropped. `counters` must outlive this object.
    explicit Impairment(ImpairmentCounters& counters, size_t max_bytes = kMaxBytes)
        : counters_(counters), max_bytes_(max_bytes) {}

    // Draws begin again, from the seed. Packets that wait leave at their time.
    void change(const ImpairmentSpec& spec);
    // Takes a packet, of which none, one or two copies leave.
    void add(const uint8_t* packet, size_t length, uint32_t priority, uint64_t now_us);
    // Makes all packets that wait due at once, in their order.
    void release();
    // Removes the next packet that is due at a time.
    std::optional<Packet> next(uint64_t now_us);
    // When next() has a packet; kNever if none waits.
    uint64_t due_us() const { return waiting_.empty() ? kNever : waiting_.front().due_us; }

  private:
    // Beside a packet's own bytes: its record, and what the allocator adds.
    static constexpr size_t kRecordBytes = sizeof(Packet) + 16;

    bool happens(double probability);
    void hold(const uint8_t* packet, size_t length, uint32_t priority, uint64_t now_us);
    uint64_t draw_due(uint64_t now_us);

    ImpairmentCounters& counters_;
    const size_t max_bytes_;
    ImpairmentSpec spec_;
    std::mt19937_64 random_;
    std::vector<Packet> waiting_;  // a heap, the packet that leaves first in front
    size_t bytes_ = 0;             // of waiting_, with records
    uint64_t number_ = 0;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_IMPAIRMENT_HPP
