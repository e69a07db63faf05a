// SPDX-License-Identifier: Apache-2.0
//
// Packets that wait to leave through a port, oldest first, in one block of memory: a packet is copied once
// and no memory is allocated for it. Bounded in frames and in bytes; push() refuses what does not fit (tail
// drop).
//
// Datagrams in a row that are the segments of one large frame become that frame here: of the second and later
// ones the payload alone is copied, behind the payload before it; or nothing, when the payloads lie one
// behind the other in SharedBytes.
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

// A frame as it lies in memory; the second piece may be empty.
using FramePieces = std::array<iovec, 2>;

class OutputQueue {
  public:
    // What frames hold, as packets on a wire.
    struct Amount {
        size_t packets = 0;
        size_t bytes = 0;
    };

    // With `offloads`, an Offload precedes each frame that peek() shows.
    OutputQueue(size_t max_frames, size_t max_bytes, bool offloads, SharedBytes& shared);

    // Copies the packet to the end; false, and nothing changed, when there is no room. length > 0. A packet
    // over `coalesced_limit` bytes is left as it is. `payload`: the packet's UDP payload in the SharedBytes,
    // if it is there; it is copied all the same where it does not fit what is queued.
    bool push(const uint8_t* packet, size_t length, size_t coalesced_limit,
              std::span<const uint8_t> payload = {});

    // The oldest frames, at most `limit` of them. They stay queued until pop().
    size_t peek(FramePieces* out, size_t limit);

    Amount pop(size_t frames);
    Amount clear() { return pop(count_); }

    bool empty() const { return count_ == 0; }

  private:
    struct Slot {
        size_t offset;  // of its Offload
        size_t length;  // of the frame behind that
        size_t packets;
        size_t packet_bytes;     // of the first packet
        size_t header_bytes;     // that the packets have in common; 0: there is one packet
        const uint8_t* payload;  // in the SharedBytes; null: behind the headers
    };

    Slot& slot(size_t index) { return slots_[(first_ + index) % slots_.size()]; }
    uint8_t* frame(const Slot& slot) { return bytes_.get() + slot.offset + sizeof(Offload); }
    size_t room_behind_tail();
    std::optional<size_t> place(size_t bytes);
    bool join_last(const uint8_t* packet, size_t length, std::span<const uint8_t> payload);
    void append(const uint8_t* bytes, size_t count);

    SharedBytes& shared_;
    std::unique_ptr<uint8_t[]> bytes_;
    size_t capacity_;
    bool offloads_;
    std::vector<Slot> slots_;
    size_t first_ = 0;
    size_t count_ = 0;
    size_t tail_ = 0;  // where the next frame goes, if it fits there
    Row row_;          // the newest frame, if packets can join it
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_QUEUE_HPP
