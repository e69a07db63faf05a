// SPDX-License-Identifier: Apache-2.0
//
// What a port counts, and why it may drop a frame. One thread writes, any thread reads.
#ifndef INAGG_SWITCH_PORTS_COUNTERS_HPP
#define INAGG_SWITCH_PORTS_COUNTERS_HPP

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace inagg::ports {

enum class Drop : size_t {
    kRxSocketFull,  // the receive buffer was full: the switch is too slow for its input. Frames, not packets
    kRxLongerThanMtu,    // a packet too large; without offloads on this port also one that is still to be cut
    kRxPartialChecksum,  // without offloads on this port: a checksum offload is on at the sender
    kRxOffloadUnknown,   // a frame that still has to be cut, in a way that neither the kernel's interface nor
                         // we know
    kRxOffloadBad,       // what the kernel says of an offload does not fit the frame
    kRxNoProgram,        // no P4 program is loaded
    kTxQueueFull,        // this switch's queue of the port was full
    kTxQdiscFull,        // the interface's own queue (tbf, backlog) was full
    kTxLongerThanMtu,
    kTxTooShort,  // no whole Ethernet header
    kTxPortDown,
    kTxError,
    kCount,
};

constexpr std::array<const char*, static_cast<size_t>(Drop::kCount)> kDropNames = {
    "rx_socket_full",     "rx_longer_than_mtu", "rx_partial_checksum", "rx_offload_unknown",
    "rx_offload_bad",     "rx_no_program",      "tx_queue_full",       "tx_qdisc_full",
    "tx_longer_than_mtu", "tx_too_short",       "tx_port_down",        "tx_error",
};

class Counter {
  public:
    // Not an atomic read-modify-write: only the owner thread adds.
    void add(uint64_t amount) {
        value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
    uint64_t read() const { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<uint64_t> value_{0};
};

struct PortCounters {
    Counter rx_packets;
    Counter rx_bytes;
    Counter tx_packets;
    Counter tx_bytes;
    std::array<Counter, static_cast<size_t>(Drop::kCount)> drops;

    Counter& drop(Drop reason) { return drops[static_cast<size_t>(reason)]; }
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_COUNTERS_HPP
