// SPDX-License-Identifier: Apache-2.0
#include "engine/collective.hpp"

#include <algorithm>

namespace inagg {
namespace {

using Blocks = std::variant<HostBlocks, StagedBlocks>;

Blocks blocks_of(const Request& request, const LaneFormat& format, std::size_t block_elements) {
    if (const auto* staging = std::get_if<Staging*>(&request.data)) {
        return Blocks(std::in_place_type<StagedBlocks>, **staging, request.average);
    }
    return Blocks(std::in_place_type<HostBlocks>, std::get<HostFloats>(request.data), format, block_elements,
                  request.average);
}

// The place of a block among those of an ascending list.
std::size_t place_of(std::size_t block, const std::vector<std::size_t>& blocks) {
    return static_cast<std::size_t>(std::ranges::lower_bound(blocks, block) - blocks.begin());
}

}  // namespace

std::size_t Request::elements() const {
    const auto* staging = std::get_if<Staging*>(&data);
    return staging != nullptr ? (*staging)->elements() : std::get<HostFloats>(data).elements();
}

Collective::Collective(Ticket ticket, const Request& request, unsigned workers, std::size_t slots,
                       std::size_t words)
    : ticket_(ticket),
      request_(request),
      format_(request.lane_bits, workers),
      block_elements_(format_.block_elements(words)),
      data_(blocks_of(request, format_, block_elements_)) {
    const std::size_t blocks = (request.elements() + block_elements_ - 1) / block_elements_;
    lead_ = std::min(slots, blocks);
    blocks_.resize(blocks);
    filled_ = request.filled && staging() == nullptr;
    packed_ = staging() == nullptr ? blocks : 0;
    count_chunks();
}

std::uint32_t Collective::fingerprint() const {
    const std::uint32_t width = request_.lane_bits == 32 ? 0 : request_.lane_bits == 16 ? 1 : 2;
    return static_cast<std::uint32_t>(8 * request_.elements()) + 2 * width + (request_.average ? 1 : 0) +
           request_.context;
}

void Collective::count_chunks() {
    chunks_ = static_cast<std::uint32_t>(lead_ - announced_ + blocks() + chunks_apart());
}

Assignment Collective::assignment(std::uint32_t chunk) const {
    const std::size_t position = chunk - base_;
    const std::size_t exponents = lead_ - announced_;
    if (position < exponents) {
        return {Role::exponent, 0, static_cast<std::uint32_t>(announced_ + position)};
    }
    if (position < exponents + blocks()) {
        return {Role::data, 0, static_cast<std::uint32_t>(position - exponents)};
    }
    const std::size_t place = position - exponents - blocks();
    const std::size_t classes = special_blocks() * class_chunks();
    if (place < classes) {
        return {Role::classes, static_cast<std::uint8_t>(place % class_chunks()),
                static_cast<std::uint32_t>(specials_[place / class_chunks()])};
    }
    return {Role::outliers, 0, static_cast<std::uint32_t>(wides_[place - classes])};
}

std::uint32_t Collective::data_chunk(std::size_t block) const {
    return base_ + static_cast<std::uint32_t>(lead_ - announced_ + block);
}

std::uint32_t Collective::class_chunk(std::size_t block) const {
    return data_chunk(blocks() + place_of(block, specials_) * class_chunks());
}

std::uint32_t Collective::outlier_chunk(std::size_t block) const {
    return data_chunk(blocks() + special_blocks() * class_chunks() + place_of(block, wides_));
}

bool Collective::sendable(const Assignment& assignment) const {
    const std::size_t block = assignment.block;
    switch (assignment.role) {
        case Role::exponent:
            return true;
        case Role::data:
            return exponent_known(block) && block < packed_;
        case Role::classes:
            return summed(block);
        case Role::outliers:
            return outlier_exponents_.contains(block);
    }
    return false;
}

BlockExponent Collective::announce(std::size_t block) {
    return std::visit([=](auto& data) { return data.announce(block); }, data_);
}

std::uint16_t Collective::announce_outliers(std::size_t block) const {
    const auto exponent = [&](const auto& data) {
        return exponent_within(format_, data.apart(block), GREATEST_FINITE, data.rounding());
    };
    return std::visit(exponent, data_);
}

void Collective::learn_exponent(std::size_t block, const Announcement& announced) {
    hear_exponent(block, announced);
    know_exponent(block);
}

void Collective::know_exponent(std::size_t block) {
    blocks_[block].state |= EXPONENT_KNOWN;
    ++progress_.known;
    if (!closed()) {
        return;
    }
    for (std::size_t i = 0; i < blocks(); ++i) {
        if (special(i)) {
            specials_.push_back(i);
        }
        if (wide(i)) {
            wides_.push_back(i);
        }
    }
    count_chunks();
}

void Collective::hear_exponent(std::size_t block, const Announcement& announced) {
    blocks_[block].exponent = announced.exponent;
    unsigned state = (blocks_[block].state & ~unsigned{SPECIAL | WIDE}) | HEARD;
    if ((announced.flags & (FLAG_SPECIAL | FLAG_WIDE)) != 0) {
        state |= SPECIAL;
    }
    if ((announced.flags & FLAG_WIDE) != 0) {
        state |= WIDE;
    }
    blocks_[block].state = static_cast<std::uint8_t>(state);
}

void Collective::learn_heard(std::size_t announced) {
    announced_ = announced;
    count_chunks();
    for (std::size_t i = 0; i < announced_; ++i) {
        if ((blocks_[i].state & HEARD) != 0) {
            know_exponent(i);
        }
    }
}

void Collective::invite(Collective* next) {
    successor_ = next;
    invitation_ = next != nullptr ? Invitation::pending : Invitation::declined;
}

void Collective::answer_invitation(bool all_announce) {
    invitation_ = all_announce ? Invitation::agreed : Invitation::declined;
    if (all_announce) {
        successor_->learn_heard(std::min(lead_, successor_->lead_));
    }
}

// The elements of a block that an assignment of role `classes` is about; none if the block is too short.
template <typename T>
std::span<T> Collective::part(std::span<T> block, const Assignment& assignment) const {
    const std::size_t size = block_elements_ / class_chunks();
    const std::size_t first = std::min(assignment.part * size, block.size());
    return block.subspan(first, std::min(size, block.size() - first));
}

std::span<std::byte> Collective::datagram(const Assignment& assignment) const {
    if (assignment.role != Role::data) {
        return {};
    }
    return std::visit([&](const auto& data) { return data.datagram(assignment.block); }, data_);
}

std::uint32_t Collective::fill(const Assignment& assignment, std::span<std::byte> words) const {
    const std::size_t block = assignment.block;
    const auto fill = [&](const auto& data) {
        if (assignment.role == Role::data) {
            return data.fill(block, blocks_[block].exponent, words);
        }
        return assignment.role == Role::classes
                   ? pack_classes(format_, part(data.apart(block), assignment), words)
                   : fill_outliers(data, block, words);
    };
    return std::visit(fill, data_);
}

template <typename Data>
std::uint32_t Collective::fill_outliers(const Data& data, std::size_t block,
                                        std::span<std::byte> words) const {
    const std::span<const float> outliers = data.apart(block);
    const std::uint16_t code = outlier_exponents_.at(block);
    const std::uint32_t sum =
        quantise(format_, code, outliers, GREATEST_FINITE, words, data.rounding(), block * block_elements_);
    if (!outliers.empty()) {
        outlier_residual(format_, code, outliers, words, data.outlier_residual(block));
    }
    return sum;
}

std::uint32_t Collective::sum_of(const Assignment& assignment, std::span<const std::byte> words) const {
    return lane_sum(assignment.role == Role::classes ? format_.class_format() : format_, words);
}

void Collective::take(const Assignment& assignment, std::span<const std::byte> words) {
    const std::size_t block = assignment.block;
    const auto apply = [&](const auto& data, std::uint8_t number, std::span<const std::byte> classes) {
        data.amend(block, [&](std::span<float> sums) {
            apply_classes(format_, classes, part(sums, {Role::classes, number, assignment.block}));
        });
    };
    const auto take = [&](const auto& data) {
        if (assignment.role == Role::data) {
            data.take(block, blocks_[block].exponent, special(block), words);
        } else if (assignment.role == Role::classes) {
            apply(data, assignment.part, words);
        } else {
            // NaNs and infinities stay what they are.
            const auto& kept = results_[block];
            data.amend(block, [&](std::span<float> sums) {
                add_outliers(format_, {blocks_[block].exponent, kept[0]},
                             {outlier_exponents_.at(block), words}, request_.average, sums);
            });
            for (std::size_t i = 1; i < kept.size(); ++i) {
                if (!kept[i].empty()) {
                    apply(data, static_cast<std::uint8_t>(i - 1), kept[i]);
                }
            }
        }
    };
    std::visit(take, data_);
    if (assignment.role == Role::outliers) {
        results_.erase(block);
    } else if (wide(block) && (assignment.role == Role::data || results_.contains(block))) {
        auto& kept = results_[block];
        kept.resize(1 + class_chunks());
        kept[assignment.role == Role::data ? 0 : 1 + assignment.part].assign(words.begin(), words.end());
    }
}

Staging* Collective::staging() const {
    const auto* staged = std::get_if<StagedBlocks>(&data_);
    return staged != nullptr ? &staged->staging() : nullptr;
}

bool Collective::report() {
    Staging& staging = *this->staging();
    Progress& progress = staging.progress;
    const Progress before = progress;
    for (; progress.known < blocks() && exponent_known(progress.known); ++progress.known) {
        const std::uint16_t flag = special(progress.known) ? Staging::SPECIAL : 0;
        staging.agreed()[progress.known] = blocks_[progress.known].exponent | flag;
    }
    while (progress.summed < blocks() && summed(progress.summed)) {
        ++progress.summed;
    }
    progress.done = done();
    return progress != before;
}

}  // namespace inagg
