// SPDX-License-Identifier: Apache-2.0
//
// The engine's receiving half: from a datagram to the chunks that it lets start; and failures.
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
    Slot& slot = slot_of(header->chunk);
    if (slot.chunk != header->chunk || slot.state == Slot::State::idle || !slot.sent) {
        ++stats_.duplicates_received;
        return;
    }
    if (!check_header(slot, *header) || !take_words(slot, *header, datagram.subspan(HEADER_BYTES))) {
        return;
    }
    ++stats_.packets_received;
    stats_.bytes_received += datagram.size();
    measure_rtt(slot, now);
    move_on(slot, *header);
}

bool Engine::for_us(const Header& header, std::size_t bytes) const {
    return (header.kind == Kind::exponent_result || header.kind == Kind::data_result) &&
           header.job == config_.job && header.rank == config_.rank && header.epoch == config_.epoch &&
           bytes == datagram_bytes(header.kind, config_.words);
}

// What must hold between our contribution and a result of the same collective (protocol.md, 3.2 and 6).
bool Engine::check_header(const Slot& slot, const Header& header) {
    const Header own = *decode(header_of(slot));
    if (header.kind != result_of(own.kind)) {
        fail_chunk(FailureCode::kind_mismatch, slot,
                   "the result is of another kind than this rank's contribution; the ranks disagree on the "
                   "collective (do all submit the same sizes in the same order?)");
        return false;
    }
    if (own.kind == Kind::exponent && header.checksum != config_.workers * own.checksum) {
        fail_chunk(FailureCode::kind_mismatch, slot,
                   "the ranks disagree on the size, lane width or operation of the collective");
        return false;
    }
    if (!valid_exponent(header.exponent) || header.exponent < own.exponent ||
        (own.flags & ~header.flags) != 0) {
        fail_chunk(
            FailureCode::checksum, slot,
            "the result's exponent or flags are not a maximum that includes this rank's; it was corrupted");
        return false;
    }
    return true;
}

bool Engine::take_words(const Slot& slot, const Header& header, std::span<const std::byte> words) {
    const Collective& collective = *slot.collective;
    std::uint32_t checksum = header.checksum;
    if (slot.role == Role::data) {
        checksum = dequantise(collective.format(), collective.exponent(slot.block), words,
                              collective.average(), collective.block(slot.block));
    } else if (slot.role == Role::special) {
        checksum = apply_classes(collective.format(), words, collective.block(slot.block));
    }
    if (checksum != header.checksum) {
        fail_chunk(FailureCode::checksum, slot,
                   "the checksum of the result is " + std::to_string(header.checksum) +
                       ", that of its lanes " + std::to_string(checksum) +
                       "; a contribution is missing, doubled or damaged");
        return false;
    }
    return true;
}

void Engine::measure_rtt(const Slot& slot, double now) {
    // Of a chunk sent again it is not known which sending was answered (Karn).
    if (slot.resent) {
        return;
    }
    unmeasured_since_ = now;
    if (rtt_.measure(now - slot.sent_at)) {
        end_longer_waits();
    }
}

// First sendings that were to wait longer than RTO, for want of a sample, no longer do.
void Engine::end_longer_waits() {
    for (std::uint64_t left = backoffs_ & ~std::uint64_t{1}; left != 0; left &= left - 1) {
        std::uint32_t next = Slot::NONE;
        for (std::uint32_t i = waiting_[static_cast<std::size_t>(std::countr_zero(left))].front();
             i != Slot::NONE; i = next) {
            next = slots_[i].next;
            if (!slots_[i].resent) {
                unlist(slots_[i]);
                start_timer(slots_[i], 0);
            }
        }
    }
}

// The slot's chunk is done: starts whatever waited for it.
void Engine::move_on(Slot& slot, const Header& header) {
    Collective& collective = *slot.collective;
    const Role role = slot.role;
    const std::size_t block = slot.block;
    const std::size_t position = slot.chunk - collective.base();
    unlist(slot);
    slot.state = Slot::State::idle;
    slot.chunk += config_.slots;
    --stats_.in_flight;
    ++stats_.chunks_completed;
    collective.chunk_done();

    if (role == Role::data) {
        collective.mark_summed(block);
    }
    if (position < collective.blocks()) {
        learn_exponent(collective, position, header);
    }
    if (role == Role::data && collective.closed() && collective.special(block)) {
        try_start(collective.special_chunk(block));
    }
    try_start(slot.chunk);
    if (collective.done()) {
        complete(collective.ticket());
        drop_finished();
    }
}

void Engine::learn_exponent(Collective& collective, std::size_t block, const Header& header) {
    collective.learn_exponent(block, header.exponent, (header.flags & FLAG_SPECIAL) != 0);
    try_start(collective.data_chunk(block));
    if (!collective.closed()) {
        return;
    }
    const auto specials = static_cast<std::uint32_t>(collective.special_blocks());
    stats_.special_blocks += specials;
    next_base_ = collective.base() + collective.chunks();
    next_base_known_ = true;
    start_chunks(next_base_ - specials, specials);
    place_collectives();
}

void Engine::complete(Ticket ticket) {
    completions_.push_back(ticket);
    ++stats_.collectives_completed;
}

void Engine::drop_finished() {
    while (placed_ > 0 && collectives_.front().done()) {
        collectives_.pop_front();
        --placed_;
    }
}

// The chunk that is furthest behind, of those sent or queued.
const Slot* Engine::oldest_outstanding() const {
    const Slot* oldest = nullptr;
    for (const Slot& slot : slots_) {
        if (slot.state != Slot::State::idle &&
            (oldest == nullptr || chunk_age(oldest->chunk, slot.chunk) > 0)) {
            oldest = &slot;
        }
    }
    return oldest;
}

std::string Engine::who() const {
    return "job " + std::to_string(config_.job) + ", rank " + std::to_string(config_.rank);
}

void Engine::fail(FailureCode code, const std::string& reason) {
    if (failure_) {
        return;
    }
    if (const Slot* oldest = oldest_outstanding()) {
        fail_chunk(code, *oldest, reason);
    } else {
        failure_ = Failure{code, who() + ": " + reason, std::nullopt, std::nullopt};
    }
}

void Engine::fail_chunk(FailureCode code, const Slot& slot, const std::string& reason) {
    const Ticket ticket = slot.collective->ticket();
    failure_ = Failure{code,
                       who() + ", collective " + std::to_string(ticket) + ", chunk " +
                           std::to_string(slot.chunk) + ": " + reason,
                       ticket, slot.chunk};
    send_queue_ = SlotList{};
    waiting_ = {};
    backoffs_ = 0;
    stats_.in_flight = 0;
}

}  // namespace inagg
