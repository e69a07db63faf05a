// SPDX-License-Identifier: Apache-2.0
//
// The queue of packets that wait to leave through a port, oldest first. All packets lie in one ring of
// memory: push() copies a packet once and allocates nothing. The queue is limited in frames and in bytes;
// push() refuses a packet that does not fit (tail drop).
//
// Consecutive packets that are the segments of one large frame are joined to that frame. For the second and
// later packets, push() copies only the payload, behind the payload before it. It copies nothing if the
// payloads lie directly behind each other in SharedBytes.
#ifndef INAGG_SWITCH_PORTS_QUEUE_HPP
#define INAGG_SWITCH_PORTS_QUEUE_HPP

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ports/offload/coalesce.hpp"
#include "ports/shared.hpp"

namespace inagg::ports {

// The memory of one frame, in two pieces; the second piece may be empty.
using FramePieces = std::array<iovec, 2>;

// Belongs to one port of a PacketLoop, whose thread alone uses it. Owns its memory, but not `shared`.
class OutputQueue {
  public:
    // The packets that frames consist of, and their total length on the wire.
    struct Amount {
        size_t packets = 0;
        size_t bytes = 0;
    };

    // With `offloads`, packets may be joined and an Offload precedes each frame that peek() returns. Each
    // frame takes sizeof(Offload) of `max_bytes` in any case.
    OutputQueue(size_t max_frames, size_t max_bytes, bool offloads, SharedBytes& shared);

    // Appends a packet; length > 0. Returns false and changes nothing if there is no room. A packet of more
    // than `coalesced_limit` bytes is not joined with others. `payload` is the packet's UDP payload in
    // `shared`, or empty. push() refers to it instead of copying it where it can.
    bool push(const uint8_t* packet, size_t length, size_t coalesced_limit,
              std::span<const uint8_t> payload = {});

    // Stores the pieces of the oldest frames, at most `limit`, in `out`. Returns their number. The frames
    // stay queued, and the pieces valid, until the next push() or pop().
    size_t peek(FramePieces* out, size_t limit);

    // Removes the oldest `frames` frames.
    Amount pop(size_t frames);
    // Removes all frames.
    Amount clear() { return pop(count_); }

    bool empty() const { return count_ == 0; }
    size_t packets() const { return packets_; }

  private:
    // One frame. Its Offload, headers and, if not shared, payload follow each other in bytes_.
    struct Slot {
        size_t offset;  // where the Offload is in bytes_
        size_t length;  // of the frame, without the Offload
        size_t packets;
        size_t packet_bytes;     // length of the first packet
        size_t header_bytes;     // length of each packet's headers; 0: no packet can join this one
        const uint8_t* payload;  // in shared_; null: in bytes_, behind the headers
    };

    Slot& slot(size_t index) { return slots_[(first_ + index) % slots_.size()]; }
    uint8_t* frame(const Slot& slot) { return bytes_.get() + slot.offset + sizeof(Offload); }
    // Free bytes directly behind the newest frame. Needs a frame.
    size_t room_behind_tail();
    // Where a new frame of `bytes` bytes can start in bytes_; nullopt if there is no room.
    std::optional<size_t> place(size_t bytes);
    // Joins the packet to the newest frame. False, and nothing changed, if it does not belong to it or does
    // not fit.
    bool join_last(const uint8_t* packet, size_t length, std::span<const uint8_t> payload);
    void append(const uint8_t* bytes, size_t count);

    SharedBytes& shared_;
    std::unique_ptr<uint8_t[]> bytes_;
    size_t capacity_;
    bool offloads_;
    std::vector<Slot> slots_;
    size_t first_ = 0;
    size_t count_ = 0;
    size_t packets_ = 0;  // in all frames
    size_t tail_ = 0;     // the end of the newest frame in bytes_
    Row row_;             // the newest frame, as packets that join it see it
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_QUEUE_HPP
