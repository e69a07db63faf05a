// SPDX-License-Identifier: Apache-2.0
//
// Frames that wait to leave through a port, oldest first, in one block of memory: a frame is copied once and
// no memory is allocated for it. Bounded in frames and in bytes; push() refuses what does not fit (tail
// drop).
#ifndef INAGG_SWITCH_PORTS_QUEUE_HPP
#define INAGG_SWITCH_PORTS_QUEUE_HPP

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace inagg::ports {

class OutputQueue {
  public:
    OutputQueue(size_t max_frames, size_t max_bytes);

    // Copies the frame to the end; false, and nothing changed, when there is no room. length > 0.
    bool push(const uint8_t* frame, size_t length);

    // The oldest frames, at most `limit` of them, as they lie in memory. They stay queued until pop().
    size_t peek(iovec* out, size_t limit) const;

    void pop(size_t count);
    void clear();

    size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }

  private:
    struct Slot {
        size_t offset;
        size_t length;
    };

    const Slot& slot(size_t index) const { return slots_[(first_ + index) % slots_.size()]; }

    std::unique_ptr<uint8_t[]> bytes_;
    size_t capacity_;
    std::vector<Slot> slots_;
    size_t first_ = 0;
    size_t count_ = 0;
    size_t tail_ = 0;  // where the next frame goes, if it fits there
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_QUEUE_HPP
