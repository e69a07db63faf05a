// SPDX-License-Identifier: Apache-2.0
//
// The engine's receiving half: from a datagram to the chunks that it lets start.
#include <algorithm>

#include "engine.hpp"

namespace inagg {

void Engine::receive(std::span<const std::byte> datagram, double now) {
    if (failure_) {
        return;
    }
    const std::optional<Header> header = decode(datagram);
    if (!header || !for_us(*header, datagram.size())) {
        ++stats_.discarded;
        return;
    }
    quiet_since_ = now;
    probed_at_ = now;
    Slot& slot = slot_of(header->chunk);
    if (slot.chunk != header->chunk ||
        (slot.state != Slot::State::in_flight && slot.state != Slot::State::lost)) {
        ++stats_.duplicates_received;
        return;
    }
    if (!check_header(slot, *header) || !take_words(slot, *header, datagram.subspan(HEADER_BYTES))) {
        return;
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

// What must hold between our contribution and a result of the same collective (protocol.md, 3.2 and 6).
bool Engine::check_header(const Slot& slot, const Header& header) {
    const Kind own = kind_of(slot);
    if (header.kind != result_of(own)) {
        fail_chunk(FailureCode::kind_mismatch, slot,
                   "the result is of another kind than this rank's contribution; the ranks disagree on the "
                   "collective (do all submit the same sizes in the same order?)");
        return false;
    }
    if (own == Kind::exponent && header.checksum != config_.workers * slot.collective->fingerprint()) {
        fail_chunk(FailureCode::kind_mismatch, slot,
                   "the ranks disagree on the size, lane width or operation of the collective");
        return false;
    }
    if (!valid_exponent(header.exponent) || header.exponent < slot.exponent ||
        (slot.flags & ~header.flags) != 0) {
        fail_chunk(
            FailureCode::checksum, slot,
            "the result's exponent or flags are not a maximum that includes this rank's; it was corrupted");
        return false;
    }
    return true;
}

bool Engine::take_words(const Slot& slot, const Header& header, std::span<const std::byte> words) {
    if (slot.assignment.role == Role::exponent) {
        return true;
    }
    const Collective& collective = *slot.collective;
    const std::uint32_t checksum =
        collective.take(slot.assignment, words) + config_.workers * collective.fingerprint();
    if (checksum == header.checksum) {
        return true;
    }
    fail_chunk(
        FailureCode::checksum, slot,
        "the checksum of the result is " + std::to_string(header.checksum) + ", that of its lanes " +
            std::to_string(checksum) +
            "; a contribution is missing, doubled or damaged, or the ranks disagree on the collective");
    return false;
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
    collective.learn_exponent(block, header.exponent, (header.flags & FLAG_SPECIAL) != 0);
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
        const bool agreed = (header.flags & FLAG_NOT_READY) == 0;
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
        next->hear(block, header.exponent, (header.flags & FLAG_SPECIAL) != 0);
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
