// SPDX-License-Identifier: Apache-2.0
#include "transport/rounds.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "wire/require.hpp"

namespace inagg {
namespace {

// Bits of an offer.
constexpr std::int32_t MISSING = 1;
constexpr std::int32_t WORDS = 2;
constexpr unsigned FLAGS = 2, FLAGS_CHECK = 8;  // the places of six bits each
constexpr unsigned FLAG_BITS = 0x3F;
// Before the exponents of the first slot, and of each slot.
constexpr std::size_t PEAKS = 2;
// The age of no chunk.
constexpr std::int64_t NO_AGE = std::numeric_limits<std::int64_t>::min();

// Lanes are big-endian. In this order a lane is the same bits of the integer on all hosts, and sums of lanes
// that fit carry into no other lane.
std::int32_t to_integer(const std::byte* lanes) {
    std::uint32_t value = 0;
    std::memcpy(&value, lanes, sizeof value);
    return std::bit_cast<std::int32_t>(std::endian::native == std::endian::big ? value
                                                                               : __builtin_bswap32(value));
}

void to_lanes(std::int32_t integer, std::byte* lanes) {
    const auto value = std::bit_cast<std::uint32_t>(integer);
    const std::uint32_t ordered = std::endian::native == std::endian::big ? value : __builtin_bswap32(value);
    std::memcpy(lanes, &ordered, sizeof ordered);
}

std::int32_t bits_of(const Header& header) {
    return (carries_words(header.kind) ? WORDS : 0) | header.announced.flags << FLAGS |
           header.announced.flags_check << FLAGS_CHECK;
}

bool is_agreed(std::int32_t bits) { return (bits & MISSING) == 0; }

}  // namespace

RoundSlots::RoundSlots(const JobShape& job, std::span<const std::uint32_t> next_chunks)
    : job_(job), slots_(job.slots) {
    job.validate(std::numeric_limits<std::uint32_t>::max());
    require(next_chunks.size() == job.slots, "next_chunks has " + std::to_string(next_chunks.size()) +
                                                 " chunks; the job has " + std::to_string(job.slots) +
                                                 " slots");
    const std::uint32_t oldest = *std::ranges::min_element(
        next_chunks, [](auto one, auto other) { return chunk_age(one, other) < 0; });
    for (std::size_t slot = 0; slot < next_chunks.size(); ++slot) {
        slots_[slot].age = next_chunks[slot] - oldest;
    }
}

void RoundSlots::clear_replies() {
    replies_.clear();
    answers_.clear();
}

void RoundSlots::receive(std::span<const std::byte> datagram) {
    const std::optional<Header> header = decode(datagram);
    if (!header || header->job != job_.number || header->epoch != job_.epoch || is_result(header->kind) ||
        datagram.size() != datagram_bytes(header->kind, job_.words)) {
        return;
    }
    if (is_query(header->kind)) {
        answer(*header);
    } else {
        take(*header, datagram);
    }
}

// As a switch does that has this rank's contribution, or has not (protocol.md, 5.2).
void RoundSlots::answer(const Header& query) {
    const Slot& slot = slot_of(query.chunk);
    const bool known = slot.state != State::unused;
    if (known && chunk_age(slot.header.chunk, query.chunk) > 0) {
        return;
    }
    const bool held = slot.state == State::waiting && slot.header.chunk == query.chunk;
    Header answer = query;
    answer.kind = result_of(query.kind);
    answer.announced.flags |= held ? 0 : p4::FLAG_AGAIN;
    answer.announced.flags_check |= held ? 0 : p4::FLAG_AGAIN;
    encode(answer, answers_.emplace_back());
    replies_.push_back({.datagram = answers_.back()});
}

void RoundSlots::take(const Header& contribution, std::span<const std::byte> datagram) {
    Slot& slot = slot_of(contribution.chunk);
    const bool known = slot.state != State::unused;
    const std::int32_t newer = known ? chunk_age(contribution.chunk, slot.header.chunk) : 1;
    if (slot.state == State::final && newer == 0) {
        replies_.push_back({.datagram = slot.datagram});
    }
    if (slot.state == State::waiting || newer <= 0) {
        return;
    }
    slot.state = State::waiting;
    slot.header = contribution;
    slot.datagram.assign(datagram.begin(), datagram.end());
    ++waiting_;
    news_ = true;
}

std::vector<std::int32_t> RoundSlots::offer() {
    news_ = false;
    std::vector<std::int32_t> bits;
    bits.reserve(slots_.size());
    for (const Slot& slot : slots_) {
        bits.push_back(slot.state == State::waiting ? bits_of(slot.header) : MISSING);
    }
    return bits;
}

std::size_t RoundSlots::sums_of(std::int32_t bits) const {
    return 1 + ((bits & WORDS) != 0 ? words_bytes(job_.words) / sizeof(std::int32_t) : 0);
}

std::size_t RoundSlots::sums_of(std::span<const std::int32_t> agreed) const {
    std::size_t sums = 0;
    for (const std::int32_t bits : agreed) {
        sums += is_agreed(bits) ? sums_of(bits) : 0;
    }
    return sums;
}

void RoundSlots::require_agreed(std::span<const std::int32_t> agreed) const {
    require(agreed.size() == slots_.size(), "agreed has " + std::to_string(agreed.size()) +
                                                " numbers; the job has " + std::to_string(slots_.size()) +
                                                " slots");
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        require(!is_agreed(agreed[i]) || slots_[i].state == State::waiting,
                "slot " + std::to_string(i) + " is agreed, and this rank has not offered it");
    }
}

std::optional<std::int64_t> RoundSlots::oldest_left(std::span<const std::int32_t> agreed) const {
    std::optional<std::int64_t> oldest;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].state == State::waiting && !is_agreed(agreed[i])) {
            oldest = std::min(oldest.value_or(slots_[i].age), slots_[i].age);
        }
    }
    return oldest;
}

RoundParts RoundSlots::contributions(std::span<const std::int32_t> agreed) const {
    require_agreed(agreed);
    RoundParts parts;
    parts.sums.reserve(sums_of(agreed));
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (!is_agreed(agreed[i])) {
            continue;
        }
        const auto& [state, age, header, datagram] = slots_[i];
        parts.peaks.push_back(header.announced.exponent);
        parts.peaks.push_back(header.announced.exponent_check);
        parts.sums.push_back(std::bit_cast<std::int32_t>(header.checksum));
        const std::size_t end = parts.sums.size() - 1 + sums_of(agreed[i]);
        for (std::size_t at = HEADER_BYTES; at < datagram.size(); at += sizeof(std::int32_t)) {
            parts.sums.push_back(to_integer(&datagram[at]));
        }
        parts.sums.resize(end);  // zeros, if only another rank's contribution has words
    }
    const std::optional<std::int64_t> oldest = oldest_left(agreed);
    parts.peaks.push_back(oldest ? -*oldest : NO_AGE);
    return parts;
}

void RoundSlots::finish(std::span<const std::int32_t> agreed, std::span<const std::int64_t> peaks,
                        std::span<const std::int32_t> sums) {
    require_agreed(agreed);
    const auto count = static_cast<std::size_t>(std::ranges::count_if(agreed, is_agreed));
    require(peaks.size() == PEAKS * count + 1 && sums.size() == sums_of(agreed),
            "peaks and sums are not those of the agreed slots");
    const std::optional<std::int64_t> oldest = oldest_left(agreed);
    joins_at_once_ = oldest && -*oldest == peaks.back();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const std::int32_t bits = agreed[i];
        if (!is_agreed(bits)) {
            continue;
        }
        Slot& slot = slots_[i];
        const Kind kind = (bits & WORDS) != 0 ? Kind::data_result : Kind::exponent_result;
        Header result = slot.header;
        result.kind = kind;
        result.announced = {.flags = static_cast<std::uint8_t>(bits >> FLAGS & FLAG_BITS),
                            .exponent = static_cast<std::uint16_t>(peaks[0]),
                            .flags_check = static_cast<std::uint8_t>(bits >> FLAGS_CHECK & FLAG_BITS),
                            .exponent_check = static_cast<std::uint16_t>(peaks[1])};
        result.checksum = std::bit_cast<std::uint32_t>(sums.front());
        slot.datagram.resize(datagram_bytes(kind, job_.words));
        encode(result, std::span(slot.datagram).first<HEADER_BYTES>());
        const std::size_t words = sums_of(bits) - 1;
        for (std::size_t word = 0; word < words; ++word) {
            to_lanes(sums[1 + word], &slot.datagram[HEADER_BYTES + word * sizeof(std::int32_t)]);
        }
        peaks = peaks.subspan(PEAKS);
        sums = sums.subspan(1 + words);
        slot.state = State::final;
        slot.age += job_.slots;
        --waiting_;
        replies_.push_back({.datagram = slot.datagram});
    }
}

std::shared_ptr<const void> Rounds::attach(std::uint16_t job, std::uint32_t epoch, unsigned /*rank*/,
                                           Mailbox& mailbox) {
    const std::lock_guard lock(mutex_);
    require(job == slots_.job().number && epoch == slots_.job().epoch,
            "the rounds are not of job " + std::to_string(job));
    mailbox_ = &mailbox;
    return nullptr;
}

void Rounds::detach(const Mailbox& mailbox) {
    const std::lock_guard lock(mutex_);
    if (mailbox_ == &mailbox) {
        mailbox_ = nullptr;
    }
}

void Rounds::deliver(std::span<const Outgoing> datagrams) {
    const std::lock_guard lock(mutex_);
    for (const Outgoing& one : datagrams) {
        slots_.receive(one.datagram);
    }
    hand_over();
    if (slots_.wants_round()) {
        changed_.notify_all();
    }
}

// Copies, because a slot's memory is used again while the worker may not have read a second copy of its
// result. With mutex_ held.
void Rounds::hand_over() {
    if (mailbox_ != nullptr && !closed_ && !slots_.replies().empty()) {
        mailbox_->put(slots_.replies(), false);
    }
    slots_.clear_replies();
}

bool Rounds::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || slots_.wants_round(); });
    return !closed_;
}

std::vector<std::int32_t> Rounds::offer() {
    const std::lock_guard lock(mutex_);
    return slots_.offer();
}

RoundParts Rounds::contributions(std::span<const std::int32_t> agreed) const {
    const std::lock_guard lock(mutex_);
    return slots_.contributions(agreed);
}

void Rounds::finish(std::span<const std::int32_t> agreed, std::span<const std::int64_t> peaks,
                    std::span<const std::int32_t> sums) {
    const std::lock_guard lock(mutex_);
    slots_.finish(agreed, peaks, sums);
    hand_over();
}

void Rounds::close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
}

}  // namespace inagg
