// SPDX-License-Identifier: Apache-2.0
//
// The counters of a port and the reasons for which it drops a frame. The packet loop's thread writes them,
// any thread may read them.
#ifndef INAGG_SWITCH_PORTS_COUNTERS_HPP
#define INAGG_SWITCH_PORTS_COUNTERS_HPP

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace inagg::ports {

// Why a frame was dropped.
enum class Drop : size_t {
    // The socket's receive buffer was full: the switch is too slow for its input. Counts frames as the kernel
    // delivers them, each of which may hold several packets.
    kRxSocketFull,
    // The packet is longer than the MTU. On a port without offloads also a frame that the sender left to be
    // cut into segments.
    kRxLongerThanMtu,
    kRxPartialChecksum,  // a port without offloads received a frame whose sender has checksum offload on
    // The frame needs segmentation or a checksum of a kind that Cutter does not support or a virtio_net_hdr
    // cannot express.
    kRxOffloadUnknown,
    kRxOffloadBad,  // the frame's virtio_net_hdr does not match the frame
    kRxNoProgram,   // no P4 program is loaded
    kTxQueueFull,   // the port's OutputQueue was full
    kTxQdiscFull,   // the interface's queue in the kernel (qdisc, for instance tbf, or backlog) was full
    kTxLongerThanMtu,
    kTxTooShort,  // shorter than an Ethernet header
    kTxPortDown,
    kTxError,  // any other error of the kernel
    kCount,
};

// The names in statistics and metrics, in the order of Drop.
constexpr std::array<const char*, static_cast<size_t>(Drop::kCount)> kDropNames = {
    "rx_socket_full",     "rx_longer_than_mtu", "rx_partial_checksum", "rx_offload_unknown",
    "rx_offload_bad",     "rx_no_program",      "tx_queue_full",       "tx_qdisc_full",
    "tx_longer_than_mtu", "tx_too_short",       "tx_port_down",        "tx_error",
};

// A count that one thread increments and any thread reads.
class Counter {
  public:
    // A load and a store, not an atomic read-modify-write: only the packet loop's thread adds.
    void add(uint64_t amount) {
        value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
    uint64_t read() const { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<uint64_t> value_{0};
};

// What an impairment (impairment.hpp) has done to packets.
enum class Effect : size_t {
    kLost,
    kOverflowed,  // dropped because too much waited
    kDuplicated,
    kReordered,
    kCorrupted,
    kCount,
};

// The names in statistics and metrics, in the order of Effect.
constexpr std::array<const char*, static_cast<size_t>(Effect::kCount)> kEffectNames = {
    "lost", "overflowed", "duplicated", "reordered", "corrupted",
};

struct ImpairmentCounters {
    std::array<Counter, static_cast<size_t>(Effect::kCount)> effects;

    Counter& of(Effect effect) { return effects[static_cast<size_t>(effect)]; }
};

// Packets are counted after a received frame is cut into segments. Bytes include the Ethernet header.
// Impairments come behind the counts of received packets, and before those of sent ones.
struct PortCounters {
    Counter rx_packets;
    Counter rx_bytes;
    Counter tx_packets;
    Counter tx_bytes;
    std::array<Counter, static_cast<size_t>(Drop::kCount)> drops;
    ImpairmentCounters impaired_in;
    ImpairmentCounters impaired_out;

    Counter& drop(Drop reason) { return drops[static_cast<size_t>(reason)]; }
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_COUNTERS_HPP
