// SPDX-License-Identifier: Apache-2.0
#include "ports_queue.hpp"

#include <algorithm>
#include <cstring>

namespace inagg::ports {

// for_overwrite: untouched pages of the block are never made resident.
OutputQueue::OutputQueue(size_t max_frames, size_t max_bytes)
    : bytes_(std::make_unique_for_overwrite<uint8_t[]>(max_bytes)),
      capacity_(max_bytes),
      slots_(max_frames) {}

bool OutputQueue::push(const uint8_t* frame, size_t length) {
    if (count_ == slots_.size()) return false;
    size_t at = tail_;
    if (count_ == 0) {
        // Starting over at the front keeps a queue that drains every burst in the cache.
        at = 0;
        if (length > capacity_) return false;
    } else {
        const size_t head = slot(0).offset;
        if (at > head) {
            if (capacity_ - at < length) {
                if (head < length) return false;
                at = 0;
            }
        } else if (head - at < length) {
            return false;
        }
    }
    std::memcpy(bytes_.get() + at, frame, length);
    slots_[(first_ + count_) % slots_.size()] = {at, length};
    ++count_;
    tail_ = at + length;
    return true;
}

size_t OutputQueue::peek(iovec* out, size_t limit) const {
    const size_t shown = std::min(limit, count_);
    for (size_t i = 0; i < shown; ++i) {
        const Slot& waiting = slot(i);
        out[i] = {bytes_.get() + waiting.offset, waiting.length};
    }
    return shown;
}

void OutputQueue::pop(size_t count) {
    first_ = (first_ + count) % slots_.size();
    count_ -= count;
}

void OutputQueue::clear() { pop(count_); }

}  // namespace inagg::ports
