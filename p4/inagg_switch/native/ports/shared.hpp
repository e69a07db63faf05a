// SPDX-License-Identifier: Apache-2.0
//
// Payloads of multicast packets, each there once, whichever ports' queues refer to it. Bounded: what does not
// fit is copied to every queue.
#ifndef INAGG_SWITCH_PORTS_SHARED_HPP
#define INAGG_SWITCH_PORTS_SHARED_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace inagg::ports {

class SharedBytes {
  public:
    // for_overwrite: untouched pages of the block are never made resident.
    explicit SharedBytes(size_t capacity)
        : bytes_(std::make_unique_for_overwrite<uint8_t[]>(capacity)), capacity_(capacity) {}

    // A copy, right behind the one made before; empty: there is no room. It stays until the next add(), and
    // from then on as long as anybody holds anything.
    std::span<const uint8_t> add(const uint8_t* bytes, size_t count) {
        // Starting over at the front keeps what is sent every burst in the cache.
        if (holders_ == 0) used_ = 0;
        if (count > capacity_ - used_) return {};
        uint8_t* at = bytes_.get() + used_;
        std::memcpy(at, bytes, count);
        used_ += count;
        return {at, count};
    }

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
