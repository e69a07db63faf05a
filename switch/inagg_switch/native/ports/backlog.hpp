// SPDX-License-Identifier: Apache-2.0
//
// How many packets wait in the kernel to leave through an interface: what its queueing discipline holds
// (tc-qdisc; fetched over rtnetlink(7)). A veth without one has no queue that the kernel tells of.
#ifndef INAGG_SWITCH_PORTS_BACKLOG_HPP
#define INAGG_SWITCH_PORTS_BACKLOG_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace inagg::ports {

// What a queueing discipline holds. A large frame that is still to be cut counts as one frame.
struct Backlog {
    bool queued = false;  // there is a discipline
    uint32_t frames = 0;
    uint32_t bytes = 0;  // of packets, with their headers
};

// Asks the kernel. Belongs to one PacketLoop, whose thread alone uses it.
class BacklogReader {
  public:
    // Throws std::system_error.
    BacklogReader();
    ~BacklogReader();
    BacklogReader(const BacklogReader&) = delete;
    BacklogReader& operator=(const BacklogReader&) = delete;

    // Of the interface's root discipline. Empty if there is no discipline or no interface. Takes some 10 us.
    Backlog read(unsigned interface_index);

  private:
    int fd_;
    uint32_t sequence_ = 0;
};

// What waits for one port in the kernel, as the packet loop knows it.
class Waiting {
  public:
    // Packets have been handed to the kernel.
    void sent(size_t packets, size_t bytes) {
        sent_ += packets;
        recent_packets_ += packets;
        recent_bytes_ += bytes;
        if (recent_packets_ > kRecent) {
            recent_packets_ /= 2;
            recent_bytes_ /= 2;
        }
    }
    // Whether the kernel has to be asked although it has no frames of this loop's socket. It may have
    // others': clones, and those of other loops and programs. While it has, each burst asks; else now and
    // then, and more rarely if there was no discipline.
    bool is_unknown(uint64_t now_us) const {
        return known_ > 0 || now_us - asked_us_ >= (queued_ ? kUnseenUs : kUnqueuedUs);
    }
    // Whether there was a discipline.
    bool is_queued() const { return queued_; }
    void learn(const Backlog& backlog, uint64_t now_us) {
        // Large frames count as the packets that recent ones have stood for.
        const size_t by_length =
            recent_bytes_ > 0 ? backlog.bytes * recent_packets_ / recent_bytes_ : size_t{0};
        known_ = std::max<size_t>(backlog.frames, by_length);
        queued_ = backlog.queued;
        asked_us_ = now_us;
        sent_ = 0;
    }
    // Nothing waits.
    void clear() { known_ = sent_ = 0; }
    // Whether nothing waited when the kernel was asked.
    bool is_empty() const { return known_ == 0; }
    // With what has been sent since the kernel was asked.
    size_t packets() const { return known_ + sent_; }

  private:
    static constexpr size_t kRecent = 1024;  // packets
    static constexpr uint64_t kUnseenUs = 1000;
    static constexpr uint64_t kUnqueuedUs = 100'000;

    size_t known_ = 0;  // packets, when the kernel was asked
    size_t sent_ = 0;   // packets, since then
    uint64_t asked_us_ = 0;
    bool queued_ = true;
    size_t recent_packets_ = 0, recent_bytes_ = 0;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_BACKLOG_HPP
