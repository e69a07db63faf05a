// SPDX-License-Identifier: Apache-2.0
#include "collective.hpp"

#include <algorithm>

#include "wire.hpp"

namespace inagg {
namespace {

constexpr std::size_t CACHE_LINE = 64;
constexpr std::size_t BLOCKS_AHEAD = 4;

}  // namespace

Collective::Collective(Ticket ticket, const Request& request, unsigned workers, std::size_t slots,
                       std::size_t words)
    : ticket_(ticket),
      request_(request),
      format_(request.lane_bits, workers),
      block_elements_(format_.block_elements(words)) {
    const std::size_t blocks = (request.data.size() + block_elements_ - 1) / block_elements_;
    lead_ = std::min(slots, blocks);
    exponents_.resize(blocks);
    state_.resize(blocks);
    count_chunks();
}

std::uint32_t Collective::fingerprint() const {
    const std::uint32_t width = request_.lane_bits == 32 ? 0 : request_.lane_bits == 16 ? 1 : 2;
    return static_cast<std::uint32_t>(8 * request_.data.size()) + 2 * width + (request_.average ? 1 : 0) +
           request_.context;
}

std::span<float> Collective::part_of(std::span<float> whole, std::size_t block) const {
    const std::size_t first = block * block_elements_;
    return whole.subspan(first, std::min(block_elements_, whole.size() - first));
}

void Collective::count_chunks() {
    chunks_ = static_cast<std::uint32_t>(lead_ - announced_ + blocks() + special_chunks());
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
    return {Role::special, static_cast<std::uint8_t>(place % class_chunks()),
            static_cast<std::uint32_t>(specials_[place / class_chunks()])};
}

std::uint32_t Collective::data_chunk(std::size_t block) const {
    return base_ + static_cast<std::uint32_t>(lead_ - announced_ + block);
}

std::uint32_t Collective::special_chunk(std::size_t block) const {
    const auto place = std::lower_bound(specials_.begin(), specials_.end(), block) - specials_.begin();
    return data_chunk(blocks() + static_cast<std::size_t>(place) * class_chunks());
}

// A block that is scanned for its exponent is touched for the first time, and the scan would wait for memory.
void Collective::prefetch(std::size_t index) const {
    if (index < blocks()) {
        const std::span<const float> elements = block(index);
        for (std::size_t i = 0; i < elements.size(); i += CACHE_LINE / sizeof(float)) {
            __builtin_prefetch(&elements[i], 1);
        }
    }
}

BlockExponent Collective::announce(std::size_t index) {
    prefetch(index + BLOCKS_AHEAD);
    const std::span<const float> elements = block(index);
    const BlockExponent found = block_exponent(format_, elements, request_.rounding);
    if (found.special) {
        state_[index] |= SPECIAL_HERE;
        std::vector<std::uint8_t>& classes = classes_[index];
        classes.resize(elements.size());
        classify(elements, classes);
    }
    return found;
}

void Collective::learn_exponent(std::size_t block, std::uint16_t code, bool special) {
    hear(block, code, special);
    state_[block] |= EXPONENT_KNOWN;
    ++known_;
    if (!closed()) {
        return;
    }
    for (std::size_t i = 0; i < blocks(); ++i) {
        if (this->special(i)) {
            specials_.push_back(i);
        }
    }
    count_chunks();
}

void Collective::hear(std::size_t block, std::uint16_t code, bool special) {
    exponents_[block] = code;
    state_[block] =
        static_cast<std::uint8_t>((state_[block] & ~SPECIAL) | (special ? HEARD | SPECIAL : HEARD));
}

void Collective::believe(std::size_t announced) {
    announced_ = announced;
    count_chunks();
    for (std::size_t i = 0; i < announced_; ++i) {
        if ((state_[i] & HEARD) != 0) {
            learn_exponent(i, exponents_[i], special(i));
        }
    }
}

std::span<float> Collective::part(const Assignment& assignment) const {
    const std::span<float> whole = block(assignment.block);
    const std::size_t size = block_elements_ / class_chunks();
    const std::size_t first = std::min(assignment.part * size, whole.size());
    return whole.subspan(first, std::min(size, whole.size() - first));
}

std::uint32_t Collective::fill(const Assignment& assignment, std::span<std::byte> words) const {
    const std::size_t index = assignment.block;
    if (assignment.role == Role::data) {
        const bool special_here = (state_[index] & SPECIAL_HERE) != 0;
        const std::uint32_t sum = quantise(format_, exponents_[index], block(index), special_here, words,
                                           request_.rounding, index * block_elements_);
        if (!request_.residual.empty()) {
            residual(format_, exponents_[index], block(index), special_here, words,
                     part_of(request_.residual, index));
        }
        return sum;
    }
    std::span<const std::uint8_t> classes;
    if (const auto found = classes_.find(index); found != classes_.end()) {
        const std::span<float> elements = part(assignment);
        const auto first = static_cast<std::size_t>(elements.data() - block(index).data());
        classes = std::span(found->second).subspan(first, elements.size());
    }
    return pack_classes(format_, classes, words);
}

std::uint32_t Collective::take(const Assignment& assignment, std::span<const std::byte> words) const {
    if (assignment.role == Role::data) {
        return dequantise(format_, exponents_[assignment.block], words, request_.average,
                          block(assignment.block));
    }
    return apply_classes(format_, words, part(assignment));
}

}  // namespace inagg
