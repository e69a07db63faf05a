// SPDX-License-Identifier: Apache-2.0
//
// Where a collective's elements lie, seen as blocks. A Collective holds one of these two classes, which have
// the same members:
//   announce(block)              this rank's exponent
//   classes(block)               what the elements of a block are that is special here; nothing of others
//   datagram(block)              where the packet with its lanes stands; nothing: anywhere
//   fill(block, code, words)     makes the words of its lanes there; returns their sum
//   take(block, code, special, words)    takes the words of its sum, which are right
//   floats(block)                the sum of a special block, for its classes
#ifndef INAGG_BLOCKS_HPP
#define INAGG_BLOCKS_HPP

#include <cstddef>
#include <cstdint>
#include <span>

#include "numerics/numerics.hpp"
#include "numerics/special_classes.hpp"
#include "numerics/staging.hpp"

namespace inagg {

// Floats in memory, read and written in place.
struct HostFloats {
    std::span<float> data;
    Rounding rounding = {};
    // As long as the data, or empty: receives what this rank's lanes leave out of each element
    // (numerics.hpp).
    std::span<float> residual = {};
};

// Lanes are made of the floats when a packet leaves, and sums become floats when one arrives.
class HostBlocks {
  public:
    HostBlocks(const HostFloats& floats, const LaneFormat& format, std::size_t block_elements, bool average)
        : floats_(floats), format_(format), block_elements_(block_elements), average_(average) {}

    // Remembers the classes of a special block, which its result will overwrite.
    BlockExponent announce(std::size_t block);
    std::span<const std::uint8_t> classes(std::size_t block) const { return classes_.of(block); }
    static std::span<std::byte> datagram(std::size_t /*block*/) { return {}; }
    std::uint32_t fill(std::size_t block, std::uint16_t code, std::span<std::byte> words) const;
    void take(std::size_t block, std::uint16_t code, bool special, std::span<const std::byte> words) const;
    std::span<float> floats(std::size_t block) const { return part_of(floats_.data, block); }

  private:
    void prefetch(std::size_t block) const;
    std::span<float> part_of(std::span<float> whole, std::size_t block) const;

    HostFloats floats_;
    LaneFormat format_;
    std::size_t block_elements_;
    bool average_;
    SpecialClasses classes_;
};

// A device has made the lanes, and makes floats of their sums. Only special blocks are finished here.
class StagedBlocks {
  public:
    StagedBlocks(Staging& staging, bool average) : staging_(&staging), average_(average) {}

    Staging& staging() const { return *staging_; }

    BlockExponent announce(std::size_t block) const;
    std::span<const std::uint8_t> classes(std::size_t block) const { return staging_->classes(block); }
    std::span<std::byte> datagram(std::size_t block) const { return staging_->datagram(block); }
    std::uint32_t fill(std::size_t block, std::uint16_t /*code*/, std::span<std::byte> /*words*/) const {
        return staging_->checksums()[block];
    }
    void take(std::size_t block, std::uint16_t code, bool special, std::span<const std::byte> words) const;
    std::span<float> floats(std::size_t block) const { return staging_->special_sum(block); }

  private:
    Staging* staging_;
    bool average_;
};

}  // namespace inagg

#endif
