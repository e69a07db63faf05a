// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

namespace inagg {
Engine::Engine(const EngineConfig& config)
    : config_(config),
      next_base_(config.first_chunk),
      oldest_unfinished_(config.first_chunk),
      rtt_(config.policy),
      window_(config.window_bound()) {
    config.validate();
    for (unsigned rank = 0; rank < config.workers; ++rank) {
        rank_marks_ += mark_of_rank(rank);
    }
    slots_.resize(config.slots);
    for (std::uint32_t i = 0; i < config.slots; ++i) {
        const std::uint32_t chunk = config.first_chunk + i;
        slot_of(chunk).chunk = chunk;
    }
}

Ticket Engine::submit(const Request& request, double now) {
    expect_answers(now);
    const Ticket ticket = ++last_ticket_;
    if (request.elements() == 0) {
        complete(ticket);
        return ticket;
    }
    Collective& collective =
        collectives_.emplace_back(ticket, request, config_.workers, config_.slots, config_.words);
    if (collective.staging() != nullptr) {
        staged_.push_back(&collective);
    }
    place_collectives();
    return ticket;
}

// Before something may become outstanding: from now on silence counts.
void Engine::expect_answers(double now) {
    if (waiting_ == 0) {
        quiet_since_ = now;
    }
}

Collective* Engine::find_ticket(Ticket ticket) {
    const auto found = std::ranges::find(collectives_, ticket, &Collective::ticket);
    return found == collectives_.end() ? nullptr : &*found;
}

void Engine::scanned(Ticket ticket, double now) {
    if (Collective* collective = find_ticket(ticket)) {
        expect_answers(now);
        collective->scanned = true;
        place_collectives();
    }
}

void Engine::packed(Ticket ticket, std::size_t blocks, double now) {
    Collective* collective = find_ticket(ticket);
    if (collective == nullptr) {
        return;
    }
    expect_answers(now);
    const std::size_t before = std::exchange(collective->packed, blocks);
    for (std::size_t block = before; collective->placed() && block < blocks; ++block) {
        try_start(collective->data_chunk(block), *collective);
    }
}

bool Engine::report_progress() {
    bool news = false;
    for (Collective* collective : staged_) {
        news |= collective->report();
    }
    if (failure_) {
        staged_.clear();
    } else if (std::erase_if(staged_, [](const Collective* collective) { return collective->settled(); }) >
               0) {
        drop_settled();
    }
    return news;
}

// The next to be placed, if there is one and this rank can take part in it.
Collective* Engine::next_in_line() {
    return placed_ < collectives_.size() && collectives_[placed_].scanned ? &collectives_[placed_] : nullptr;
}

// Gives the next collectives their first chunk, as far as that is known: where the one before ends, and
// whether its last blocks announce the first of this one.
void Engine::place_collectives() {
    while (next_base_known_ && next_in_line() != nullptr) {
        if (placed_ > 0 && (collectives_[placed_ - 1].invitation == Invitation::open ||
                            collectives_[placed_ - 1].invitation == Invitation::pending)) {
            return;
        }
        Collective& collective = collectives_[placed_++];
        collective.place(next_base_);
        next_base_known_ = false;
        if (collective.closed()) {
            close(collective);
        }
        start_chunks(collective, collective.base(), collective.chunks());
    }
}

void Engine::start_chunks(Collective& collective, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < std::min(count, config_.slots); ++i) {
        try_start(first + i, collective);
    }
}

// The collective that a chunk is known to belong to.
Collective* Engine::find(std::uint32_t chunk) {
    if (placed_ == 0) {
        return nullptr;
    }
    const std::uint32_t front = collectives_.front().base();
    const auto placed_end = collectives_.begin() + static_cast<std::ptrdiff_t>(placed_);
    const auto behind = std::upper_bound(
        collectives_.begin(), placed_end, chunk - front,
        [front](std::uint32_t offset, const Collective& other) { return offset < other.base() - front; });
    // upper_bound finds none before the front, since nothing is older than the front.
    Collective& collective = *std::prev(behind);
    return collective.contains(chunk) ? &collective : nullptr;
}

// Makes a chunk ready if it is its slot's next one and all it needs is known. It is probably a chunk of
// `guess`, which has been placed.
void Engine::try_start(std::uint32_t chunk, Collective& guess) {
    Slot& slot = slot_of(chunk);
    if (slot.state != Slot::State::idle || slot.chunk != chunk) {
        return;
    }
    Collective* collective = guess.contains(chunk) ? &guess : find(chunk);
    if (collective == nullptr) {
        return;
    }
    const Assignment assignment = collective->assignment(chunk);
    if ((assignment.role == Role::data && !collective->sendable(assignment.block)) ||
        (assignment.role == Role::special && !collective->summed(assignment.block))) {
        return;
    }
    slot.assignment = assignment;
    slot.collective = collective;
    slot.announced = false;
    slot.resent = false;
    slot.refused = 0;
    ++waiting_;
    move(slot, Slot::State::ready);
}

SlotList& Engine::list_of(Slot::State state) {
    switch (state) {
        case Slot::State::ready:
            return ready_;
        case Slot::State::lost:
            return lost_;
        default:
            return in_flight_;
    }
}

void Engine::move(Slot& slot, Slot::State state) {
    const std::uint32_t index = index_of(slot.chunk);
    if (slot.state != Slot::State::idle) {
        list_of(slot.state).remove(slots_, index);
        fresh_ -= slot.state == Slot::State::in_flight && !slot.resent ? 1 : 0;
    }
    slot.state = state;
    if (state == Slot::State::ready) {
        ready_.insert_by_chunk(slots_, index);
    } else if (state != Slot::State::idle) {
        list_of(state).push_back(slots_, index);
        fresh_ += state == Slot::State::in_flight && !slot.resent ? 1 : 0;
    }
}

// Whether the window lets a ready slot's packet out, behind so many others. The oldest chunk that is not done
// always: without that rank's contribution, others whose windows are full may be waiting for it.
bool Engine::in_window(std::uint32_t index, unsigned before) const {
    return fresh_ + before < window_.chunks() || slots_[index].chunk == oldest_unfinished_;
}

// Whether an older chunk waits for nothing but its lanes, which a device is making. That one goes first:
// other ranks, which have sent it, take an answer to what they sent later as a sign that it is lost.
bool Engine::overtakes_packing(std::uint32_t chunk) const {
    return std::ranges::any_of(staged_, [&](const Collective* collective) {
        const std::size_t block = collective->packed;
        if (!collective->placed() || block == collective->blocks() || !collective->exponent_known(block)) {
            return false;
        }
        const std::uint32_t waiting = collective->data_chunk(block);
        return chunk_age(chunk, waiting) > 0 && slots_[index_of(waiting)].chunk == waiting;
    });
}

Kind Engine::kind_of(const Slot& slot) const {
    return slot.assignment.role == Role::exponent ? Kind::exponent : Kind::data;
}

// Makes a slot's packet. That is done as late as possible, since lanes just written are still in the cache
// when the kernel copies them; and again for each sending: what a packet is made of stays until its result
// is in.
void Engine::build(Slot& slot, std::span<std::byte> datagram) {
    if (!slot.announced) {
        announce(slot);
    }
    std::uint32_t checksum =
        slot.collective->fingerprint() + mark_of_chunk(slot.chunk) + mark_of_rank(config_.rank);
    if (slot.assignment.role != Role::exponent) {
        checksum += slot.collective->fill(slot.assignment, datagram.subspan(HEADER_BYTES));
    }
    encode({.kind = kind_of(slot),
            .rank = static_cast<std::uint8_t>(config_.rank),
            .job = config_.job,
            .announced = Announcement::of(slot.flags, slot.exponent),
            .epoch = config_.epoch,
            .chunk = slot.chunk,
            .checksum = checksum},
           datagram.first<HEADER_BYTES>());
}

// Finds the exponent and the flags that a slot's packet carries.
void Engine::announce(Slot& slot) {
    Collective& collective = *slot.collective;
    const std::size_t block = slot.assignment.block;
    slot.announced = true;
    slot.exponent = 0;
    slot.flags = 0;
    if (slot.assignment.role == Role::exponent) {
        announce_block(slot, collective, block);
    } else if (slot.assignment.role == Role::data) {
        const std::size_t ahead = block + collective.lead();
        if (ahead < collective.blocks()) {
            announce_block(slot, collective, ahead);
        } else {
            announce_next(slot, ahead - collective.blocks());
        }
    }
}

void Engine::announce_block(Slot& slot, Collective& collective, std::size_t block) {
    const BlockExponent announced = collective.announce(block);
    slot.exponent = announced.code;
    slot.flags = announced.special ? FLAG_SPECIAL : 0;
}

// In a packet of one of the last P blocks: the same for a block of the next collective, if this rank had one
// when it built the first of those packets.
void Engine::announce_next(Slot& slot, std::size_t block) {
    Collective& collective = *slot.collective;
    if (collective.invitation == Invitation::open) {
        collective.successor = next_in_line();
        collective.invitation = collective.successor != nullptr ? Invitation::pending : Invitation::declined;
    }
    if (collective.successor == nullptr) {
        slot.flags = FLAG_NOT_READY;
    } else if (collective.invitation != Invitation::declined && block < collective.successor->lead()) {
        announce_block(slot, *collective.successor, block);
    }
}

// What is to be sent again goes first, and whatever the window says: it is in the window already.
std::size_t Engine::to_send(std::span<std::byte> memory, std::span<std::span<const std::byte>> out) {
    std::size_t count = 0;
    const auto write = [&](Slot& slot) {
        std::span<std::byte> datagram = slot.collective->datagram(slot.assignment);
        const std::size_t taken = datagram.empty() ? bytes_of(slot) : 0;
        if (count == out.size() || memory.size() < taken) {
            return false;
        }
        if (datagram.empty()) {
            datagram = memory.first(taken);
            memory = memory.subspan(taken);
        }
        build(slot, datagram);
        out[count++] = datagram;
        return true;
    };
    std::uint32_t i = lost_.front();
    while (i != Slot::NONE && write(slots_[i])) {
        i = slots_[i].next;
    }
    unsigned fresh = 0;
    i = ready_.front();
    while (i != Slot::NONE && may_leave(i, fresh) && write(slots_[i])) {
        ++fresh;
        i = slots_[i].next;
    }
    return count;
}

void Engine::sent(std::size_t count, double now) {
    if (count > 0 && outstanding_ == 0) {
        probed_at_ = now;
    }
    for (; count > 0; --count) {
        Slot& slot = slots_[(lost_.empty() ? ready_ : lost_).front()];
        if (slot.state == Slot::State::lost) {
            slot.resent = true;
            ++stats_.retransmits;
        } else {
            slot.clocked = slot.collective->begun() || slot.collective->announced() > 0;
            ++outstanding_;
        }
        ++stats_.packets_sent;
        stats_.bytes_sent += bytes_of(slot);
        slot.sent_at = now;
        slot.collective->first_sent = slot.collective->first_sent.value_or(now);
        slot.order = ++sendings_;
        move(slot, Slot::State::in_flight);
    }
    round_.limited |= !ready_.empty() && !in_window(ready_.front(), 0);
}

std::optional<Ticket> Engine::next_completion() {
    if (completions_.empty()) {
        return std::nullopt;
    }
    const Ticket ticket = completions_.front();
    completions_.pop_front();
    return ticket;
}

EngineStats Engine::stats() const {
    EngineStats stats = stats_;
    stats.in_flight = outstanding_;
    stats.window = window_.chunks();
    stats.window_limit = config_.window_bound();
    stats.rtt_samples = rtt_.samples();
    stats.least_rtt = least_rtt_.value();
    stats.srtt = rtt_.srtt();
    stats.rttvar = rtt_.rttvar();
    stats.rto = rtt_.rto();
    return stats;
}

Activity Engine::activity() const {
    if (waiting_ == 0) {
        return collectives_.empty() ? Activity::idle : Activity::device;
    }
    const Collective& oldest = collectives_.front();
    if (!oldest.begun() && oldest.announced() == 0) {
        return Activity::beginning;
    }
    const bool held_back = !ready_.empty() && !in_window(ready_.front(), 0);
    return held_back ? Activity::window : Activity::answers;
}

}  // namespace inagg
