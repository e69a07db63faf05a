// SPDX-License-Identifier: Apache-2.0
#include "ports/queue.hpp"

#include <algorithm>
#include <cstring>

namespace inagg::ports {

// for_overwrite: pages that are never written stay non-resident.
OutputQueue::OutputQueue(size_t max_frames, size_t max_bytes, bool offloads, SharedBytes& shared)
    : shared_(shared),
      bytes_(std::make_unique_for_overwrite<uint8_t[]>(max_bytes)),
      capacity_(max_bytes),
      offloads_(offloads),
      slots_(max_frames) {}

bool OutputQueue::push(const uint8_t* packet, size_t length, size_t coalesced_limit,
                       std::span<const uint8_t> payload) {
    const bool may_join = offloads_ && length <= coalesced_limit;
    if (may_join && join_last(packet, length, payload)) {
        ++packets_;
        return true;
    }
    if (count_ == slots_.size()) return false;
    const auto at = place(sizeof(Offload) + length);
    if (!at) return false;
    row_.stop();
    if (may_join) row_.start(packet, length);
    const bool shares = row_.header_bytes() > 0 && length - payload.size() == row_.header_bytes();
    std::memset(bytes_.get() + *at, 0, sizeof(Offload));
    tail_ = *at + sizeof(Offload);
    append(packet, shares ? row_.header_bytes() : length);
    slot(count_++) = {*at, length, 1, length, row_.header_bytes(), shares ? payload.data() : nullptr};
    if (shares) shared_.hold();
    ++packets_;
    return true;
}

void OutputQueue::append(const uint8_t* bytes, size_t count) {
    std::memcpy(bytes_.get() + tail_, bytes, count);
    tail_ += count;
}

size_t OutputQueue::room_behind_tail() {
    const size_t head = slot(0).offset;
    return tail_ > head ? capacity_ - tail_ : head - tail_;
}

std::optional<size_t> OutputQueue::place(size_t bytes) {
    // A queue that is empty after every burst starts again at the front, which stays in the processor's
    // cache.
    if (count_ == 0) return bytes <= capacity_ ? std::optional<size_t>(0) : std::nullopt;
    if (bytes <= room_behind_tail()) return tail_;
    const size_t head = slot(0).offset;
    return tail_ > head && bytes <= head ? std::optional<size_t>(0) : std::nullopt;
}

bool OutputQueue::join_last(const uint8_t* packet, size_t length, std::span<const uint8_t> payload) {
    if (count_ == 0) return false;
    Slot& last = slot(count_ - 1);
    const size_t shared_bytes = last.payload == nullptr ? 0 : last.length - last.header_bytes;
    const bool is_contiguous = shared_bytes > 0 && payload.data() == last.payload + shared_bytes &&
                               length - payload.size() == last.header_bytes;
    if (!is_contiguous && shared_bytes + length > room_behind_tail()) return false;
    if (!row_.add(packet, length)) return false;
    row_.merge_flags(frame(last), packet);
    if (!is_contiguous) {
        if (shared_bytes > 0) {
            append(last.payload, shared_bytes);
            last.payload = nullptr;
            shared_.release();
        }
        append(packet + last.header_bytes, length - last.header_bytes);
    }
    last.length += length - last.header_bytes;
    ++last.packets;
    return true;
}

size_t OutputQueue::peek(FramePieces* out, size_t limit) {
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
        const size_t here = waiting.payload == nullptr ? waiting.length : waiting.header_bytes;
        out[i][0] = {record + skipped, sizeof(Offload) - skipped + here};
        out[i][1] = {const_cast<uint8_t*>(waiting.payload), waiting.length - here};
    }
    return shown;
}

OutputQueue::Amount OutputQueue::pop(size_t frames) {
    Amount popped;
    for (size_t i = 0; i < frames; ++i) {
        const Slot& gone = slot(i);
        popped.packets += gone.packets;
        popped.bytes += gone.length + (gone.packets - 1) * gone.header_bytes;
        if (gone.payload != nullptr) shared_.release();
    }
    first_ = (first_ + frames) % slots_.size();
    count_ -= frames;
    packets_ -= popped.packets;
    return popped;
}

}  // namespace inagg::ports
