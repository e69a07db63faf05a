// SPDX-License-Identifier: Apache-2.0
//
// A contribution is what this rank sends for a chunk. This makes its packet, and checks the result that comes
// back against it (protocol.md, 3.2, 4 and 6).
#ifndef INAGG_CONTRIBUTION_HPP
#define INAGG_CONTRIBUTION_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/config.hpp"
#include "engine/failure.hpp"
#include "engine/slot.hpp"
#include "wire/wire.hpp"

namespace inagg {

class ContributionCodec {
  public:
    // `config` outlives this.
    explicit ContributionCodec(const EngineConfig& config);

    // The configuration is that of another way. `next_chunks`: by slot, that are the first ones on it.
    void change_way(std::span<const std::uint32_t> next_chunks);

    // On each way the slots begin with the way's first S chunk fields, whatever chunks these are.
    std::uint32_t field_of(std::uint32_t chunk) const { return chunk - base_of(chunk); }
    std::uint32_t chunk_of(std::uint32_t field) const { return field + base_of(field); }

    // Of the packet that is to leave: of a doubtful slot the query, else the contribution.
    std::size_t bytes(const Slot& slot) const {
        const bool query = slot.state() == Slot::State::doubtful;
        return datagram_bytes(query ? query_for(slot.kind()) : slot.kind(), words_);
    }

    // Makes the packet of a slot that announces its exponent already. `datagram` has bytes(slot) bytes. A
    // packet made again is the same to the byte until its result has been taken.
    void encode(const Slot& slot, std::span<std::byte> datagram) const;
    // Makes the query for a slot's result, of HEADER_BYTES. Its answer repeats `number`.
    void encode_query(const Slot& slot, std::uint32_t number, std::span<std::byte> datagram) const;

    // Whether a datagram of this size is a result, or an answer to a query, of this job and epoch.
    bool is_for_us(const Header& header, std::size_t bytes) const {
        return is_result(header.kind) && header.job == job_ && header.epoch == epoch_ &&
               bytes == datagram_bytes(header.kind, words_) &&
               (!is_query(header.kind) || header.announced.agrees());
    }
    // Whether a result of an outstanding chunk is to be used.
    bool is_right(const Slot& slot, const Header& header, std::span<const std::byte> words) const {
        const Announcement& announced = header.announced;
        return header.kind == result_of(slot.kind()) && header.checksum == checksum_of_sum(slot, words) &&
               announced.agrees() && valid_exponent(announced.exponent) &&
               announced.exponent >= slot.exponent() && (slot.flags() & ~announced.flags) == 0;
    }
    // Why not; nothing: it is right.
    std::optional<Fault> fault_in(const Slot& slot, const Header& header,
                                  std::span<const std::byte> words) const;

  private:
    std::uint32_t base_of(std::uint32_t chunk) const { return bases_[chunk & (bases_.size() - 1)]; }
    std::uint32_t checksum_of_sum(const Slot& slot, std::span<const std::byte> words) const {
        const Collective& collective = slot.collective();
        const std::uint32_t lanes =
            slot.kind() == Kind::exponent ? 0 : collective.sum_of(slot.assignment(), words);
        return lanes + workers_ * (collective.fingerprint() + mark_of_chunk(slot.chunk())) + rank_marks_;
    }

    const EngineConfig& config_;
    std::uint16_t job_;
    unsigned rank_;
    std::uint32_t epoch_;
    unsigned workers_;
    unsigned words_;
    std::uint32_t rank_marks_ = 0;      // the sum over all ranks (protocol.md, 4)
    std::vector<std::uint32_t> bases_;  // by slot: the chunk less its field, a multiple of S
};

}  // namespace inagg

#endif
