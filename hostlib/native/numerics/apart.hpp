// SPDX-License-Identifier: Apache-2.0
//
// Elements that travel apart from their block's lanes: NaNs, infinities and outliers (protocol.md, 3.3).
#ifndef INAGG_APART_HPP
#define INAGG_APART_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "numerics/numerics.hpp"

namespace inagg {

// Those of one collective's blocks on this rank. They are kept here because results overwrite the elements.
// Threads may use it at the same time, each for blocks of its own.
class ElementsApart {
  public:
    // Keeps the elements beyond the limit, which the block has, in place; the others are zero.
    void keep(std::size_t block, std::span<const float> elements, std::uint32_t limit);

    // Empty if the block has none.
    std::span<const float> of(std::size_t block) const;
    // NO_LIMIT if the block has none.
    std::uint32_t limit(std::size_t block) const;

  private:
    struct Kept {
        std::uint32_t limit = NO_LIMIT;
        std::vector<float> elements;
    };
    const Kept* find(std::size_t block) const;

    std::atomic<bool> any_ = false;  // of most collectives no block has any
    mutable std::mutex mutex_;       // guards the map, not what it has of a block
    std::map<std::size_t, Kept> blocks_;
};

// Classes travel in class_chunks() parts of equal length, one packet for each. `elements` and `block` are one
// part, and `format` is the format of the block's lanes.

// Fills all of `words` with class lanes, those of finite elements where `elements` ends; returns their
// checksum.
std::uint32_t pack_classes(const LaneFormat& format, std::span<const float> elements,
                           std::span<std::byte> words);

// Puts NaN and infinities into sums.
void apply_classes(const LaneFormat& format, std::span<const std::byte> words, std::span<float> block);

// Sets the residual (numerics.hpp) of the outliers among `apart`, whose lanes `words` hold; no other changes.
// `out` may be empty: nothing is set then.
void outlier_residual(const LaneFormat& format, std::uint16_t code, std::span<const float> apart,
                      std::span<const std::byte> words, std::span<float> out);

// The words of a sum, and their exponent's code.
struct Sums {
    std::uint16_t code;
    std::span<const std::byte> words;
};

// Sets the elements of a block that are outliers on some rank: the sum of both, with `average` divided by N.
// It is computed in double and rounded once, so it does not matter how far the two are from one another.
void add_outliers(const LaneFormat& format, Sums together, Sums outliers, bool average,
                  std::span<float> block);

}  // namespace inagg

#endif
