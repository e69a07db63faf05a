// SPDX-License-Identifier: Apache-2.0
//
// One all-reduce: which chunk does what (protocol.md, 3.2 and 3.3), and what is known of its blocks so far.
#ifndef INAGG_COLLECTIVE_HPP
#define INAGG_COLLECTIVE_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "numerics/blocks.hpp"
#include "numerics/numerics.hpp"
#include "numerics/staging.hpp"

namespace inagg {

// What a caller asks for. The memory must live until the collective is done. Requests that are under way
// together must not share memory.
struct Request {
    std::variant<HostFloats, Staging*> data;
    unsigned lane_bits = 32;  // those of the Staging, if it is one
    bool average = false;
    // What the ranks agree on besides, as the caller sums it up: part of the fingerprint (protocol.md, 3.2).
    std::uint32_t context = 0;

    std::size_t elements() const;
};

enum class Role : std::uint8_t { exponent, data, special };

// A chunk's part in its collective: for role `special` the class lanes of a part of the block.
struct Assignment {
    Role role;
    std::uint8_t part = 0;
    std::uint32_t block = 0;
};

// Whether the exponents of the next collective's first blocks travel with the last blocks of this one
// (protocol.md, 3.2).
enum class Invitation : std::uint8_t {
    open,      // none of those last blocks has been sent
    pending,   // this rank has a next collective and announces its blocks; do all?
    agreed,    // all do
    declined,  // some rank does not, this one perhaps
};

class Collective {
  public:
    Collective(Ticket ticket, const Request& request, unsigned workers, std::size_t slots, std::size_t words);

    Ticket ticket() const { return ticket_; }
    const LaneFormat& format() const { return format_; }
    std::uint32_t fingerprint() const;

    std::size_t blocks() const { return exponents_.size(); }  // K
    std::size_t lead() const { return lead_; }                // P, how far exponents travel ahead

    void place(std::uint32_t base) {
        base_ = base;
        placed_ = true;
    }
    bool placed() const { return placed_; }
    std::uint32_t base() const { return base_; }  // c0, once placed
    // A: the exponents of so many first blocks travel with the collective before it.
    std::size_t announced() const { return announced_; }

    // All exponents are known, so R is, and where the next collective starts.
    bool closed() const { return known_ == blocks(); }
    // Chunks known to belong to it: X + K, and R once closed.
    std::uint32_t chunks() const { return chunks_; }
    // Once placed.
    bool contains(std::uint32_t chunk) const { return chunk - base_ < chunks_; }
    Assignment assignment(std::uint32_t chunk) const;
    // The chunk that carries the block's lanes, and the first with its class lanes (closed, and special,
    // only).
    std::uint32_t data_chunk(std::size_t block) const;
    std::uint32_t special_chunk(std::size_t block) const;
    unsigned class_chunks() const { return format_.class_chunks(); }

    // Whether this rank's exponents are known, so that it can take part: always, unless its elements are
    // staged.
    bool scanned = true;
    // This rank's exponent of a block, for the packet that announces it.
    BlockExponent announce(std::size_t block);

    // The exponent of the sum, once for every block. `hear` is for one that counts only if it turns out that
    // all ranks announced theirs, of the first `announced` blocks: then `believe` learns those heard.
    void learn_exponent(std::size_t block, std::uint16_t code, bool special);
    void hear(std::size_t block, std::uint16_t code, bool special);
    void believe(std::size_t announced);
    bool exponent_known(std::size_t block) const { return (state_[block] & EXPONENT_KNOWN) != 0; }
    std::uint16_t exponent(std::size_t block) const { return exponents_[block]; }
    bool special(std::size_t block) const { return (state_[block] & SPECIAL) != 0; }
    // The lanes of so many blocks can be sent once their exponents are known: all, unless they are staged.
    std::size_t packed;
    bool sendable(std::size_t block) const { return exponent_known(block) && block < packed; }
    std::size_t special_chunks() const { return specials_.size() * class_chunks(); }  // R, once closed
    std::size_t special_blocks() const { return specials_.size(); }

    void mark_summed(std::size_t block) { state_[block] |= SUMMED; }
    bool summed(std::size_t block) const { return (state_[block] & SUMMED) != 0; }

    // Where a chunk's datagram has to be made; nothing: anywhere.
    std::span<std::byte> datagram(const Assignment& assignment) const;
    // Fills the words of a chunk; returns the sum of the lanes.
    std::uint32_t fill(const Assignment& assignment, std::span<std::byte> words) const;
    // The same sum of a result's words, which take() then takes if it is right. Until then the chunk can be
    // filled again.
    std::uint32_t sum_of(const Assignment& assignment, std::span<const std::byte> words) const;
    void take(const Assignment& assignment, std::span<const std::byte> words) const;

    // One more of its chunks has its result.
    void chunk_done() { ++done_; }
    bool begun() const { return done_ > 0; }
    // When its first packet left; nothing before.
    std::optional<double> first_sent;
    bool done() const { return done_ == chunks_ && closed(); }

    // Null unless its elements are staged.
    Staging* staging() const;
    // Tells the Staging how far this is; true if that is news. Takes time for what is new only.
    bool report();
    // There is nothing more to do, nor to tell.
    bool settled() const { return done() && (staging() == nullptr || staging()->progress.done); }

    Invitation invitation = Invitation::open;
    Collective* successor = nullptr;  // whose blocks it announces, unless `open` or `declined`

  private:
    enum State : std::uint8_t { EXPONENT_KNOWN = 1, SPECIAL = 2, SUMMED = 4, HEARD = 8 };

    void count_chunks();
    template <typename T>
    std::span<T> part(std::span<T> block, const Assignment& assignment) const;

    Ticket ticket_;
    Request request_;
    LaneFormat format_;
    std::size_t block_elements_;
    std::variant<HostBlocks, StagedBlocks> data_;
    std::size_t lead_;
    std::size_t announced_ = 0;
    bool placed_ = false;
    std::uint32_t base_ = 0;
    std::uint32_t chunks_ = 0;
    std::uint32_t done_ = 0;
    std::size_t known_ = 0;
    std::vector<std::uint16_t> exponents_;
    std::vector<std::uint8_t> state_;
    std::vector<std::size_t> specials_;  // blocks, in order, once closed
};

}  // namespace inagg

#endif
