// SPDX-License-Identifier: Apache-2.0
//
// What all ends of a job agree on: the engines of its ranks, and the servers that sum for it.
#ifndef INAGG_JOB_HPP
#define INAGG_JOB_HPP

#include <cstdint>

namespace inagg {

struct JobShape {
    std::uint16_t number = 0;
    std::uint32_t epoch = 0;
    std::uint32_t slots = 0;  // S
    unsigned words = 0;
    unsigned workers = 0;  // of the whole job
    // Jobs begin at chunk 0 (protocol.md, 7). Tests begin elsewhere to cross the wrap of chunk numbers; all
    // chunks before it have been summed.
    std::uint32_t first_chunk = 0;

    // Checks all but the workers. `most_slots`: that this end can have. Throws std::invalid_argument.
    void validate(std::uint32_t most_slots) const;
};

}  // namespace inagg

#endif
