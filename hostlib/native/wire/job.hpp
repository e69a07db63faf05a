// SPDX-License-Identifier: Apache-2.0
//
// What all ends of a job agree on: the engines of its ranks, and the servers that sum for it.
#ifndef INAGG_JOB_HPP
#define INAGG_JOB_HPP

#include <cstddef>
#include <cstdint>

namespace inagg {

struct JobShape {
    std::uint16_t number = 0;
    std::uint32_t epoch = 0;
    std::uint32_t slots = 0;  // S
    unsigned words = 0;
    unsigned workers = 0;  // of the whole job
    // The first of the chunk fields on this way; those of the first way are the chunks themselves
    // (protocol.md, 6.4).
    std::uint32_t first_chunk = 0;

    // Checks all but the workers. `most_slots`: that this end can have. Throws std::invalid_argument.
    void validate(std::uint32_t most_slots) const;

    // The first chunk field on this way in the slot of a chunk.
    std::uint32_t first_in_slot_of(std::uint32_t chunk) const {
        return first_chunk + ((chunk - first_chunk) & (slots - 1));
    }
};

// How a job's chunks are divided among the roots of its tree, or among its servers: by their slots, in runs
// that go one way (protocol.md, 5.5 and 5.6).
class Ways {
  public:
    Ways() = default;
    // `slots` is a power of two; `count` is 1 at least and no more than these.
    Ways(std::uint32_t slots, unsigned count);

    unsigned count() const { return count_; }
    unsigned of(std::uint32_t chunk) const {
        return count_ == 1 ? 0 : (slot_of(chunk) >> run_bits_) % count_;
    }
    // A chunk and those that follow it in its group. Groups are of chunks that are next to one another at
    // their way: of 2^n, as many as `most` and RUN_CHUNKS permit, one at least.
    unsigned left_of_group(std::uint32_t chunk, unsigned most) const;
    // The most slots of a way.
    std::size_t most_slots() const;
    // The number of the chunk's slot among those of its way.
    std::size_t place_of(std::uint32_t chunk) const;

  private:
    std::uint32_t slot_of(std::uint32_t chunk) const { return chunk & (slots_ - 1); }

    std::uint32_t slots_ = 1;
    unsigned count_ = 1;
    unsigned run_bits_ = 0;
};

}  // namespace inagg

#endif
