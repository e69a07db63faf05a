// SPDX-License-Identifier: Apache-2.0
//
// One all-reduce: which chunk does what (protocol.md, 3.2 and 3.3), and what is known of its blocks so far.
#ifndef INAGG_COLLECTIVE_HPP
#define INAGG_COLLECTIVE_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "numerics.hpp"

namespace inagg {

using Ticket = std::uint64_t;  // 1, 2, 3... in the order of submission

// What a caller asks for. The data is read and written in place, and must live until the collective is done.
struct Request {
    std::span<float> data;
    unsigned lane_bits = 32;
    bool average = false;
};

enum class Role : std::uint8_t { exponent, data, special };

// A chunk's part in its collective: for role `special` the block's class lanes.
struct Assignment {
    Role role;
    std::size_t block;
};

class Collective {
  public:
    Collective(Ticket ticket, const Request& request, unsigned workers, std::size_t slots, std::size_t words);

    Ticket ticket() const { return ticket_; }
    const LaneFormat& format() const { return format_; }
    bool average() const { return request_.average; }
    std::uint32_t fingerprint() const;

    std::size_t blocks() const { return exponents_.size(); }  // K
    std::size_t lead() const { return lead_; }                // P, how far exponents travel ahead
    std::span<float> block(std::size_t index) const;

    void place(std::uint32_t base) { base_ = base; }
    std::uint32_t base() const { return base_; }  // c0, once placed

    // All exponents are known, so R is, and where the next collective starts.
    bool closed() const { return known_ == blocks(); }
    // Chunks known to belong to it: P + K, and R once closed.
    std::uint32_t chunks() const;
    bool contains(std::uint32_t chunk) const { return chunk - base_ < chunks(); }
    Assignment assignment(std::uint32_t chunk) const;
    // The chunk that carries the block's lanes, and its class lanes (closed, and special, only).
    std::uint32_t data_chunk(std::size_t block) const;
    std::uint32_t special_chunk(std::size_t block) const;

    // This rank's exponent of a block, for the packet that announces it. Remembers the classes of a special
    // block, which its result will overwrite.
    BlockExponent announce(std::size_t block);

    // The exponent of the sum. Once for every block.
    void learn_exponent(std::size_t block, std::uint16_t code, bool special);
    bool exponent_known(std::size_t block) const { return (state_[block] & EXPONENT_KNOWN) != 0; }
    std::uint16_t exponent(std::size_t block) const { return exponents_[block]; }
    bool special(std::size_t block) const { return (state_[block] & SPECIAL) != 0; }
    std::size_t special_blocks() const { return specials_.size(); }  // R, once closed

    void mark_summed(std::size_t block) { state_[block] |= SUMMED; }
    bool summed(std::size_t block) const { return (state_[block] & SUMMED) != 0; }

    std::uint32_t fill_data(std::size_t block, std::span<std::byte> words) const;
    std::uint32_t fill_classes(std::size_t block, std::span<std::byte> words) const;

    // One more of its chunks has its result.
    void chunk_done() { ++done_; }
    bool done() const { return closed() && done_ == chunks(); }

  private:
    enum State : std::uint8_t { EXPONENT_KNOWN = 1, SPECIAL = 2, SPECIAL_HERE = 4, SUMMED = 8 };

    Ticket ticket_;
    Request request_;
    LaneFormat format_;
    std::size_t block_elements_;
    std::size_t lead_;
    std::uint32_t base_ = 0;
    std::uint32_t done_ = 0;
    std::size_t known_ = 0;
    std::vector<std::uint16_t> exponents_;
    std::vector<std::uint8_t> state_;
    std::vector<std::size_t> specials_;                         // blocks, in order, once closed
    std::map<std::size_t, std::vector<std::uint8_t>> classes_;  // of the blocks that are special here
};

}  // namespace inagg

#endif
