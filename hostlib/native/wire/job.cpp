// SPDX-License-Identifier: Apache-2.0
#include "wire/job.hpp"

#include <bit>
#include <string>

#include "wire/require.hpp"

namespace inagg {

void JobShape::validate(std::uint32_t most_slots) const {
    require(number >= 1, "job is 0; jobs are 1 to 65535");
    require(epoch != 0, "epoch is 0, which no job has");
    require(std::has_single_bit(slots) && slots <= most_slots, "slots is " + std::to_string(slots) +
                                                                   "; it must be a power of two, at most " +
                                                                   std::to_string(most_slots));
    require_words(words);
}

}  // namespace inagg
