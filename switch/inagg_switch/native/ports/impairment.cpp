// SPDX-License-Identifier: Apache-2.0
#include "ports/impairment.hpp"

#include <net/ethernet.h>

#include <algorithm>
#include <utility>

namespace inagg::ports {
namespace {

// Whether a packet leaves after another: the order of a heap.
bool leaves_after(const Impairment::Packet& one, const Impairment::Packet& other) {
    return std::pair(one.due_us, one.number) > std::pair(other.due_us, other.number);
}

}  // namespace

void Impairment::change(const ImpairmentSpec& spec) {
    spec_ = spec;
    random_.seed(spec.seed);
}

bool Impairment::happens(double probability) {
    if (probability <= 0) return false;
    // std::uniform_real_distribution differs between libraries.
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
}

void Impairment::add(const uint8_t* packet, size_t length, uint32_t priority, uint64_t now_us) {
    size_t copies = 1;
    if (happens(spec_.duplicate)) {
        ++copies;
        counters_.of(Effect::kDuplicated).add(1);
    }
    if (happens(spec_.loss)) {
        --copies;
        counters_.of(Effect::kLost).add(1);
    }
    for (; copies > 0; --copies) hold(packet, length, priority, now_us);
}

void Impairment::hold(const uint8_t* packet, size_t length, uint32_t priority, uint64_t now_us) {
    if (bytes_ + length + kRecordBytes > max_bytes_) {
        counters_.of(Effect::kOverflowed).add(1);
        return;
    }
    bytes_ += length + kRecordBytes;
    Packet held{draw_due(now_us), number_++, priority, {packet, packet + length}};
    if (length > ETH_HLEN && happens(spec_.corrupt)) {
        const uint64_t bit = random_() % ((length - ETH_HLEN) * 8);
        held.bytes[ETH_HLEN + bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
        counters_.of(Effect::kCorrupted).add(1);
    }
    waiting_.push_back(std::move(held));
    std::ranges::push_heap(waiting_, leaves_after);
}

uint64_t Impairment::draw_due(uint64_t now_us) {
    const bool reordered = happens(spec_.reorder);
    if (reordered) counters_.of(Effect::kReordered).add(1);
    if (spec_.delay_us == 0) return reordered ? now_us + kHoldBackUs : now_us;
    if (reordered) return now_us;
    const uint64_t jitter = std::min(spec_.jitter_us, spec_.delay_us);
    const uint64_t drawn = jitter == 0 ? 0 : random_() % (2 * jitter + 1);
    return now_us + spec_.delay_us - jitter + drawn;
}

void Impairment::release() {
    std::ranges::sort(waiting_, [](const Packet& a, const Packet& b) { return leaves_after(b, a); });
    for (size_t i = 0; i < waiting_.size(); ++i) {  // sorted, and so a heap
        waiting_[i].due_us = 0;
        waiting_[i].number = i;
    }
}

std::optional<Impairment::Packet> Impairment::next(uint64_t now_us) {
    if (waiting_.empty() || waiting_.front().due_us > now_us) return std::nullopt;
    std::ranges::pop_heap(waiting_, leaves_after);
    Packet packet = std::move(waiting_.back());
    waiting_.pop_back();
    bytes_ -= packet.bytes.size() + kRecordBytes;
    return packet;
}

}  // namespace inagg::ports
