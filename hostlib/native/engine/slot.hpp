// SPDX-License-Identifier: Apache-2.0
//
// A worker's slots (protocol.md, 6), and lists threaded through the slots themselves: a slot moves from list
// to list in constant time without allocation.
//
// A slot sends its chunks one after another. Each chunk passes through these states:
//
//           start          sent
//     idle -------> ready -------> in_flight
//                                    |   ^
//                             doubt  |   | sent
//                                    v   |
//              held <-- asked <-- doubtful   again
//
// and from any of these but the first two, with finish, to idle with chunk c + S.
// The answer to an earlier query also takes it from held to again.
//
// The engine holds the list of ready slots, Recovery those of the others.
#ifndef INAGG_SLOT_HPP
#define INAGG_SLOT_HPP

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "engine/collective.hpp"
#include "wire/wire.hpp"

namespace inagg {

// One cache line: chunks mostly come in order, and each touches its slot's line and little else.
class alignas(64) Slot {
  public:
    enum class State : std::uint8_t {
        idle,       // the chunk cannot be sent yet
        ready,      // the chunk can be sent for the first time
        in_flight,  // sent; its result is awaited
        doubtful,   // the switch is to be asked
        asked,      // the query has left; its answer or the result is awaited
        held,       // the switch has the contribution, and waits for others
        again,      // the switch does not have it, or has the result: to be sent again
    };

    explicit Slot(std::uint32_t chunk) : chunk_(chunk) {}

    std::uint32_t chunk() const { return chunk_; }
    State state() const { return state_; }
    bool outstanding() const { return state_ >= State::in_flight; }
    // A packet is to leave: the contribution again, or a query.
    bool urgent() const { return state_ == State::doubtful || state_ == State::again; }

    // The chunk's part in its collective; not while idle.
    Collective& collective() const { return *collective_; }
    const Assignment& assignment() const { return assignment_; }
    Kind kind() const { return assignment_.role == Role::exponent ? Kind::exponent : Kind::data; }

    void start(Collective& collective, const Assignment& assignment) {
        assert(state_ == State::idle);
        state_ = State::ready;
        collective_ = &collective;
        assignment_ = assignment;
        announced_ = false;
        refusals_ = 0;
    }
    // `sending` counts 1, 2, 3... over all slots, 0 before. `timed`: the result's delay measures the network.
    void sent(std::uint64_t sending, bool timed, double now) {
        assert(state_ == State::ready || urgent());
        once_ = state_ == State::ready;
        timed_ = timed && once_;
        if (state_ == State::doubtful) {
            state_ = State::asked;
        } else {
            state_ = State::in_flight;
            contributed_ = static_cast<std::uint32_t>(sending);
        }
        sending_ = sending;
        sent_at_ = now;
        busy_ = false;
    }
    void doubt() {
        assert(outstanding() && !urgent());
        state_ = State::doubtful;
    }
    void answered(State next) {
        assert(state_ == State::asked || state_ == State::held);
        assert(next == State::again || next == State::held);
        state_ = next;
    }
    // The result is in. `slots` is S.
    void finish(std::uint32_t slots) {
        assert(outstanding());
        state_ = State::idle;
        chunk_ += slots;
    }

    // The chunk is to be sent for the first time on another way. What it announces stays.
    void withdraw() {
        assert(state_ != State::idle && !busy_);
        state_ = State::ready;
        refusals_ = 0;
    }

    // Whether this slot and `before` are in flight, were sent one after the other, and their results tell the
    // same about the network.
    bool follows(const Slot& before) const {
        return state_ == State::in_flight && before.state_ == State::in_flight &&
               sending_ == before.sending_ + 1 && sent_at_ == before.sent_at_ && timed_ == before.timed_ &&
               once_ == before.once_ && collective_ == before.collective_;
    }

    // The last sending, of the contribution or a query.
    std::uint64_t sending() const { return sending_; }
    double sent_at() const { return sent_at_; }
    // Whether an answer to the query that left as this sending still says something: the query left after the
    // contribution, and no packet is to leave now.
    bool awaits_answer(std::uint64_t sending) const {
        const auto since = static_cast<std::uint32_t>(sending) - contributed_;
        return (state_ == State::asked || state_ == State::held) && since - 1 < 1U << 31;
    }
    // The contribution is all that has been sent, once.
    bool sent_once() const { return once_; }
    bool timed() const { return timed_; }

    // What the packet announces. It is fixed by the first sending: a packet sent again is the same to the
    // byte.
    bool announced() const { return announced_; }
    std::uint8_t flags() const { return flags_; }
    std::uint16_t exponent() const { return exponent_; }
    void announce(const BlockExponent& found) {
        const unsigned flags = (found.special ? FLAG_SPECIAL : 0U) | (found.wide ? FLAG_WIDE : 0U);
        announce(static_cast<std::uint8_t>(flags), found.code);
    }
    void announce(std::uint8_t flags, std::uint16_t exponent) {
        announced_ = true;
        flags_ = flags;
        exponent_ = exponent;
    }

    // A packet thread makes the packet of this slot, or takes its result, while others may use the engine:
    // they leave the slot alone.
    bool busy() const { return busy_; }
    void set_busy(bool busy) { busy_ = busy; }

    // Counts a sending whose result was not usable; returns how many there are of this chunk.
    unsigned refuse() { return ++refusals_; }

  private:
    friend class SlotList;

    Slot* previous_ = nullptr;
    Slot* next_ = nullptr;
    Collective* collective_ = nullptr;
    Assignment assignment_;
    std::uint64_t sending_ = 0;
    double sent_at_ = 0;
    std::uint32_t chunk_;
    std::uint32_t contributed_ = 0;  // the contribution's last sending, its lower half
    std::uint16_t exponent_ = 0;
    std::uint8_t flags_ = 0;
    std::uint8_t refusals_ = 0;
    State state_ = State::idle;
    bool announced_ = false;
    bool busy_ = false;
    bool once_ : 1 = false;
    bool timed_ : 1 = false;
};
static_assert(sizeof(Slot) == alignof(Slot));

// A doubly linked list of slots. A slot is in one list at most.
class SlotList {
  public:
    bool empty() const { return head_ == nullptr; }
    Slot* front() const { return head_; }
    Slot* back() const { return tail_; }
    static Slot* next(const Slot& slot) { return slot.next_; }
    static const Slot* previous(const Slot& slot) { return slot.previous_; }

    void push_back(Slot& slot) { insert_behind(tail_, slot); }

    // Moves the slots from the front of another list up to `last` to the end of this one.
    void take_front(SlotList& other, Slot& last) {
        Slot& first = *other.head_;
        other.remove_range(first, last);
        first.previous_ = tail_;
        last.next_ = nullptr;
        (tail_ == nullptr ? head_ : tail_->next_) = &first;
        tail_ = &last;
    }

    // Keeps the oldest chunk in front. Searches from the end, which is mostly the place.
    void insert_by_chunk(Slot& slot) {
        Slot* place = tail_;
        while (place != nullptr && chunk_age(place->chunk(), slot.chunk()) > 0) {
            place = place->previous_;
        }
        insert_behind(place, slot);
    }

    void remove(const Slot& slot) { remove_range(slot, slot); }

    // Removes the slots from `first` to `last`.
    void remove_range(const Slot& first, const Slot& last) {
        (first.previous_ == nullptr ? head_ : first.previous_->next_) = last.next_;
        (last.next_ == nullptr ? tail_ : last.next_->previous_) = first.previous_;
    }

  private:
    // Null: at the head.
    void insert_behind(Slot* place, Slot& slot) {
        Slot*& link = place == nullptr ? head_ : place->next_;
        slot.previous_ = place;
        slot.next_ = link;
        link = &slot;
        (slot.next_ == nullptr ? tail_ : slot.next_->previous_) = &slot;
    }

    Slot* head_ = nullptr;
    Slot* tail_ = nullptr;
};

}  // namespace inagg

#endif
