// SPDX-License-Identifier: Apache-2.0
//
// The engine's receiving half: from a datagram to the chunks that it lets start.
#include <algorithm>

#include "engine/engine.hpp"

namespace inagg {
namespace {

// Of one chunk. A result that was damaged on its way is right the next time; if the slot's sum is wrong it
// never is.
constexpr unsigned MOST_REFUSED = 3;

}  // namespace

void Engine::receive(std::span<const std::byte> datagram, double now) {
    if (failure_) {
        return;
    }
    const std::optional<Header> header = decode(datagram);
    if (!header || !for_us(*header, datagram.size())) {
        ++stats_.discarded;
        return;
    }
    Slot& slot = slot_of(header->chunk);
    const bool outstanding = slot.chunk == header->chunk &&
                             (slot.state == Slot::State::in_flight || slot.state == Slot::State::lost);
    const std::span<const std::byte> words = datagram.subspan(HEADER_BYTES);
    if (outstanding) {
        // First of all: what is wrong changes nothing, not even the timers.
        if (const std::optional<Fault> fault = fault_in(slot, *header, words)) {
            refuse(slot, *fault);
            return;
        }
    }
    quiet_since_ = now;
    probed_at_ = now;
    if (!outstanding) {
        ++stats_.duplicates_received;
        return;
    }
    if (slot.assignment.role != Role::exponent) {
        slot.collective->take(slot.assignment, words);
    }
    ++stats_.packets_received;
    stats_.bytes_received += datagram.size();
    measure(slot, now);
    move_on(slot, *header);
}

bool Engine::for_us(const Header& header, std::size_t bytes) const {
    return (header.kind == Kind::exponent_result || header.kind == Kind::data_result) &&
           header.job == config_.job && header.epoch == config_.epoch &&
           bytes == datagram_bytes(header.kind, config_.words);
}

// What must hold between our contribution and its result (protocol.md, 3.2, 4 and 6).
std::optional<Engine::Fault> Engine::fault_in(const Slot& slot, const Header& header,
                                              std::span<const std::byte> words) const {
    if (header.kind != result_of(kind_of(slot))) {
        return Fault{FailureCode::kind_mismatch,
                     "the result is of another kind than this rank's contribution; the ranks disagree on the "
                     "collective (do all submit the same sizes in the same order?)"};
    }
    const bool exponents_only = slot.assignment.role == Role::exponent;
    const std::uint32_t lanes = exponents_only ? 0 : slot.collective->sum_of(slot.assignment, words);
    const std::uint32_t each = slot.collective->fingerprint() + mark_of_chunk(slot.chunk);
    const std::uint32_t checksum = lanes + config_.workers * each + rank_marks_;
    if (header.checksum != checksum && exponents_only) {
        return Fault{FailureCode::kind_mismatch,
                     "the ranks disagree on the size, lane width or operation of the collective"};
    }
    if (header.checksum != checksum) {
        return Fault{
            FailureCode::checksum,
            "the checksum of the result is " + std::to_string(header.checksum) + ", that of its lanes " +
                std::to_string(checksum) +
                "; a contribution is missing, doubled or damaged, or the ranks disagree on the collective"};
    }
    const Announcement& announced = header.announced;
    if (!announced.agrees() || !valid_exponent(announced.exponent) || announced.exponent < slot.exponent ||
        (slot.flags & ~announced.flags) != 0) {
        return Fault{FailureCode::checksum,
                     "the result's exponent or flags are not a maximum that includes this rank's; it was "
                     "corrupted"};
    }
    return std::nullopt;
}

// Counted once a sending, so that copies of one bad result do not count as many.
void Engine::refuse(Slot& slot, const Fault& fault) {
    ++stats_.corrupt;
    if (slot.state == Slot::State::lost) {
        return;
    }
    if (++slot.refused == MOST_REFUSED) {
        fail_chunk(fault.code, slot, fault.reason);
        return;
    }
    move(slot, Slot::State::lost);
}

// The slot's chunk is done: starts whatever waited for it.
void Engine::move_on(Slot& slot, const Header& header) {
    Collective& collective = *slot.collective;
    const Role role = slot.assignment.role;
    const std::size_t block = slot.assignment.block;
    move(slot, Slot::State::idle);
    slot.chunk += config_.slots;
    while (slot_of(oldest_unfinished_).chunk != oldest_unfinished_) {
        ++oldest_unfinished_;
    }
    --waiting_;
    --outstanding_;
    ++stats_.chunks_completed;
    collective.chunk_done();

    if (role == Role::exponent) {
        learn_exponent(collective, block, header);
    } else if (role == Role::data) {
        collective.mark_summed(block);
        const std::size_t ahead = block + collective.lead();
        if (ahead < collective.blocks()) {
            learn_exponent(collective, ahead, header);
        } else {
            learn_next(collective, ahead - collective.blocks(), header);
        }
        if (collective.closed() && collective.special(block)) {
            start_chunks(collective, collective.special_chunk(block), collective.class_chunks());
        }
    }
    try_start(slot.chunk, collective);
    if (collective.done()) {
        complete(collective.ticket());
        drop_settled();
    }
}

void Engine::learn_exponent(Collective& collective, std::size_t block, const Header& header) {
    collective.learn_exponent(block, header.announced.exponent, (header.announced.flags & FLAG_SPECIAL) != 0);
    if (!collective.placed()) {
        return;
    }
    try_start(collective.data_chunk(block), collective);
    if (collective.closed()) {
        close(collective);
    }
}

// The result that announces a block of the next collective; that of its first block says whether all ranks
// did.
void Engine::learn_next(Collective& collective, std::size_t block, const Header& header) {
    Collective* next = collective.successor;
    if (block == 0 && collective.invitation == Invitation::pending) {
        const bool agreed = (header.announced.flags & FLAG_NOT_READY) == 0;
        collective.invitation = agreed ? Invitation::agreed : Invitation::declined;
        if (agreed) {
            next->believe(std::min(collective.lead(), next->lead()));
        }
        place_collectives();
    }
    if (next == nullptr || block >= next->lead()) {
        return;
    }
    if (collective.invitation == Invitation::agreed) {
        learn_exponent(*next, block, header);
    } else if (collective.invitation == Invitation::pending) {
        next->hear(block, header.announced.exponent, (header.announced.flags & FLAG_SPECIAL) != 0);
    }
}

// A placed collective's exponents are all known, and with them its number of class chunks and its end.
void Engine::close(Collective& collective) {
    const auto classes = static_cast<std::uint32_t>(collective.special_chunks());
    stats_.special_blocks += collective.special_blocks();
    next_base_ = collective.base() + collective.chunks();
    next_base_known_ = true;
    start_chunks(collective, next_base_ - classes, classes);
    place_collectives();
}

void Engine::complete(Ticket ticket) {
    completions_.push_back(ticket);
    ++stats_.collectives_completed;
}

void Engine::drop_settled() {
    while (placed_ > 0 && collectives_.front().settled()) {
        collectives_.pop_front();
        --placed_;
    }
}

}  // namespace inagg
