// SPDX-License-Identifier: Apache-2.0
//
// The elements of a collective, as blocks. A Collective holds one of these two classes, which have the same
// members:
//   announce(block)              this rank's exponent of the block
//   apart(block)                 its elements that do not travel in its lanes, in place; empty if all do
//   datagram(block)              where the packet with its lanes has to be; empty: anywhere
//   fill(block, code, words)     makes the words of its lanes; returns the sum of the lanes
//   rounding()                   how its elements are rounded
//   outlier_residual(block)      where the residuals of its outliers go; empty: nobody wants them
//   take(block, code, special, words)    takes the words of its sum, which have been checked
//   floats(block)                the sums of a special block, to put classes and outliers into
#ifndef INAGG_BLOCKS_HPP
#define INAGG_BLOCKS_HPP

#include <cstddef>
#include <cstdint>
#include <span>

#include "numerics/apart.hpp"
#include "numerics/numerics.hpp"
#include "numerics/staging.hpp"

namespace inagg {

// Floats in the memory of the host, read and written in place.
struct HostFloats {
    std::span<float> data;
    Rounding rounding = {};
    // As long as the data, or empty: receives the part of each element that this rank's lanes do not hold
    // (numerics.hpp).
    std::span<float> residual = {};
};

// Floats become lanes when a packet leaves, and sums become floats when a result arrives.
class HostBlocks {
  public:
    HostBlocks(const HostFloats& floats, const LaneFormat& format, std::size_t block_elements, bool average)
        : floats_(floats),
          format_(format),
          block_elements_(block_elements),
          average_(average),
          streamed_(worth_streaming(floats.data)) {}

    BlockExponent announce(std::size_t block);
    std::span<const float> apart(std::size_t block) const { return apart_.of(block); }
    static std::span<std::byte> datagram(std::size_t /*block*/) { return {}; }
    std::uint32_t fill(std::size_t block, std::uint16_t code, std::span<std::byte> words) const;
    const Rounding& rounding() const { return floats_.rounding; }
    std::span<float> outlier_residual(std::size_t block) const {
        return floats_.residual.empty() ? std::span<float>{} : part_of(floats_.residual, block);
    }
    void take(std::size_t block, std::uint16_t code, bool special, std::span<const std::byte> words) const;
    std::span<float> floats(std::size_t block) const { return part_of(floats_.data, block); }

  private:
    static bool worth_streaming(std::span<const float> data);
    void prefetch(std::size_t block) const;
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
    std::span<float> floats(std::size_t block) const { return staging_->special_sum(block); }

  private:
    Staging* staging_;
    bool average_;
};

}  // namespace inagg

#endif
