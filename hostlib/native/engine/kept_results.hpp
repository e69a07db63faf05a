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
#include "wire/message_memory.hpp"
#include "wire/wire.hpp"

namespace inagg {

class KeptResults {
  public:
    // A shorter message is copied: it would hold on to a memory for a long one.
    static constexpr std::size_t LEAST_HELD = 16384;

    // The most memories that are held on to at the same time, when all messages are the shortest.
    static std::size_t most_held(const JobShape& job) {
        return (job.slots * datagram_bytes(Kind::data_result, job.words) + LEAST_HELD - 1) / LEAST_HELD;
    }

    // The kernel gives the memory for copies when a slot has its first one.
    explicit KeptResults(const JobShape& job)
        : slots_(job.slots),
          stride_(datagram_bytes(Kind::data_result, job.words)),
          copies_(new std::byte[slots_ * stride_]),
          kept_(std::make_unique<Kept[]>(slots_)) {}

    // Puts the results of one thread's batch. Threads may do so at the same time, for chunks of different
    // slots. The counts of memories are told once for a row of results: threads share them.
    class Batch {
      public:
        explicit Batch(const KeptResults& results) : results_(results) {}
        ~Batch() {
            held_.tell();
            released_.tell();
        }
        Batch(const Batch&) = delete;
        Batch& operator=(const Batch&) = delete;

        // `memory`: what the datagram lies in, if it can be held on to. Otherwise the datagram is copied.
        void put(std::uint32_t chunk, std::span<const std::byte> datagram, MessageMemory* memory) {
            const std::size_t slot = results_.slot_of(chunk);
            Kept& kept = results_.kept_[slot];
            const std::byte* bytes = datagram.data();
            if (memory == nullptr) {
                std::byte* copy = &results_.copies_[slot * results_.stride_];
                std::ranges::copy(datagram, copy);
                bytes = copy;
            } else {
                held_.add(memory);
            }
            if (kept.memory != nullptr) {
                released_.add(kept.memory);
            }
            kept = {bytes, static_cast<std::uint32_t>(datagram.size()), memory};
        }

      private:
        struct Count {
            bool holds;
            MessageMemory* memory = nullptr;
            int results = 0;

            void add(MessageMemory* one) {
                if (one != memory) {
                    tell();
                    memory = one;
                }
                ++results;
            }
            void tell() {
                if (results > 0) {
                    holds ? memory->hold(results) : memory->release(results);
                }
                results = 0;
            }
        };

        const KeptResults& results_;
        Count held_{.holds = true};
        Count released_{.holds = false};
    };

    // Of the slot of a chunk; empty before its first result.
    std::span<const std::byte> of(std::uint32_t chunk) const {
        const Kept& kept = kept_[slot_of(chunk)];
        return {kept.bytes, kept.size};
    }

  private:
    struct Kept {
        const std::byte* bytes = nullptr;
        std::uint32_t size = 0;
        MessageMemory* memory = nullptr;  // that is held on to; null: a copy
    };

    std::size_t slot_of(std::uint32_t chunk) const { return chunk & (slots_ - 1); }

    std::size_t slots_;
    std::size_t stride_;
    std::unique_ptr<std::byte[]> copies_;
    std::unique_ptr<Kept[]> kept_;
};

}  // namespace inagg

#endif
