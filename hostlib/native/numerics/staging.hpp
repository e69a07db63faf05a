// SPDX-License-Identifier: Apache-2.0
//
// What stands between a device and the engine, for one collective whose floats the processor does not touch
// (design.md, D11): memory that both reach, with a place for each block's datagram, exponents and checksum.
#ifndef INAGG_STAGING_HPP
#define INAGG_STAGING_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "numerics/numerics.hpp"
#include "numerics/special_classes.hpp"
#include "wire/wire.hpp"

namespace inagg {

using Ticket = std::uint64_t;  // 1, 2, 3... in the order of submission

// The sums, L floats each, of blocks that are special somewhere.
using SpecialSums = std::map<std::size_t, std::vector<float>>;

// How far a collective is, in blocks from the first on.
struct Progress {
    std::size_t known = 0;   // so many have an agreed exponent
    std::size_t summed = 0;  // so many have the lanes of their sums
    bool done = false;

    bool operator==(const Progress&) const = default;
};

class Staging {
  public:
    // Set in an exponent that stands in the memory: the block is special.
    static constexpr std::uint16_t SPECIAL = 0x8000;

    // The memory outlives the collective. Throws std::invalid_argument.
    Staging(std::size_t elements, const LaneFormat& format, std::size_t words, std::span<std::byte> memory);
    static std::size_t bytes_needed(std::size_t elements, const LaneFormat& format, std::size_t words);

    std::size_t elements() const { return elements_; }
    const LaneFormat& format() const { return format_; }
    std::size_t words() const { return words_; }
    std::size_t blocks() const { return exponents_.size(); }                       // K
    std::size_t block_elements() const { return format_.block_elements(words_); }  // L
    std::size_t stride() const { return datagram_bytes(Kind::data, words_); }

    // One behind the other, so that neighbours leave in one piece.
    std::span<std::byte> datagrams() const { return datagrams_; }
    std::span<std::byte> datagram(std::size_t block) const {
        return datagrams_.subspan(block * stride(), stride());
    }
    std::span<std::uint32_t> checksums() const { return checksums_; }
    std::span<std::uint16_t> exponents() const { return exponents_; }  // this rank's
    std::span<std::uint16_t> agreed() const { return agreed_; }        // those of the sum

    // The device's side, for whoever drives the engine; one thread at a time. All throw
    // std::invalid_argument, and then change nothing.

    void require_new() const;
    // `driver` is who takes the calls below.
    void submitted(const void* driver, Ticket ticket);
    Ticket ticket_at(const void* driver) const;
    // `elements` are those of the special blocks, L of each.
    void scanned(std::span<const std::int64_t> special_blocks, std::span<const float> elements);
    void packed(std::size_t blocks);
    // Once done.
    const SpecialSums& special_sums() const;

    // The engine's side.

    // What the elements of a block are that is special here.
    std::span<const std::uint8_t> classes(std::size_t block) const { return classes_.of(block); }
    // L floats for the sum of a block that is special anywhere.
    std::span<float> special_sum(std::size_t block);
    // Written by Engine::report_progress() alone.
    Progress progress;

  private:
    void check_exponents(std::span<const std::int64_t> special_blocks) const;

    std::size_t elements_;
    LaneFormat format_;
    std::size_t words_;
    std::span<std::byte> datagrams_;
    std::span<std::uint32_t> checksums_;
    std::span<std::uint16_t> exponents_;
    std::span<std::uint16_t> agreed_;

    const void* driver_ = nullptr;
    Ticket ticket_ = 0;
    bool scanned_ = false;
    std::size_t packed_ = 0;
    SpecialClasses classes_;
    SpecialSums special_sums_;
};

}  // namespace inagg

#endif
