// SPDX-License-Identifier: Apache-2.0
#include "engine/contribution.hpp"

#include <string>

namespace inagg {

ContributionCodec::ContributionCodec(const EngineConfig& config)
    : config_(config),
      job_(config.job.number),
      rank_(config.rank),
      epoch_(config.job.epoch),
      workers_(config.job.workers),
      words_(config.job.words),
      bases_(config.job.slots) {
    for (unsigned rank = 0; rank < workers_; ++rank) {
        rank_marks_ += mark_of_rank(rank);
    }
}

void ContributionCodec::change_way(std::span<const std::uint32_t> next_chunks) {
    job_ = config_.job.number;
    epoch_ = config_.job.epoch;
    for (const std::uint32_t chunk : next_chunks) {
        const std::size_t slot = chunk & (bases_.size() - 1);
        bases_[slot] = chunk - config_.job.first_in_slot_of(chunk);
    }
}

void ContributionCodec::encode(const Slot& slot, std::span<std::byte> datagram) const {
    const Collective& collective = slot.collective();
    std::uint32_t checksum = collective.fingerprint() + mark_of_chunk(slot.chunk()) + mark_of_rank(rank_);
    if (slot.kind() == Kind::data) {
        checksum += collective.fill(slot.assignment(), datagram.subspan(HEADER_BYTES));
    }
    inagg::encode({.kind = slot.kind(),
                   .rank = config_.sender_of(slot.chunk()),
                   .job = job_,
                   .announced = Announcement::of(slot.flags(), slot.exponent()),
                   .epoch = epoch_,
                   .chunk = field_of(slot.chunk()),
                   .checksum = checksum},
                  datagram.first<HEADER_BYTES>());
}

void ContributionCodec::encode_query(const Slot& slot, std::uint32_t number,
                                     std::span<std::byte> datagram) const {
    inagg::encode({.kind = query_for(slot.kind()),
                   .rank = config_.sender_of(slot.chunk()),
                   .job = job_,
                   .announced = Announcement{},
                   .epoch = epoch_,
                   .chunk = field_of(slot.chunk()),
                   .checksum = number},
                  datagram.first<HEADER_BYTES>());
}

std::optional<Fault> ContributionCodec::fault_in(const Slot& slot, const Header& header,
                                                 std::span<const std::byte> words) const {
    if (header.kind != result_of(slot.kind())) {
        return Fault{FailureCode::kind_mismatch,
                     "the result is of another kind than this rank's contribution; the ranks disagree on the "
                     "collective (do all submit the same sizes in the same order?)"};
    }
    const std::uint32_t checksum = checksum_of_sum(slot, words);
    if (header.checksum != checksum && slot.kind() == Kind::exponent) {
        return Fault{FailureCode::kind_mismatch,
                     "the ranks disagree on the size, lane width or operation of the collective, or the "
                     "result was corrupted"};
    }
    if (header.checksum != checksum) {
        return Fault{FailureCode::checksum,
                     "the checksum of the result is " + std::to_string(header.checksum) +
                         ", that of its lanes " + std::to_string(checksum) +
                         "; a contribution is missing, doubled or damaged, or the ranks disagree on the "
                         "collective"};
    }
    if (!is_right(slot, header, words)) {
        return Fault{FailureCode::checksum,
                     "the result's exponent or flags are not a maximum that includes this rank's; it was "
                     "corrupted"};
    }
    return std::nullopt;
}

}  // namespace inagg
