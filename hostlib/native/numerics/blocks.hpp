// SPDX-License-Identifier: Apache-2.0
//
// The elements of a collective, as blocks. Threads may use them at the same time, each for blocks of its own;
// but take() of a special block and amend() are for one thread at a time. A Collective holds one of these two
// classes, which have the same members:
//   announce(block)              this rank's exponent of the block
//   apart(block)                 its elements that do not travel in its lanes, in place; empty if all do
//   datagram(block)              where the packet with its lanes has to be; empty: anywhere
//   fill(block, code, words)     makes the words of its lanes; returns the sum of the lanes
//   rounding()                   how its elements are rounded
//   outlier_residual(block)      where the residuals of its outliers go; empty: nobody wants them
//   take(block, code, special, words)    takes the words of its sum, which have been checked
//   amend(block, change)         calls change(sums) with those of a special block, which it may change
#ifndef INAGG_BLOCKS_HPP
#define INAGG_BLOCKS_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "numerics/apart.hpp"
#include "numerics/numerics.hpp"
#include "numerics/staging.hpp"

namespace inagg {

// Floats in the memory of the host, read and written in place.
struct HostFloats {
    std::span<std::byte> memory;
    FloatType type = FloatType::float32;
    Rounding rounding = {};
    // Of float32 only. One for each element, or empty: receives the part of each element that this rank's
    // lanes do not hold (numerics.hpp).
    std::span<float> residual = {};

    std::size_t elements() const { return memory.size() / bytes_of(type); }
};

// Floats become lanes when a packet leaves, and sums become floats when a result arrives. 16-bit floats do so
// as float32, one block at a time, so that the conversions read and write nothing but the processor's cache.
class HostBlocks {
  public:
    HostBlocks(const HostFloats& floats, const LaneFormat& format, std::size_t block_elements, bool average)
        : floats_(floats),
          format_(format),
          block_elements_(block_elements),
          average_(average),
          streamed_(worth_streaming(floats.memory)) {}

    BlockExponent announce(std::size_t block);
    std::span<const float> apart(std::size_t block) const { return apart_.of(block); }
    static std::span<std::byte> datagram(std::size_t /*block*/) { return {}; }
    std::uint32_t fill(std::size_t block, std::uint16_t code, std::span<std::byte> words) const;
    const Rounding& rounding() const { return floats_.rounding; }
    std::span<float> outlier_residual(std::size_t block) const { return part_of(floats_.residual, block); }
    void take(std::size_t block, std::uint16_t code, bool special, std::span<const std::byte> words) const;
    template <typename Change>
    void amend(std::size_t block, Change change) const {
        const std::span<float> sums = read(block);
        change(sums);
        if (floats_.type != FloatType::float32) {
            narrow(floats_.type, sums, memory(block));
        }
    }

  private:
    static bool worth_streaming(std::span<const std::byte> memory);
    void prefetch(std::size_t block) const;
    std::span<std::byte> memory(std::size_t block) const;
    // The elements, as float32: in place, or where this thread's next call overwrites them.
    std::span<float> read(std::size_t block) const;
    std::span<float> part_of(std::span<float> whole, std::size_t block) const;

    HostFloats floats_;
    LaneFormat format_;
    std::size_t block_elements_;
    bool average_;
    bool streamed_;  // sums go to memory past the caches
    ElementsApart apart_;
};

// A device makes the lanes, and makes floats of their sums. Only special blocks are finished here.
class StagedBlocks {
  public:
    StagedBlocks(Staging& staging, bool average) : staging_(&staging), average_(average) {}

    Staging& staging() const { return *staging_; }

    BlockExponent announce(std::size_t block) const;
    std::span<const float> apart(std::size_t block) const { return staging_->apart().of(block); }
    std::span<std::byte> datagram(std::size_t block) const { return staging_->datagram(block); }
    std::uint32_t fill(std::size_t block, std::uint16_t /*code*/, std::span<std::byte> /*words*/) const {
        return staging_->checksums()[block];
    }
    const Rounding& rounding() const { return staging_->rounding(); }
    std::span<float> outlier_residual(std::size_t block) const { return staging_->outlier_residual(block); }
    void take(std::size_t block, std::uint16_t code, bool special, std::span<const std::byte> words) const;
    template <typename Change>
    void amend(std::size_t block, Change change) const {
        change(staging_->special_sum(block));
    }

  private:
    Staging* staging_;
    bool average_;
};

}  // namespace inagg

#endif
