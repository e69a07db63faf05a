// SPDX-License-Identifier: Apache-2.0
//
// A worker's slots (protocol.md, 6), and lists of them threaded through the slots themselves, so that a slot
// moves between the send queue and the timers in constant time without allocation.
#ifndef INAGG_SLOT_HPP
#define INAGG_SLOT_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective.hpp"

namespace inagg {

struct Slot {
    enum class State : std::uint8_t {
        idle,     // `chunk` is the next one, and cannot be sent yet
        queued,   // in the send queue, for the first time or again
        waiting,  // sent; its timer runs
    };

    static constexpr std::uint32_t NONE = UINT32_MAX;

    std::uint32_t chunk = 0;
    std::uint32_t previous = NONE;
    std::uint32_t next = NONE;
    std::uint32_t bytes = 0;  // of the datagram
    State state = State::idle;
    Role role = Role::exponent;
    bool sent = false;
    bool resent = false;
    std::uint8_t backoff = 0;  // its timeout is RTO x 2^backoff, or the maximum
    double sent_at = 0;        // the last time
    std::size_t block = 0;
    Collective* collective = nullptr;
};

// A queue of slots. A slot is in one list at most.
class SlotList {
  public:
    bool empty() const { return head_ == Slot::NONE; }
    std::uint32_t front() const { return head_; }

    void push_back(std::vector<Slot>& slots, std::uint32_t index) { insert_behind(slots, tail_, index); }

    // Behind all that were sent no later; at the end, then, unless `index` was sent some time ago.
    void insert_by_time(std::vector<Slot>& slots, std::uint32_t index) {
        std::uint32_t place = tail_;
        while (place != Slot::NONE && slots[place].sent_at > slots[index].sent_at) {
            place = slots[place].previous;
        }
        insert_behind(slots, place, index);
    }

    void remove(std::vector<Slot>& slots, std::uint32_t index) {
        const Slot& slot = slots[index];
        (slot.previous == Slot::NONE ? head_ : slots[slot.previous].next) = slot.next;
        (slot.next == Slot::NONE ? tail_ : slots[slot.next].previous) = slot.previous;
    }

  private:
    // At the head when `place` is NONE.
    void insert_behind(std::vector<Slot>& slots, std::uint32_t place, std::uint32_t index) {
        std::uint32_t& from_behind = place == Slot::NONE ? head_ : slots[place].next;
        const std::uint32_t next = from_behind;
        slots[index].previous = place;
        slots[index].next = next;
        from_behind = index;
        (next == Slot::NONE ? tail_ : slots[next].previous) = index;
    }

    std::uint32_t head_ = Slot::NONE;
    std::uint32_t tail_ = Slot::NONE;
};

}  // namespace inagg

#endif
