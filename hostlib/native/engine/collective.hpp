// SPDX-License-Identifier: Apache-2.0
//
// One all-reduce: which chunk does what (protocol.md, 3.2 and 3.3), and what is known of its blocks.
//
// A collective passes through these states. Its exponents may become known before it is placed, when the
// collective before it carries them.
//
//   submitted     until it is first in line and filled: its first chunk is not known
//     | place()
//   placed        chunks are sent as their exponents, lanes and slots allow
//     | the last learn_exponent()
//   closed        the special and wide blocks are known, so its last chunk is
//     | the last chunk_done()
//   done          every element has its sum
//     | report() of that, if it is staged
//   settled       nobody needs it any more
//
// Its last P blocks can announce the exponents of the next collective's first blocks (protocol.md, 3.2), if
// all ranks have submitted that when they send the first of them. This is the Invitation:
//
//   open --invite()--> pending --answer_invitation()--> agreed, or declined by some rank
//     \--invite(), without a next collective--> declined
#ifndef INAGG_COLLECTIVE_HPP
#define INAGG_COLLECTIVE_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "engine/cache_line.hpp"
#include "numerics/blocks.hpp"
#include "numerics/numerics.hpp"
#include "numerics/staging.hpp"
#include "wire/wire.hpp"

namespace inagg {

// An all-reduce that a caller asks for. Its memory must live until the collective is done. Requests under way
// at the same time must not share memory.
struct Request {
    std::variant<HostFloats, Staging*> data;
    unsigned lane_bits = 32;  // equal to the Staging's, if there is one
    bool average = false;
    // A number that is equal on all ranks if they agree: part of the fingerprint (protocol.md, 3.2).
    std::uint32_t context = 0;
    // Whether the floats are in memory. Otherwise the collective has its place, and Engine::filled() says
    // when they are. A Staging is filled when it is scanned.
    bool filled = true;

    std::size_t elements() const;
};

enum class Role : std::uint8_t { exponent, data, classes, outliers };

// A chunk's part in its collective. Role `classes`: the class lanes of a part of the block.
struct Assignment {
    Role role = Role::exponent;
    std::uint8_t part = 0;
    std::uint32_t block = 0;
};

enum class Invitation : std::uint8_t {
    open,      // none of the last P blocks has been sent
    pending,   // this rank announces the next collective; whether all ranks do is not known
    agreed,    // all ranks announce it
    declined,  // some rank, perhaps this one, does not
};

class Collective {
  public:
    Collective(Ticket ticket, const Request& request, unsigned workers, std::size_t slots, std::size_t words);

    Ticket ticket() const { return ticket_; }
    const LaneFormat& format() const { return format_; }
    std::uint32_t context() const { return request_.context; }
    std::uint32_t fingerprint() const;

    // States, as drawn above.
    void place(std::uint32_t base) {
        base_ = base;
        placed_ = true;
    }
    bool placed() const { return placed_; }
    bool closed() const { return progress_.known == blocks(); }
    bool done() const { return progress_.done == chunks_ && closed(); }
    bool settled() const { return done() && (staging() == nullptr || staging()->progress.done); }

    // Chunks, once placed.
    std::uint32_t base() const { return base_; }      // c0
    std::uint32_t chunks() const { return chunks_; }  // X + K, and C R + V once closed
    std::uint32_t end() const { return base_ + chunks_; }
    bool contains(std::uint32_t chunk) const { return chunk - base_ < chunks_; }
    Assignment assignment(std::uint32_t chunk) const;
    // The chunk that carries the block's lanes.
    std::uint32_t data_chunk(std::size_t block) const;
    // Once closed: the first of the class_chunks() that carry a special block's class lanes, and the chunk
    // that carries a wide block's outliers.
    std::uint32_t class_chunk(std::size_t block) const;
    std::uint32_t outlier_chunk(std::size_t block) const;
    unsigned class_chunks() const { return format_.class_chunks(); }  // C
    // Once closed.
    std::size_t special_blocks() const { return specials_.size(); }  // R
    std::size_t wide_blocks() const { return wides_.size(); }        // V
    std::size_t chunks_apart() const { return special_blocks() * class_chunks() + wide_blocks(); }

    // Blocks.
    std::size_t blocks() const { return blocks_.size(); }  // K
    std::size_t lead() const { return lead_; }             // P: how many blocks ahead exponents travel
    bool exponent_known(std::size_t block) const { return (blocks_[block].state & EXPONENT_KNOWN) != 0; }
    std::uint16_t exponent(std::size_t block) const { return blocks_[block].exponent; }
    bool special(std::size_t block) const { return (blocks_[block].state & SPECIAL) != 0; }
    bool wide(std::size_t block) const { return (blocks_[block].state & WIDE) != 0; }
    bool summed(std::size_t block) const { return (blocks_[block].state & SUMMED) != 0; }
    void mark_summed(std::size_t block) { blocks_[block].state |= SUMMED; }
    // Whether the lanes of a chunk can be made.
    bool sendable(const Assignment& assignment) const;

    // This rank's exponent of a block, for the packet that announces it.
    BlockExponent announce(std::size_t block);
    std::uint16_t announce_outliers(std::size_t block) const;
    // Takes the exponent and flags of a block's sum; once for every block.
    void learn_exponent(std::size_t block, const Announcement& announced);
    // Keeps those of a block's sum, which the collective before carried, until that one's invitation is
    // answered.
    void hear_exponent(std::size_t block, const Announcement& announced);
    // Takes the exponent of a wide block's outliers.
    void learn_outlier_exponent(std::size_t block, std::uint16_t code) { outlier_exponents_[block] = code; }

    Invitation invitation() const { return invitation_; }
    Collective* successor() const { return successor_; }  // whose blocks this rank announces
    void invite(Collective* next);
    void answer_invitation(bool all_announce);
    // Whether the invitation is answered, so that the next collective can be placed.
    bool successor_decided() const {
        return invitation_ == Invitation::agreed || invitation_ == Invitation::declined;
    }

    // Where the datagram of a chunk has to be made; empty: anywhere.
    std::span<std::byte> datagram(const Assignment& assignment) const;
    // Fills the words of a chunk; returns the sum of the lanes.
    std::uint32_t fill(const Assignment& assignment, std::span<std::byte> words) const;
    // The sum of the lanes in a result's words.
    std::uint32_t sum_of(const Assignment& assignment, std::span<const std::byte> words) const;
    // Takes a result's words, which sum_of() has shown to be right. Until then the chunk can be filled again.
    void take(const Assignment& assignment, std::span<const std::byte> words);

    // Whether take() may run beside the work on other blocks. So may sum_of(), and what makes lanes:
    // announce() and fill(). All else is for one thread at a time.
    bool taken_alone(const Assignment& assignment) const {
        return assignment.role == Role::data && !special(assignment.block);
    }

    // A packet of it has left; one of its chunks has its result.
    void chunk_sent(double now) { first_sent_ = first_sent_.value_or(now); }
    void chunk_done() { ++progress_.done; }
    std::optional<double> first_sent() const { return first_sent_; }
    // Whether all ranks are known to have submitted it: one of its chunks has a result, or its exponents were
    // announced by the collective before.
    bool all_began() const { return progress_.done > 0 || announced_ > 0; }

    // Whether exponents can be announced.
    void set_filled() { filled_ = true; }
    bool filled() const { return filled_; }
    // Staged collectives: what the device has done. Others are packed from the start.
    Staging* staging() const;                       // null: not staged
    std::size_t packed() const { return packed_; }  // blocks
    void set_packed(std::size_t blocks) { packed_ = blocks; }
    // Writes to the Staging how far this is; true if that is news. Takes time for what is new only.
    bool report();

  private:
    enum State : std::uint8_t { EXPONENT_KNOWN = 1, SPECIAL = 2, SUMMED = 4, HEARD = 8, WIDE = 16 };

    void know_exponent(std::size_t block);
    void learn_heard(std::size_t announced);
    void count_chunks();
    template <typename Data>
    std::uint32_t fill_outliers(const Data& data, std::size_t block, std::span<std::byte> words) const;
    template <typename T>
    std::span<T> part(std::span<T> block, const Assignment& assignment) const;

    Ticket ticket_;
    Request request_;
    LaneFormat format_;
    std::size_t block_elements_;
    std::variant<HostBlocks, StagedBlocks> data_;
    std::size_t lead_;
    std::size_t announced_ = 0;  // A: the exponents of the first A blocks travel with the previous collective
    bool placed_ = false;
    std::uint32_t base_ = 0;
    std::uint32_t chunks_ = 0;
    struct Block {
        std::uint16_t exponent = 0;
        std::uint8_t state = 0;
    };
    std::vector<Block> blocks_;
    std::vector<std::size_t> specials_;  // blocks in ascending order, once closed
    std::vector<std::size_t> wides_;     // the same
    std::map<std::size_t, std::uint16_t> outlier_exponents_;
    // Of each wide block until its outliers are in: the words of its sum, then those of its classes.
    std::map<std::size_t, std::vector<std::vector<std::byte>>> results_;
    bool filled_;
    std::size_t packed_;
    std::optional<double> first_sent_;
    Invitation invitation_ = Invitation::open;
    Collective* successor_ = nullptr;
    // Written for each chunk, on a line of the cache of its own: packet threads read the others all the time.
    struct alignas(CACHE_LINES_APART) {
        std::uint32_t done = 0;  // chunks
        std::size_t known = 0;   // exponents
    } progress_;
};

}  // namespace inagg

#endif
