// SPDX-License-Identifier: Apache-2.0
#include "wire/job.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "wire/require.hpp"
#include "wire/wire.hpp"

namespace inagg {
namespace {

// Runs of each way, if the ways are no power of two: some have one run more than others.
constexpr std::uint32_t RUNS_UNEVEN = 8;

}  // namespace

void JobShape::validate(std::uint32_t most_slots) const {
    require(number >= 1, "job is 0; jobs are 1 to 65535");
    require(epoch != 0, "epoch is 0, which no job has");
    require(std::has_single_bit(slots) && slots <= most_slots, "slots is " + std::to_string(slots) +
                                                                   "; it must be a power of two, at most " +
                                                                   std::to_string(most_slots));
    require_words(words);
}

Ways::Ways(std::uint32_t slots, unsigned count) : slots_(slots), count_(count) {
    const std::uint32_t each = std::has_single_bit(count) ? 1 : RUNS_UNEVEN;
    const std::uint32_t run =
        std::clamp<std::uint32_t>(std::bit_floor(slots / each / std::max(count, 1U)), 1, p4::RUN_CHUNKS);
    run_bits_ = static_cast<unsigned>(std::bit_width(run) - 1);
}

unsigned Ways::left_of_group(std::uint32_t chunk, unsigned most) const {
    const unsigned group = std::bit_floor(std::clamp<unsigned>(most, 1, p4::RUN_CHUNKS));
    return group - static_cast<unsigned>(place_of(chunk) & (group - 1));
}

std::size_t Ways::most_slots() const {
    const std::size_t runs = slots_ >> run_bits_;
    return (runs + count_ - 1) / count_ << run_bits_;
}

std::size_t Ways::place_of(std::uint32_t chunk) const {
    const std::size_t slot = slot_of(chunk);
    const std::size_t run = slot >> run_bits_;
    return (run / count_ << run_bits_) + (slot - (run << run_bits_));
}

}  // namespace inagg
