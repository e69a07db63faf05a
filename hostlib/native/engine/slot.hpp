// SPDX-License-Identifier: Apache-2.0
//
// A worker's slots (protocol.md, 6), and lists of them threaded through the slots themselves, so that a slot
// moves from list to list in constant time without allocation.
#ifndef INAGG_SLOT_HPP
#define INAGG_SLOT_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/collective.hpp"
#include "wire/wire.hpp"

namespace inagg {

// Of one cache line: chunks come in order mostly, and each costs its slot's line and little else.
struct alignas(64) Slot {
    enum class State : std::uint8_t {
        idle,       // `chunk` is the next one, and cannot be sent yet
        ready,      // can be sent for the first time
        in_flight,  // sent, and its result is awaited
        lost,       // to be sent again
    };

    static constexpr std::uint32_t NONE = UINT32_MAX;

    std::uint32_t chunk = 0;
    std::uint32_t previous = NONE;
    std::uint32_t next = NONE;
    State state = State::idle;
    bool resent = false;
    bool clocked = false;  // all ranks were at this collective when it was sent: it measures the network
    // What its packet announces, once `announced`: a packet sent again is made again, the same to the byte.
    bool announced = false;
    std::uint8_t flags = 0;
    std::uint8_t refused = 0;  // sendings whose result was not used
    std::uint16_t exponent = 0;
    std::uint64_t order = 0;  // of its last sending: 1, 2, 3... over all slots
    double sent_at = 0;       // the last time
    Collective* collective = nullptr;
    Assignment assignment{Role::exponent, 0};  // in that collective
};
static_assert(sizeof(Slot) == alignof(Slot));

// A queue of slots. A slot is in one list at most.
class SlotList {
  public:
    bool empty() const { return head_ == Slot::NONE; }
    std::uint32_t front() const { return head_; }

    void push_back(std::vector<Slot>& slots, std::uint32_t index) { insert_behind(slots, tail_, index); }

    // In front of all newer chunks: at the end, mostly.
    void insert_by_chunk(std::vector<Slot>& slots, std::uint32_t index) {
        std::uint32_t place = tail_;
        while (place != Slot::NONE && chunk_age(slots[place].chunk, slots[index].chunk) > 0) {
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
