// SPDX-License-Identifier: Apache-2.0
//
// Memory that a device and the engine share, for one collective whose floats the processor does not touch
// (design.md, D11). It holds each block's datagram, exponents and checksum.
#ifndef INAGG_STAGING_HPP
#define INAGG_STAGING_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "numerics/apart.hpp"
#include "numerics/numerics.hpp"
#include "wire/wire.hpp"

namespace inagg {

// Names a collective: 1, 2, 3... in the order of submission. Whoever drives the engine counts.
using Ticket = std::uint64_t;

// L floats for each of some blocks.
using BlockFloats = std::map<std::size_t, std::vector<float>>;

// How far a collective is. Counts of blocks, from the first on.
struct Progress {
    std::size_t known = 0;   // have an agreed exponent
    std::size_t summed = 0;  // have the lanes of their sums
    bool done = false;

    bool operator==(const Progress&) const = default;
};

class Staging {
  public:
    // This bit of an exponent in the memory marks a special block: one with elements that travel apart.
    static constexpr std::uint16_t SPECIAL = 0x8000;

    // The memory outlives the collective. Throws std::invalid_argument.
    Staging(std::size_t elements, const LaneFormat& format, std::size_t words, Rounding rounding,
            std::span<std::byte> memory);
    static std::size_t bytes_needed(std::size_t elements, const LaneFormat& format, std::size_t words);

    std::size_t elements() const { return elements_; }
    const LaneFormat& format() const { return format_; }
    const Rounding& rounding() const { return rounding_; }
    std::size_t words() const { return words_; }
    std::size_t blocks() const { return exponents_.size(); }                       // K
    std::size_t block_elements() const { return format_.block_elements(words_); }  // L
    std::size_t stride() const { return datagram_bytes(Kind::data, words_); }

    // Contiguous, so that neighbours leave as one message.
    std::span<std::byte> datagrams() const { return datagrams_; }
    std::span<std::byte> datagram(std::size_t block) const {
        return datagrams_.subspan(block * stride(), stride());
    }
    std::span<std::uint32_t> checksums() const { return checksums_; }
    std::span<std::uint16_t> exponents() const { return exponents_; }  // this rank's
    std::span<std::uint16_t> agreed() const { return agreed_; }        // those of the sum
    // Each block's limit (BlockExponent), for the device to make its lanes.
    std::span<std::int32_t> limits() { return limits_; }

    // The device's side, called by the driver of the engine from one thread at a time. A call that throws
    // std::invalid_argument changes nothing.

    void require_new() const;
    // Only `driver` may make the calls below.
    void submitted(const void* driver, Ticket ticket);
    Ticket ticket_at(const void* driver) const;
    // `elements` are those of the special blocks, L of each. Sets their exponents and limits.
    void scanned(std::span<const std::int64_t> special_blocks, std::span<const float> elements);
    void packed(std::size_t blocks);
    // Once done: the sums of the blocks that are special on any rank, and the residuals of the outliers in
    // blocks that have some on this rank (zero for other elements).
    const BlockFloats& special_sums() const;
    const BlockFloats& outlier_residuals() const;

    // The engine's side.

    BlockExponent exponent(std::size_t block) const;
    const ElementsApart& apart() const { return apart_; }
    // L floats to fill.
    std::span<float> special_sum(std::size_t block) { return floats(special_sums_, block); }
    std::span<float> outlier_residual(std::size_t block) { return floats(outlier_residuals_, block); }
    // Written by Engine::report_progress() only.
    Progress progress;

  private:
    void check_exponents(std::span<const std::int64_t> special_blocks) const;
    void require_done() const;
    std::span<float> floats(BlockFloats& blocks, std::size_t block) const;

    std::size_t elements_;
    LaneFormat format_;
    std::size_t words_;
    Rounding rounding_;
    std::span<std::byte> datagrams_;
    std::span<std::uint32_t> checksums_;
    std::span<std::uint16_t> exponents_;
    std::span<std::uint16_t> agreed_;

    const void* driver_ = nullptr;
    Ticket ticket_ = 0;
    bool scanned_ = false;
    std::size_t packed_ = 0;
    ElementsApart apart_;
    std::map<std::size_t, BlockExponent> special_exponents_;  // this rank's
    std::vector<std::int32_t> limits_;
    BlockFloats special_sums_;
    BlockFloats outlier_residuals_;
};

}  // namespace inagg

#endif
