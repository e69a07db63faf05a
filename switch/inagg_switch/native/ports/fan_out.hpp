// SPDX-License-Identifier: Apache-2.0
//
// Copies of a multicast that are equal leave once: through a device from which the kernel clones each frame
// to a set of ports. The clones share their data.
//
// The device is a TAP interface. A frame that is written to it enters the kernel there, and a filter (clsact,
// u32, mirred) passes it on to all ports of the set. One device serves one set. inagg_switch/fan_out.py makes
// and removes devices on a thread of its own, because the kernel takes milliseconds for it. Until a device is
// there, and where the kernel refuses it, each port sends its own copy.
#ifndef INAGG_SWITCH_PORTS_FAN_OUT_HPP
#define INAGG_SWITCH_PORTS_FAN_OUT_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ports/counters.hpp"
#include "ports/events.hpp"
#include "ports/port.hpp"
#include "ports/queue.hpp"

namespace inagg::ports {

// The device of one set of ports.
struct FanOut {
    const uint32_t id;
    const std::vector<Port*> ports;
    OutputQueue queue;     // frames that have to be cloned
    uint64_t used_us = 0;  // when it was last used
    int fd = -1;           // of the TAP device; not owned. -1: the device is not made yet
    bool broken = false;   // the kernel has refused a frame
    Counter& packets;      // that left through any device; FanOuts::Statistics

    // The longest frame that fits the MTU of every port.
    size_t longest() const;
    // Hands the frame to the kernel. Returns 0 or -errno.
    int send(const FramePieces& frame) const;
};

// A device to make, for these interfaces. None: a device to remove.
struct FanOutTask {
    uint32_t id;
    std::vector<std::string> interfaces;
};

// The sets of ports that multicasts go to, and their devices. Belongs to the loop's thread, except tasks(),
// made(), refuse() and statistics(), which any thread may call.
class FanOuts {
  public:
    // `shared` as for OutputQueue.
    FanOuts(bool enabled, SharedBytes& shared) : shared_(shared), refused_(!enabled) {}

    // Whether devices can be had.
    bool possible() const { return !refused_.load(std::memory_order_relaxed); }

    // The device for this set, or null if there is none. A set that is often asked for gets one.
    FanOut* find(const std::vector<Port*>& ports, uint64_t now_us);
    // Takes over the devices that have been made since the last call.
    void take_made();
    // Retires devices that are broken or have not been used for long; called about once a second.
    void sweep(uint64_t now_us);
    bool needs_sweep() const { return !fans_.empty() || !candidates_.empty(); }
    // Retires the devices of all sets with this port, whose interface has changed.
    void forget(const Port& port);

    WaitingQueue<FanOutTask>& tasks() { return tasks_; }
    // A device is made; -1: it could not be made this time. Wake the loop afterwards.
    void made(uint32_t id, int fd);
    // No device can be made.
    void refuse() { refused_ = true; }

    struct Statistics {
        uint64_t devices;
        uint64_t packets;  // that left once for several ports
    };
    Statistics statistics() const { return {devices_.load(), packets_.read()}; }

  private:
    // A set without a device, and the packets sent to it since the last sweep.
    struct Candidate {
        std::vector<Port*> ports;
        unsigned packets;
    };

    void count_candidate(const std::vector<Port*>& ports, uint64_t now_us);
    void make(const std::vector<Port*>& ports, uint64_t now_us);
    template <class Predicate>
    void retire_if(Predicate predicate);

    SharedBytes& shared_;
    std::vector<std::unique_ptr<FanOut>> fans_;
    FanOut* last_ = nullptr;  // that was found
    std::vector<Candidate> candidates_;
    uint32_t next_id_ = 1;
    Counter packets_;
    std::atomic<uint64_t> devices_{0};
    std::atomic<bool> refused_;
    WaitingQueue<FanOutTask> tasks_;
    std::mutex made_mutex_;  // innermost; guards made_
    std::vector<std::pair<uint32_t, int>> made_;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_FAN_OUT_HPP
