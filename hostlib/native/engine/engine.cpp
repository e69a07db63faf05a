// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

#include "wire/require.hpp"

namespace inagg {
namespace {

// Sendings of one chunk whose result was not usable. A result that was damaged on its way is right the next
// time; if the slot's sum is wrong, it never is.
constexpr unsigned MOST_REFUSALS = 3;

// Results. The kernel mostly puts no more into a message.
constexpr std::size_t LONGEST_RUN = 64;

// The lanes of a chunk or two leave nothing of the slots in the cache next to the processor.
template <typename Item>
void prefetch_slot(const std::vector<Item>& items, const Item& now) {
    constexpr std::ptrdiff_t AHEAD = 2;
    if (&items.back() - &now >= AHEAD) {
        __builtin_prefetch((&now)[AHEAD].slot);
    }
}

}  // namespace

Engine::Engine(const EngineConfig& config)
    : config_(config),
      codec_(config_),
      collectives_(config.job.first_chunk),
      oldest_chunk_(config.job.first_chunk),
      recovery_(config_) {
    config.validate();
    ready_.resize(config.queues());
    leaving_.resize(config.packet_threads);
    run_.reserve(LONGEST_RUN);
    if (config.keeps_results) {
        kept_.emplace(config.job);
    }
    slots_.reserve(config.job.slots);
    for (std::uint32_t index = 0; index < config.job.slots; ++index) {
        slots_.emplace_back(config.job.first_in_slot_of(index));
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

void Engine::filled(Ticket ticket, double now) {
    if (Collective* collective = collectives_.find(ticket)) {
        expect_results(now);
        collective->set_filled();
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
    ready_with(slot).insert_by_chunk(slot);
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

bool Engine::anything_to_send(unsigned packet_thread) const {
    if (frozen_) {
        return false;
    }
    const SlotList& urgent = recovery_.urgent();
    for (const Slot* slot = urgent.front(); slot != nullptr; slot = SlotList::next(*slot)) {
        if (urgent_to(*slot, packet_thread)) {
            return true;
        }
    }
    for (std::size_t queue = packet_thread; queue < ready_.size(); queue += config_.packet_threads) {
        if (!ready_[queue].empty() && may_leave(*ready_[queue].front(), 0)) {
            return true;
        }
    }
    return false;
}

// Queries and packets that are sent again go first, whatever the window says: their chunks are in it already.
// Then what the window permits, queue by queue, so that chunks to one destination can be one message. Ranks
// begin with different servers.
void Engine::choose(std::span<std::byte> memory, std::size_t most, Departures& departures) {
    const unsigned packet_thread = departures.packet_thread_;
    std::optional<unsigned> strand;
    const auto take = [&](Slot& slot) {
        const bool query = slot.state() == Slot::State::doubtful;
        std::span<std::byte> datagram;
        if (!query) {
            datagram = slot.collective().datagram(slot.assignment());
        }
        const std::size_t needed = datagram.empty() ? codec_.bytes(slot) : 0;
        const unsigned strand_of_slot = config_.strand_of(slot.chunk());
        if (departures.packets_.size() == most || needed > memory.size() ||
            strand_of_slot != strand.value_or(strand_of_slot)) {
            return false;
        }
        strand = strand_of_slot;
        if (datagram.empty()) {
            datagram = memory.first(needed);
            memory = memory.subspan(needed);
        }
        add(slot, datagram, departures);
        return true;
    };
    for (Slot* slot = recovery_.urgent().front(); slot != nullptr; slot = SlotList::next(*slot)) {
        if (urgent_to(*slot, packet_thread) && !take(*slot)) {
            return;
        }
    }
    for (unsigned i = 0; i < config_.destinations(); ++i) {
        const unsigned destination = ((config_.ways_apart ? config_.rank : 0) + i) % config_.destinations();
        SlotList& ready = ready_[destination * config_.packet_threads + packet_thread];
        Slot* last = nullptr;
        Slot* slot = ready.front();
        for (unsigned before = 0; slot != nullptr && may_leave(*slot, before) && take(*slot); ++before) {
            last = slot;
            slot = SlotList::next(*slot);
        }
        if (last != nullptr) {
            leaving_[packet_thread].take_front(ready, *last);
        }
    }
}

void Engine::add(Slot& slot, std::span<std::byte> datagram, Departures& departures) {
    auto& packet = departures.packets_.emplace_back(&slot, datagram);
    const Role role = slot.assignment().role;
    if (slot.state() == Slot::State::doubtful) {
        packet.query = recovery_.number_query();
        codec_.encode_query(slot, packet.query, datagram);
        packet.made = true;
    } else {
        if (!slot.announced()) {
            plan_announcement(packet);
        }
        if (role == Role::classes || role == Role::outliers) {
            codec_.encode(slot, datagram);
            packet.made = true;
        }
    }
    slot.set_busy(true);
}

// Packets are made as late as possible: the kernel then copies lanes that are still in the cache.
void Engine::make(Departures& departures) const {
    departures.datagrams_.reserve(departures.packets_.size());
    for (const Departures::Packet& packet : departures.packets_) {
        prefetch_slot(departures.packets_, packet);
        if (packet.announced != nullptr) {
            packet.slot->announce(packet.announced->announce(packet.block));
        }
        if (!packet.made) {
            codec_.encode(*packet.slot, packet.datagram);
        }
        departures.datagrams_.push_back(
            {.datagram = packet.datagram, .destination = config_.destination_of(packet.slot->chunk())});
    }
}

// Takes back what was let out and has not left.
void Engine::withdraw(unsigned packet_thread) {
    SlotList& leaving = leaving_[packet_thread];
    while (Slot* slot = leaving.front()) {
        leaving.remove(*slot);
        ready_with(*slot).insert_by_chunk(*slot);
    }
}

void Engine::sent(Departures& departures, std::size_t count, double now) {
    SlotList& leaving = leaving_[departures.packet_thread_];
    const std::span packets(departures.packets_);
    std::span left = packets.first(failure_ ? 0 : count);
    for (const Departures::Packet& packet : packets.subspan(left.size())) {
        packet.slot->set_busy(false);
    }
    stats_.packets_sent += left.size();
    while (!left.empty()) {
        Slot& slot = *left.front().slot;
        if (slot.urgent()) {
            stats_.bytes_sent += left.front().datagram.size();
            recovery_.sent_urgent(slot, left.front().query, now);
            left = left.subspan(1);
            continue;
        }
        Collective& collective = slot.collective();
        unsigned run = 0;
        for (; run < left.size() && &left[run].slot->collective() == &collective; ++run) {
            stats_.bytes_sent += left[run].datagram.size();
        }
        collective.chunk_sent(now);
        recovery_.sent(leaving, run, collective.all_began(), now);
        left = left.subspan(run);
    }
    withdraw(departures.packet_thread_);
    departures.packets_.clear();
    departures.datagrams_.clear();
    if (window_limits()) {
        recovery_.window_limited();
    }
}

// Decides which exponent and flags a packet carries: those of a block P ahead of its own, or the exponent of
// its own block's outliers.
void Engine::plan_announcement(Departures::Packet& packet) {
    Slot& slot = *packet.slot;
    Collective& collective = slot.collective();
    const auto [role, part, block] = slot.assignment();
    slot.announce(0, 0);
    if (role == Role::exponent) {
        packet.announces(collective, block);
    } else if (role == Role::data) {
        const std::size_t ahead = block + collective.lead();
        if (ahead < collective.blocks()) {
            packet.announces(collective, ahead);
        } else {
            plan_next(packet, ahead - collective.blocks());
        }
    } else if (role == Role::classes && part == 0) {
        slot.announce(0, collective.announce_outliers(block));
    }
}

// For a packet of one of the last P blocks: announces a block of the next collective, if this rank had one
// when it made the first of those packets.
void Engine::plan_next(Departures::Packet& packet, std::size_t block) {
    Collective& collective = packet.slot->collective();
    if (collective.invitation() == Invitation::open) {
        collective.invite(collectives_.next_in_line());
    }
    Collective* next = collective.successor();
    if (next == nullptr) {
        packet.slot->announce(FLAG_NOT_READY, 0);
    } else if (collective.invitation() != Invitation::declined && block < next->lead()) {
        // At once: if another thread learns that the invitation is declined, it may begin with this block.
        packet.slot->announce(next->announce(block));
    }
}

// -- Receiving

void Engine::receive(std::span<const std::byte> message, std::size_t datagram_bytes, double now,
                     bool congested) {
    Arrivals arrivals;
    read(message, datagram_bytes, congested, arrivals);
    claim(arrivals, now);
    check(arrivals);
    finish(arrivals, now);
}

void Engine::read(std::span<const std::byte> message, std::size_t datagram_bytes, bool congested,
                  Arrivals& arrivals, MessageMemory* memory) const {
    if (message.size() < KeptResults::LEAST_HELD) {
        memory = nullptr;
    }
    do {
        const auto datagram = message.first(std::min(datagram_bytes, message.size()));
        std::optional<Header> header = decode(datagram);
        if (header && codec_.is_for_us(*header, datagram.size())) {
            header->chunk = codec_.chunk_of(header->chunk);
            const bool marked = (header->announced.flags & p4::FLAG_CONGESTED) != 0;
            arrivals.datagrams_.push_back({.header = *header,
                                           .congested = congested || marked,
                                           .words = datagram.subspan(HEADER_BYTES),
                                           .memory = memory});
        } else {
            ++arrivals.discarded_;
        }
        message = message.subspan(datagram.size());
    } while (!message.empty());
}

// A result may be there twice: the second one counts if the first is faulty.
void Engine::claim(Arrivals& arrivals, double now) {
    if (failure_ || frozen_) {
        return;
    }
    stats_.discarded += std::exchange(arrivals.discarded_, 0);
    const auto is_here = [&](const Slot& slot) {
        return std::ranges::any_of(arrivals.datagrams_,
                                   [&](const auto& other) { return other.slot == &slot; });
    };
    for (Arrivals::Datagram& result : arrivals.datagrams_) {
        recovery_.heard_of(result.header.chunk);
        Slot& slot = slot_of(result.header.chunk);
        if (is_query(result.header.kind)) {
            hear(result.header, now);
            continue;
        }
        if (slot.chunk() == result.header.chunk && slot.outstanding() && (!slot.busy() || is_here(slot))) {
            slot.set_busy(true);
            result.slot = &slot;
        } else {
            ++stats_.duplicates_received;
            recovery_.heard(now);
        }
    }
}

void Engine::check(Arrivals& arrivals) const {
    std::optional<KeptResults::Batch> keeping;
    if (kept_) {
        keeping.emplace(*kept_);
    }
    for (Arrivals::Datagram& result : arrivals.datagrams_) {
        prefetch_slot(arrivals.datagrams_, result);
        if (result.slot == nullptr) {
            continue;
        }
        const Slot& slot = *result.slot;
        result.faulty = !codec_.is_right(slot, result.header, result.words);
        if (!result.faulty && keeping) {
            keeping->put(slot.chunk(), result.whole(), result.memory);
        }
        if (!result.faulty && slot.kind() == Kind::data && slot.collective().taken_alone(slot.assignment())) {
            slot.collective().take(slot.assignment(), result.words);
            result.taken = true;
        }
    }
    finish_streams();
}

// Results of chunks that were sent one after the other mostly come in one message: a run, for which the
// bookkeeping is done once.
std::size_t Engine::finish(Arrivals& arrivals, double now) {
    const std::uint64_t before = stats_.packets_received;
    for (const Arrivals::Datagram& result : arrivals.datagrams_) {
        if (result.slot == nullptr || failure_) {
            continue;
        }
        Slot& slot = *result.slot;
        if (!run_.empty() &&
            (result.faulty || run_.size() == LONGEST_RUN || !slot.follows(*run_.back().slot))) {
            finish_run(now);
        }
        slot.set_busy(false);
        if (slot.chunk() != result.header.chunk) {
            ++stats_.duplicates_received;
        } else if (result.faulty) {
            refuse(slot, *codec_.fault_in(slot, result.header, result.words));
        } else {
            if (slot.kind() == Kind::data && !result.taken) {
                slot.collective().take(slot.assignment(), result.words);
                finish_streams();
            }
            stats_.bytes_received += HEADER_BYTES + result.words.size();
            run_.push_back({&slot, result.header.announced, result.congested});
        }
    }
    arrivals.datagrams_.clear();
    if (!failure_) {
        finish_run(now);
    }
    return stats_.packets_received - before;
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
    Slot& slot = slot_of(answer.chunk);
    const bool again = (answer.announced.flags & p4::FLAG_AGAIN) != 0;
    const bool late = slot.chunk() != answer.chunk || slot.busy();  // the result is here
    if (late || !recovery_.answered(slot, answer.checksum, again, now)) {
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
    if (frozen_ || !anything_unfinished()) {
        return;
    }
    if (recovery_.expired(now)) {
        fail(FailureCode::give_up, "no result was received for " +
                                       std::to_string(now - recovery_.quiet_since()) +
                                       " s; is the switch up, and do all ranks take part?");
        return;
    }
    recovery_.advance(collectives_.front().all_began(), now);
    if (const Slot* slot = recovery_.silent(); slot != nullptr && !config_.outlasts_silence) {
        fail_chunk(FailureCode::silent, *slot,
                   "no answer for " + std::to_string(config_.policy.silent) + " s");
    }
}

std::optional<double> Engine::deadline() const {
    return !frozen_ && anything_unfinished() ? std::optional(recovery_.deadline()) : std::nullopt;
}

// -- A change of way

std::vector<std::uint32_t> Engine::next_chunks() const {
    std::vector<std::uint32_t> chunks;
    for (const Slot& slot : slots_) {
        chunks.push_back(slot.chunk());
    }
    return chunks;
}

std::span<const std::byte> Engine::kept(std::uint32_t chunk) const {
    return kept_ ? kept_->of(chunk) : std::span<const std::byte>{};
}

bool Engine::fill(std::span<const std::byte> datagram, double now) {
    if (!frozen_ || failure_) {
        return false;
    }
    const std::uint64_t before = stats_.packets_received;
    frozen_ = false;
    try {
        receive(datagram, datagram.size(), now);
    } catch (...) {
        frozen_ = true;
        throw;
    }
    frozen_ = true;
    return stats_.packets_received > before;
}

void Engine::require_same_job(const EngineConfig& config) const {
    config.validate();
    const JobShape &from = config_.job, &to = config.job;
    require(frozen_ && !failure_, "only a frozen engine goes on");
    require(to.slots == from.slots && to.words == from.words && to.workers == from.workers &&
                config.rank == config_.rank,
            "a job goes on with the same slots, words, workers and ranks");
}

void Engine::go_on(const EngineConfig& config, double now) {
    require_same_job(config);
    config_ = config;
    codec_.change_way(next_chunks());
    recovery_.change_way(now);
    std::vector<Slot*> unfinished;
    for (Slot& slot : slots_) {
        if (slot.state() != Slot::State::idle) {
            slot.withdraw();
            unfinished.push_back(&slot);
        }
    }
    std::ranges::sort(unfinished, [this](const Slot* one, const Slot* other) {
        return one->chunk() - oldest_chunk_ < other->chunk() - oldest_chunk_;
    });
    ready_.assign(config_.queues(), SlotList{});
    leaving_.assign(config_.packet_threads, SlotList{});
    for (Slot* slot : unfinished) {
        ready_with(*slot).push_back(*slot);
    }
    frozen_ = false;
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
    std::ranges::fill(leaving_, SlotList{});
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
