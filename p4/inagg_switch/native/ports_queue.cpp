// SPDX-License-Identifier: Apache-2.0
#include "ports_queue.hpp"

#include <algorithm>
#include <cstring>

namespace inagg::ports {

// for_overwrite: untouched pages of the block are never made resident.
OutputQueue::OutputQueue(size_t max_frames, size_t max_bytes, bool offloads)
    : bytes_(std::make_unique_for_overwrite<uint8_t[]>(max_bytes)),
      capacity_(max_bytes),
      offloads_(offloads),
      slots_(max_frames) {}

bool OutputQueue::push(const uint8_t* packet, size_t length, size_t coalesced_limit) {
    const bool may_join = offloads_ && length <= coalesced_limit;
    if (may_join && join_last(packet, length)) return true;
    if (count_ == slots_.size()) return false;
    const auto at = place(sizeof(Offload) + length);
    if (!at) return false;
    std::memset(bytes_.get() + *at, 0, sizeof(Offload));
    std::memcpy(bytes_.get() + *at + sizeof(Offload), packet, length);
    tail_ = *at + sizeof(Offload) + length;
    row_.stop();
    if (may_join) row_.start(packet, length);
    slot(count_++) = {*at, length, 1, length, row_.header_bytes()};
    return true;
}

size_t OutputQueue::room_behind_tail() {
    const size_t head = slot(0).offset;
    return tail_ > head ? capacity_ - tail_ : head - tail_;
}

std::optional<size_t> OutputQueue::place(size_t bytes) {
    // Starting over at the front keeps a queue that drains every burst in the cache.
    if (count_ == 0) return bytes <= capacity_ ? std::optional<size_t>(0) : std::nullopt;
    if (bytes <= room_behind_tail()) return tail_;
    const size_t head = slot(0).offset;
    return tail_ > head && bytes <= head ? std::optional<size_t>(0) : std::nullopt;
}

bool OutputQueue::join_last(const uint8_t* packet, size_t length) {
    if (count_ == 0 || length > room_behind_tail() || !row_.add(packet, length)) return false;
    Slot& last = slot(count_ - 1);
    const size_t payload_bytes = length - last.header_bytes;
    std::memcpy(bytes_.get() + tail_, packet + last.header_bytes, payload_bytes);
    tail_ += payload_bytes;
    last.length += payload_bytes;
    ++last.packets;
    return true;
}

size_t OutputQueue::peek(iovec* out, size_t limit) {
    const size_t shown = std::min(limit, count_);
    for (size_t i = 0; i < shown; ++i) {
        const Slot& waiting = slot(i);
        uint8_t* record = bytes_.get() + waiting.offset;
        if (waiting.packets > 1) {
            const Offload offload =
                coalesce(frame(waiting), waiting.length, waiting.packet_bytes - waiting.header_bytes);
            std::memcpy(record, &offload, sizeof offload);
        }
        const size_t skipped = offloads_ ? 0 : sizeof(Offload);
        out[i] = {record + skipped, sizeof(Offload) - skipped + waiting.length};
    }
    return shown;
}

OutputQueue::Amount OutputQueue::pop(size_t frames) {
    Amount popped;
    for (size_t i = 0; i < frames; ++i) {
        const Slot& gone = slot(i);
        popped.packets += gone.packets;
        popped.bytes += gone.length + (gone.packets - 1) * gone.header_bytes;
    }
    first_ = (first_ + frames) % slots_.size();
    count_ -= frames;
    return popped;
}

}  // namespace inagg::ports
