// SPDX-License-Identifier: Apache-2.0
//
// The last result of each slot, the datagram as it was: what another rank lacks if the way dies between the
// two (protocol.md, 6.4).
#ifndef INAGG_KEPT_RESULTS_HPP
#define INAGG_KEPT_RESULTS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "wire/job.hpp"
#include "wire/wire.hpp"

namespace inagg {

class KeptResults {
  public:
    // The kernel gives the memory when a slot has its first result.
    explicit KeptResults(const JobShape& job)
        : slots_(job.slots),
          stride_(datagram_bytes(Kind::data_result, job.words)),
          memory_(new std::byte[slots_ * stride_]),
          bytes_(std::make_unique<std::uint32_t[]>(slots_)) {}

    // Threads may call it at the same time, for chunks of different slots.
    void put(std::uint32_t chunk, std::span<const std::byte> datagram) const {
        std::ranges::copy(datagram, place_of(chunk));
        bytes_[slot_of(chunk)] = static_cast<std::uint32_t>(datagram.size());
    }
    // Of the slot of a chunk; empty before its first result.
    std::span<const std::byte> of(std::uint32_t chunk) const {
        return {place_of(chunk), bytes_[slot_of(chunk)]};
    }

  private:
    std::size_t slot_of(std::uint32_t chunk) const { return chunk & (slots_ - 1); }
    std::byte* place_of(std::uint32_t chunk) const { return &memory_[slot_of(chunk) * stride_]; }

    std::size_t slots_;
    std::size_t stride_;
    std::unique_ptr<std::byte[]> memory_;
    std::unique_ptr<std::uint32_t[]> bytes_;
};

}  // namespace inagg

#endif
