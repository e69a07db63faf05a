// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

namespace inagg {
namespace {

// Sendings of one chunk whose result was not usable. A result that was damaged on its way is right the next
// time; if the slot's sum is wrong, it never is.
constexpr unsigned MOST_REFUSALS = 3;

// Results. The kernel mostly puts no more into a message.
constexpr std::size_t LONGEST_RUN = 64;

}  // namespace

Engine::Engine(const EngineConfig& config)
    : config_(config),
      codec_(config_),
      collectives_(config.job.first_chunk),
      oldest_chunk_(config.job.first_chunk),
      recovery_(config_) {
    config.validate();
    ready_.resize(config.destinations());
    run_.reserve(LONGEST_RUN);
    slots_.reserve(config.job.slots);
    for (std::uint32_t index = 0; index < config.job.slots; ++index) {
        const std::uint32_t offset = (index - config.job.first_chunk) & (config.job.slots - 1);
        slots_.emplace_back(config.job.first_chunk + offset);
    }
}

// -- Starting chunks

void Engine::submit(Ticket ticket, const Request& request, double now) {
    expect_results(now);
    if (request.elements() == 0) {
        complete(ticket);
        return;
    }
    Collective& collective =
        collectives_.push(ticket, request, config_.job.workers, config_.job.slots, config_.job.words);
    if (collective.staging() != nullptr) {
        staged_.push_back(&collective);
    }
    place_collectives();
}

void Engine::scanned(Ticket ticket, double now) {
    if (Collective* collective = collectives_.find(ticket)) {
        expect_results(now);
        collective->set_scanned();
        place_collectives();
    }
}

void Engine::packed(Ticket ticket, std::size_t blocks, double now) {
    Collective* collective = collectives_.find(ticket);
    if (collective == nullptr) {
        return;
    }
    expect_results(now);
    const std::size_t before = collective->packed();
    collective->set_packed(blocks);
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
        collectives_.drop_settled();
    }
    return news;
}

// Called before chunks may become ready.
void Engine::expect_results(double now) {
    if (!anything_unfinished()) {
        recovery_.begin(now);
    }
}

void Engine::place_collectives() {
    while (Collective* collective = collectives_.place_next()) {
        if (collective->closed()) {
            close(*collective);
        }
        start_chunks(*collective, collective->base(), collective->chunks());
    }
}

void Engine::start_chunks(Collective& collective, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < std::min(count, config_.job.slots); ++i) {
        try_start(first + i, collective);
    }
}

// Makes a chunk ready if it is its slot's next one and all it needs is known. It is probably a chunk of
// `guess`, which has been placed.
void Engine::try_start(std::uint32_t chunk, Collective& guess) {
    Slot& slot = slot_of(chunk);
    if (slot.state() != Slot::State::idle || slot.chunk() != chunk) {
        return;
    }
    Collective* collective = guess.contains(chunk) ? &guess : collectives_.owner(chunk);
    if (collective == nullptr) {
        return;
    }
    const Assignment assignment = collective->assignment(chunk);
    if (!collective->sendable(assignment)) {
        return;
    }
    slot.start(*collective, assignment);
    ready_to(slot).insert_by_chunk(slot);
}

// -- Sending

// Whether the window lets a ready slot's packet out, behind `before` others to the same destination. It
// always lets out the oldest unfinished chunk: other ranks, whose windows are full, may be waiting for this
// rank's contribution to it.
bool Engine::in_window(const Slot& slot, unsigned before) const {
    return recovery_.window_open(slot, before) || slot.chunk() == oldest_chunk_;
}

bool Engine::window_limits() const {
    return std::ranges::any_of(ready_, [this](const SlotList& ready) {
        return !ready.empty() && !config_.at_home(ready.front()->chunk()) && !in_window(*ready.front(), 0);
    });
}

// Whether an older chunk waits for its lanes only, which a device is making. That one goes first: ranks that
// have sent it take the result of a later one as a sign that it is lost.
bool Engine::overtakes_packing(std::uint32_t chunk) const {
    return std::ranges::any_of(staged_, [&](const Collective* collective) {
        const std::size_t block = collective->packed();
        if (!collective->placed() || block == collective->blocks() || !collective->exponent_known(block)) {
            return false;
        }
        const std::uint32_t waiting = collective->data_chunk(block);
        return chunk_age(chunk, waiting) > 0 && slot_of(waiting).chunk() == waiting;
    });
}

// Packets are made as late as possible: the kernel then copies lanes that are still in the cache. Queries and
// packets that are sent again go first, whatever the window says: their chunks are in it already.
std::size_t Engine::to_send(std::span<std::byte> memory, std::span<Outgoing> out) {
    withdraw();
    std::size_t count = 0;
    std::uint32_t last_query = recovery_.last_query();
    unsigned thread = 0;  // of those that have been made
    const auto write = [&](Slot& slot) {
        const unsigned of_slot = config_.thread_of(slot.chunk());
        if (count > 0 && of_slot != thread) {
            return false;
        }
        thread = of_slot;
        const bool query = slot.state() == Slot::State::doubtful;
        std::span<std::byte> datagram;
        if (!query) {
            datagram = slot.collective().datagram(slot.assignment());
        }
        const std::size_t taken = datagram.empty() ? codec_.bytes(slot) : 0;
        if (count == out.size() || memory.size() < taken) {
            return false;
        }
        if (datagram.empty()) {
            datagram = memory.first(taken);
            memory = memory.subspan(taken);
        }
        out[count++] = {.datagram = datagram, .destination = config_.destination_of(slot.chunk())};
        if (query) {
            codec_.encode_query(slot, ++last_query, datagram);
            return true;
        }
        if (!slot.announced()) {
            announce(slot);
        }
        codec_.encode(slot, datagram);
        return true;
    };
    Slot* slot = recovery_.urgent().front();
    while (slot != nullptr && write(*slot)) {
        slot = SlotList::next(*slot);
    }
    if (slot != nullptr) {
        return count;  // sent() takes the urgent ones first
    }
    release(out.size() - count, memory.size());
    slot = leaving_.front();
    while (slot != nullptr && write(*slot)) {
        slot = SlotList::next(*slot);
    }
    return count;
}

// Lets out what the window permits, at most so many packets, and bytes in this host's memory. Chunks to one
// destination, and one thread there, leave together, so that they can be one message. Ranks begin with
// different servers.
void Engine::release(std::size_t most, std::size_t bytes) {
    for (std::size_t i = 0; i < ready_.size(); ++i) {
        SlotList& ready = ready_[((config_.ways_apart ? config_.rank : 0) + i) % ready_.size()];
        Slot* last = nullptr;
        Slot* slot = ready.front();
        for (unsigned before = 0; slot != nullptr && most > 0; ++before, --most) {
            const std::size_t needed = slot->collective().staging() == nullptr ? codec_.bytes(*slot) : 0;
            const bool other_thread =
                last != nullptr && config_.thread_of(slot->chunk()) != config_.thread_of(last->chunk());
            if (!may_leave(*slot, before) || needed > bytes || other_thread) {
                break;
            }
            bytes -= needed;
            last = slot;
            slot = SlotList::next(*slot);
        }
        if (last != nullptr) {
            leaving_.take_front(ready, *last);
        }
    }
}

// Takes back what was let out and has not left.
void Engine::withdraw() {
    while (Slot* slot = leaving_.front()) {
        leaving_.remove(*slot);
        ready_to(*slot).insert_by_chunk(*slot);
    }
}

void Engine::sent(std::size_t count, double now) {
    stats_.packets_sent += count;
    for (; count > 0 && !recovery_.urgent().empty(); --count) {
        const Slot& slot = *recovery_.urgent().front();
        stats_.bytes_sent += codec_.bytes(slot);
        recovery_.sent_urgent(now);
    }
    while (count > 0) {
        const Slot* slot = leaving_.front();
        Collective& collective = slot->collective();
        unsigned run = 0;
        for (; run < count && &slot->collective() == &collective; slot = SlotList::next(*slot)) {
            stats_.bytes_sent += codec_.bytes(*slot);
            ++run;
        }
        collective.chunk_sent(now);
        recovery_.sent(leaving_, run, collective.all_began(), now);
        count -= run;
    }
    withdraw();
    if (window_limits()) {
        recovery_.window_limited();
    }
}

// Decides which exponent and flags a slot's packet carries: those of a block P ahead of its own, or the
// exponent of its own block's outliers.
void Engine::announce(Slot& slot) {
    Collective& collective = slot.collective();
    const std::size_t block = slot.assignment().block;
    slot.announce(0, 0);
    if (slot.assignment().role == Role::exponent) {
        announce_block(slot, collective, block);
    } else if (slot.assignment().role == Role::data) {
        const std::size_t ahead = block + collective.lead();
        if (ahead < collective.blocks()) {
            announce_block(slot, collective, ahead);
        } else {
            announce_next(slot, ahead - collective.blocks());
        }
    } else if (slot.assignment().role == Role::classes && slot.assignment().part == 0) {
        slot.announce(0, collective.announce_outliers(block));
    }
}

void Engine::announce_block(Slot& slot, Collective& collective, std::size_t block) {
    const BlockExponent announced = collective.announce(block);
    const unsigned flags = (announced.special ? FLAG_SPECIAL : 0U) | (announced.wide ? FLAG_WIDE : 0U);
    slot.announce(static_cast<std::uint8_t>(flags), announced.code);
}

// For a packet of one of the last P blocks: announces a block of the next collective, if this rank had one
// when it made the first of those packets.
void Engine::announce_next(Slot& slot, std::size_t block) {
    Collective& collective = slot.collective();
    if (collective.invitation() == Invitation::open) {
        collective.invite(collectives_.next_in_line());
    }
    Collective* next = collective.successor();
    if (next == nullptr) {
        slot.announce(FLAG_NOT_READY, 0);
    } else if (collective.invitation() != Invitation::declined && block < next->lead()) {
        announce_block(slot, *next, block);
    }
}

// -- Receiving

// Results of chunks that were sent one after the other mostly come in one message: a run, for which the
// bookkeeping is done once.
void Engine::receive(std::span<const std::byte> message, std::size_t datagram_bytes, double now,
                     bool congested) {
    if (failure_) {
        return;
    }
    do {
        const auto datagram = message.first(std::min(datagram_bytes, message.size()));
        if (take(datagram, now, congested)) {
            message = message.subspan(datagram.size());
        } else {
            finish_run(now);
        }
    } while (!message.empty() && !failure_);
    finish_run(now);
}

// Takes a result that continues the run, or any datagram if the run is empty. Returns false if the datagram
// has to wait until the run is finished.
bool Engine::take(std::span<const std::byte> datagram, double now, bool congested) {
    const bool first = run_.empty();
    const std::optional<Header> header = decode(datagram);
    if (!header || !codec_.is_result(*header, datagram.size())) {
        if (first && header && codec_.is_answer(*header, datagram.size())) {
            hear(*header, now);
        } else {
            stats_.discarded += first ? 1 : 0;
        }
        return first;
    }
    recovery_.heard_of(header->chunk);
    Slot& slot = slot_of(header->chunk);
    if (slot.chunk() != header->chunk || !slot.outstanding()) {
        if (first) {
            ++stats_.duplicates_received;
            recovery_.heard(now);
        }
        return first;
    }
    if (!first && (!slot.follows(*run_.back().slot) || run_.size() == LONGEST_RUN)) {
        return false;
    }
    const std::span<const std::byte> words = datagram.subspan(HEADER_BYTES);
    if (const std::optional<Fault> fault = codec_.fault_in(slot, *header, words)) {
        if (first) {
            refuse(slot, *fault);
        }
        return first;
    }
    if (slot.kind() == Kind::data) {
        slot.collective().take(slot.assignment(), words);
    }
    stats_.bytes_received += datagram.size();
    congested |= (header->announced.flags & p4::FLAG_CONGESTED) != 0;
    run_.push_back({&slot, header->announced, congested});
    return true;
}

void Engine::finish_run(double now) {
    if (run_.empty()) {
        return;
    }
    recovery_.heard(now);
    stats_.packets_received += run_.size();
    const Collective& collective = run_.front().slot->collective();
    if (!collective.all_began()) {
        // A collective's first result comes when the last rank has begun it.
        const double waited = now - collective.first_sent().value_or(now) - recovery_.least_rtt();
        stats_.waited += std::max(waited, 0.0);
        if (collective.context() != 0 && waited > stats_.longest_wait) {
            stats_.longest_wait = waited;
            stats_.longest_wait_context = collective.context();
        }
    }
    const auto congested = static_cast<unsigned>(
        std::ranges::count_if(run_, [](const Result& result) { return result.congested; }));
    stats_.congested += congested;
    recovery_.finished(*run_.front().slot, *run_.back().slot, static_cast<unsigned>(run_.size()), congested,
                       now);
    for (const Result& result : run_) {
        finish_chunk(*result.slot, result.announced);
    }
    run_.clear();
}

// Takes the answer to a query.
void Engine::hear(const Header& answer, double now) {
    recovery_.heard_of(answer.chunk);
    Slot& slot = slot_of(answer.chunk);
    const bool again = (answer.announced.flags & p4::FLAG_AGAIN) != 0;
    if (slot.chunk() != answer.chunk || !recovery_.answered(slot, answer.checksum, again, now)) {
        ++stats_.duplicates_received;
    }
}

// A wrong result changes no timer. It counts once for each sending, so that copies of one do not add up.
void Engine::refuse(Slot& slot, const Fault& fault) {
    ++stats_.corrupt;
    if (slot.urgent()) {
        return;
    }
    if (slot.refuse() == MOST_REFUSALS) {
        fail_chunk(fault.code, slot, fault.reason);
        return;
    }
    recovery_.refused(slot);
}

// Moves a slot to its next chunk, and starts the chunks that waited for this one.
void Engine::finish_chunk(Slot& slot, const Announcement& announced) {
    Collective& collective = slot.collective();
    const auto [role, part, block] = slot.assignment();
    slot.finish(config_.job.slots);
    while (slot_of(oldest_chunk_).chunk() != oldest_chunk_) {
        ++oldest_chunk_;
    }
    ++stats_.chunks_completed;
    collective.chunk_done();

    if (role == Role::exponent) {
        learn_exponent(collective, block, announced);
    } else if (role == Role::data) {
        collective.mark_summed(block);
        const std::size_t ahead = block + collective.lead();
        if (ahead < collective.blocks()) {
            learn_exponent(collective, ahead, announced);
        } else {
            learn_next(collective, ahead - collective.blocks(), announced);
        }
        if (collective.closed() && collective.special(block)) {
            start_chunks(collective, collective.class_chunk(block), collective.class_chunks());
        }
    } else if (role == Role::classes && part == 0 && collective.wide(block)) {
        collective.learn_outlier_exponent(block, announced.exponent);
        try_start(collective.outlier_chunk(block), collective);
    }
    try_start(slot.chunk(), collective);
    if (collective.done()) {
        complete(collective.ticket());
        collectives_.drop_settled();
    }
}

void Engine::learn_exponent(Collective& collective, std::size_t block, const Announcement& announced) {
    collective.learn_exponent(block, announced);
    if (!collective.placed()) {
        return;
    }
    try_start(collective.data_chunk(block), collective);
    if (collective.closed()) {
        close(collective);
    }
}

// Takes what a result announces of the next collective's block. The result that has block 0 says whether all
// ranks announce that collective.
void Engine::learn_next(Collective& collective, std::size_t block, const Announcement& announced) {
    if (block == 0 && collective.invitation() == Invitation::pending) {
        collective.answer_invitation((announced.flags & FLAG_NOT_READY) == 0);
        place_collectives();
    }
    Collective* next = collective.successor();
    if (next == nullptr || block >= next->lead()) {
        return;
    }
    if (collective.invitation() == Invitation::agreed) {
        learn_exponent(*next, block, announced);
    } else if (collective.invitation() == Invitation::pending) {
        next->hear_exponent(block, announced);
    }
}

// All exponents of a placed collective are known, and with them its last chunks and its end.
void Engine::close(Collective& collective) {
    const auto apart = static_cast<std::uint32_t>(collective.chunks_apart());
    stats_.special_blocks += collective.special_blocks();
    stats_.wide_blocks += collective.wide_blocks();
    collectives_.closed(collective);
    start_chunks(collective, collective.end() - apart, apart);
    place_collectives();
}

void Engine::complete(Ticket ticket) {
    finish_streams();
    completions_.push_back(ticket);
    ++stats_.collectives_completed;
}

std::optional<Ticket> Engine::next_completion() {
    if (completions_.empty()) {
        return std::nullopt;
    }
    const Ticket ticket = completions_.front();
    completions_.pop_front();
    return ticket;
}

// -- Time

void Engine::advance(double now) {
    if (!anything_unfinished()) {
        return;
    }
    if (recovery_.expired(now)) {
        fail(FailureCode::give_up, "no result was received for " +
                                       std::to_string(now - recovery_.quiet_since()) +
                                       " s; is the switch up, and do all ranks take part?");
        return;
    }
    recovery_.advance(collectives_.front().all_began(), now);
    if (const Slot* slot = recovery_.silent()) {
        fail_chunk(FailureCode::silent, *slot,
                   "no answer for " + std::to_string(config_.policy.silent) + " s");
    }
}

std::optional<double> Engine::deadline() const {
    return anything_unfinished() ? std::optional(recovery_.deadline()) : std::nullopt;
}

// -- Failure

void Engine::fail(FailureCode code, const std::string& reason) {
    if (failure_) {
        return;
    }
    if (const Slot* slot = oldest_unfinished()) {
        fail_chunk(code, *slot, reason);
    } else {
        failure_ = Failure{code, config_.who() + ": " + reason, std::nullopt, std::nullopt};
    }
}

void Engine::fail_chunk(FailureCode code, const Slot& slot, const std::string& reason) {
    const Ticket ticket = slot.collective().ticket();
    failure_ = Failure{code,
                       config_.who() + ", collective " + std::to_string(ticket) + ", chunk " +
                           std::to_string(slot.chunk()) + ": " + reason,
                       ticket, slot.chunk()};
    std::ranges::fill(ready_, SlotList{});
    leaving_ = SlotList{};
    recovery_.clear();
}

const Slot* Engine::oldest_unfinished() const {
    const Slot* oldest = nullptr;
    for (const Slot& slot : slots_) {
        const bool unfinished = slot.state() != Slot::State::idle;
        if (unfinished && (oldest == nullptr || chunk_age(oldest->chunk(), slot.chunk()) > 0)) {
            oldest = &slot;
        }
    }
    return oldest;
}

// -- What is going on

EngineStats Engine::stats() const {
    EngineStats stats = stats_;
    recovery_.report(stats);
    return stats;
}

Activity Engine::activity() const {
    if (!anything_unfinished()) {
        return collectives_.empty() ? Activity::idle : Activity::device;
    }
    if (!collectives_.front().all_began()) {
        return Activity::beginning;
    }
    return window_limits() ? Activity::window : Activity::answers;
}

}  // namespace inagg
