// SPDX-License-Identifier: Apache-2.0
//
// Stores the payload of a multicast packet once for all ports' output queues. The size is fixed: a payload
// that does not fit is copied into each queue instead.
#ifndef INAGG_SWITCH_PORTS_SHARED_HPP
#define INAGG_SWITCH_PORTS_SHARED_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace inagg::ports {

// A block of memory with a use count for the whole block, not for each payload. Belongs to one PacketLoop,
// whose thread alone uses it.
class SharedBytes {
  public:
    // `capacity`: bytes. for_overwrite: pages that are never written stay non-resident.
    explicit SharedBytes(size_t capacity)
        : bytes_(std::make_unique_for_overwrite<uint8_t[]>(capacity)), capacity_(capacity) {}

    // Copies the bytes directly behind the previous copy. Returns the copy, or an empty span if there is no
    // room. The copy is valid until the next add(), and longer if hold() was called before that: until every
    // hold() has its release(). When nothing is held, add() starts again at the front of the block.
    std::span<const uint8_t> add(const uint8_t* bytes, size_t count) {
        // Reusing the front of the block keeps it in the processor's cache.
        if (holders_ == 0) used_ = 0;
        if (count > capacity_ - used_) return {};
        uint8_t* at = bytes_.get() + used_;
        std::memcpy(at, bytes, count);
        used_ += count;
        return {at, count};
    }

    // An output queue calls hold() when a slot refers to a copy, and release() when it stops referring to it.
    void hold() { ++holders_; }
    void release() { --holders_; }

  private:
    std::unique_ptr<uint8_t[]> bytes_;
    size_t capacity_;
    size_t used_ = 0;
    size_t holders_ = 0;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_SHARED_HPP
