// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

namespace inagg {
namespace {

constexpr std::size_t CACHE_LINE = 64;
// Chunk numbers of what is queued must stay comparable (RFC 1982): well below 2^31.
constexpr std::size_t MAX_BLOCKS = std::size_t{1} << 28;
constexpr std::uint32_t MAX_SLOTS = std::uint32_t{1} << 20;
constexpr std::size_t MAX_DATAGRAM = 65507;

void require(bool condition, const std::string& message) {
    if (!condition) {
        throw std::invalid_argument(message);
    }
}

}  // namespace

const char* name(FailureCode code) {
    switch (code) {
        case FailureCode::checksum:
            return "checksum";
        case FailureCode::kind_mismatch:
            return "kind_mismatch";
        case FailureCode::give_up:
            return "give_up";
        case FailureCode::closed:
            return "closed";
        case FailureCode::failed:
            break;
    }
    return "failed";
}

void RetransmissionPolicy::validate() const {
    require(std::isfinite(rto_max) && rto_min > 0 && rto_min <= rto_initial && rto_initial <= rto_max,
            "retransmission policy: 0 < rto_min_s <= rto_initial_s <= rto_max_s must hold, got " +
                std::to_string(rto_min) + ", " + std::to_string(rto_initial) + ", " +
                std::to_string(rto_max));
    require(std::isfinite(give_up) && give_up > 0,
            "retransmission policy: give_up_s must be positive, got " + std::to_string(give_up));
}

void EngineConfig::validate() const {
    require(job >= 1, "job is 0; jobs are 1 to 65535");
    require(workers >= 1 && workers <= 64, "workers is " + std::to_string(workers) + "; it must be 1 to 64");
    require(rank < workers, "rank is " + std::to_string(rank) + " of " + std::to_string(workers) +
                                " workers; ranks start at 0");
    require(epoch != 0, "epoch is 0, which no job has");
    require(std::has_single_bit(slots) && slots <= MAX_SLOTS, "slots is " + std::to_string(slots) +
                                                                  "; it must be a power of two, at most " +
                                                                  std::to_string(MAX_SLOTS));
    require(words >= 1 && datagram_bytes(Kind::data, words) <= MAX_DATAGRAM,
            "words is " + std::to_string(words) + "; a packet has 1 to 255 of them");
    policy.validate();
}

void EngineConfig::validate(const Request& request) const {
    const LaneFormat format(request.lane_bits, workers);
    require(request.data.size() / format.block_elements(words) < MAX_BLOCKS,
            "a collective of " + std::to_string(request.data.size()) + " elements has too many blocks");
    require(reinterpret_cast<std::uintptr_t>(request.data.data()) % alignof(float) == 0,
            "the array is not aligned for float32");
}

void Engine::AlignedDelete::operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t{CACHE_LINE});
}

// A datagram starts where its words, behind the header, are aligned.
constexpr std::size_t HEADER_OFFSET = CACHE_LINE - HEADER_BYTES;

Engine::Engine(const EngineConfig& config)
    : config_(config), next_base_(config.first_chunk), rtt_(config.policy) {
    config.validate();
    const std::size_t bytes = CACHE_LINE + words_bytes(config.words);
    datagram_stride_ = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    datagrams_.reset(new (std::align_val_t{CACHE_LINE}) std::byte[datagram_stride_ * config.slots]());
    slots_.resize(config.slots);
    for (std::uint32_t i = 0; i < config.slots; ++i) {
        const std::uint32_t chunk = config.first_chunk + i;
        slot_of(chunk).chunk = chunk;
    }
}

Engine::~Engine() = default;

std::span<std::byte> Engine::header_of(const Slot& slot) {
    return {datagrams_.get() + index_of(slot.chunk) * datagram_stride_ + HEADER_OFFSET, HEADER_BYTES};
}

std::span<std::byte> Engine::words_of(const Slot& slot) {
    return {datagrams_.get() + index_of(slot.chunk) * datagram_stride_ + CACHE_LINE,
            words_bytes(config_.words)};
}

Ticket Engine::submit(const Request& request, double now) {
    config_.validate(request);
    if (stats_.in_flight == 0) {
        quiet_since_ = now;
        unmeasured_since_ = now;
    }
    const Ticket ticket = ++last_ticket_;
    if (request.data.empty()) {
        complete(ticket);
    } else {
        collectives_.emplace_back(ticket, request, config_.workers, config_.slots, config_.words);
        place_collectives();
    }
    return ticket;
}

// Gives the next collectives their first chunk, as far as that is known.
void Engine::place_collectives() {
    while (next_base_known_ && placed_ < collectives_.size()) {
        Collective& collective = collectives_[placed_++];
        collective.place(next_base_);
        next_base_known_ = false;
        start_chunks(collective.base(), static_cast<std::uint32_t>(collective.lead()));
    }
}

void Engine::start_chunks(std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < std::min(count, config_.slots); ++i) {
        try_start(first + i);
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

// Queues a chunk if it is its slot's next one and all it needs is known.
void Engine::try_start(std::uint32_t chunk) {
    Slot& slot = slot_of(chunk);
    if (slot.state != Slot::State::idle || slot.chunk != chunk) {
        return;
    }
    Collective* collective = find(chunk);
    if (collective == nullptr) {
        return;
    }
    const Assignment assignment = collective->assignment(chunk);
    if ((assignment.role == Role::data && !collective->exponent_known(assignment.block)) ||
        (assignment.role == Role::special && !collective->summed(assignment.block))) {
        return;
    }
    build(slot, *collective, assignment);
    enqueue(slot);
}

void Engine::build(Slot& slot, Collective& collective, Assignment assignment) {
    slot.role = assignment.role;
    slot.block = assignment.block;
    slot.collective = &collective;
    Header header{.kind = Kind::data,
                  .job = config_.job,
                  .rank = static_cast<std::uint8_t>(config_.rank),
                  .flags = 0,
                  .exponent = 0,
                  .epoch = config_.epoch,
                  .chunk = slot.chunk,
                  .checksum = 0};
    switch (slot.role) {
        case Role::exponent:
            header.kind = Kind::exponent;
            header.checksum = collective.fingerprint();
            break;
        case Role::data:
            header.checksum = collective.fill_data(slot.block, words_of(slot));
            break;
        case Role::special:
            header.checksum = collective.fill_classes(slot.block, words_of(slot));
            break;
    }
    const std::size_t position = slot.chunk - collective.base();
    if (position < collective.blocks()) {
        const BlockExponent announced = collective.announce(position);
        header.exponent = announced.code;
        header.flags = announced.special ? FLAG_SPECIAL : 0;
    }
    slot.bytes = static_cast<std::uint32_t>(datagram_bytes(header.kind, config_.words));
    encode(header, header_of(slot).first<HEADER_BYTES>());
}

void Engine::enqueue(Slot& slot) {
    slot.state = Slot::State::queued;
    slot.sent = false;
    slot.resent = false;
    slot.backoff = 0;
    send_queue_.push_back(slots_, index_of(slot.chunk));
    ++stats_.in_flight;
}

void Engine::start_timer(Slot& slot, std::size_t backoff) {
    slot.state = Slot::State::waiting;
    slot.backoff = static_cast<std::uint8_t>(std::min(backoff, MAX_BACKOFF));
    waiting_[slot.backoff].insert_by_time(slots_, index_of(slot.chunk));
    backoffs_ |= std::uint64_t{1} << slot.backoff;
}

// Takes a slot out of whichever list it is in.
void Engine::unlist(Slot& slot) {
    const std::uint32_t index = index_of(slot.chunk);
    if (slot.state == Slot::State::queued) {
        send_queue_.remove(slots_, index);
        return;
    }
    SlotList& list = waiting_[slot.backoff];
    list.remove(slots_, index);
    if (list.empty()) {
        backoffs_ &= ~(std::uint64_t{1} << slot.backoff);
    }
}

void Engine::queue_again(Slot& slot) {
    unlist(slot);
    slot.state = Slot::State::queued;
    send_queue_.push_back(slots_, index_of(slot.chunk));
}

std::size_t Engine::to_send(std::span<std::span<const std::byte>> out) const {
    std::size_t count = 0;
    for (std::uint32_t i = send_queue_.front(); i != Slot::NONE && count < out.size(); i = slots_[i].next) {
        out[count++] = {datagrams_.get() + i * datagram_stride_ + HEADER_OFFSET, slots_[i].bytes};
    }
    return count;
}

void Engine::sent(std::size_t count, double now) {
    for (; count > 0; --count) {
        const std::uint32_t index = send_queue_.front();
        Slot& slot = slots_[index];
        send_queue_.remove(slots_, index);
        ++stats_.packets_sent;
        stats_.bytes_sent += slot.bytes;
        // Back-off answers silence, not a single loss.
        const bool silence = quiet_since_ <= slot.sent_at;
        slot.sent_at = now;
        if (!slot.sent) {
            slot.sent = true;
            start_timer(slot, rtt_.resends_for(now - unmeasured_since_));
        } else {
            slot.resent = true;
            ++stats_.retransmits;
            start_timer(slot, silence ? slot.backoff + 1U : 1U);
        }
    }
}

void Engine::advance(double now) {
    if (stats_.in_flight == 0) {
        return;
    }
    if (now >= quiet_since_ + config_.policy.give_up) {
        fail(FailureCode::give_up, "nothing was received for " + std::to_string(now - quiet_since_) +
                                       " s; is the switch up, and do all ranks take part?");
        return;
    }
    for (std::uint64_t left = backoffs_; left != 0; left &= left - 1) {
        const SlotList& list = waiting_[static_cast<std::size_t>(std::countr_zero(left))];
        while (!list.empty() && expiry(slots_[list.front()]) <= now) {
            queue_again(slots_[list.front()]);
        }
    }
}

// When a slot's timer runs out.
double Engine::expiry(const Slot& slot) const { return slot.sent_at + rtt_.timeout(slot.backoff); }

std::optional<double> Engine::deadline() const {
    if (stats_.in_flight == 0) {
        return std::nullopt;
    }
    double earliest = quiet_since_ + config_.policy.give_up;
    for (std::uint64_t left = backoffs_; left != 0; left &= left - 1) {
        const SlotList& list = waiting_[static_cast<std::size_t>(std::countr_zero(left))];
        earliest = std::min(earliest, expiry(slots_[list.front()]));
    }
    return earliest;
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
    stats.rtt_samples = rtt_.samples();
    stats.srtt = rtt_.srtt();
    stats.rttvar = rtt_.rttvar();
    stats.rto = rtt_.rto();
    return stats;
}

}  // namespace inagg
