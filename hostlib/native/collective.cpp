// SPDX-License-Identifier: Apache-2.0
#include "collective.hpp"

#include <algorithm>

#include "wire.hpp"

namespace inagg {

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
}

std::uint32_t Collective::fingerprint() const {
    return static_cast<std::uint32_t>(4 * request_.data.size()) + (request_.lane_bits == 16 ? 2 : 0) +
           (request_.average ? 1 : 0);
}

std::span<float> Collective::block(std::size_t index) const {
    const std::size_t first = index * block_elements_;
    return request_.data.subspan(first, std::min(block_elements_, request_.data.size() - first));
}

std::uint32_t Collective::chunks() const {
    return static_cast<std::uint32_t>(lead_ + blocks() + specials_.size());
}

Assignment Collective::assignment(std::uint32_t chunk) const {
    const std::size_t position = chunk - base_;
    if (position < lead_) {
        return {Role::exponent, position};
    }
    if (position < lead_ + blocks()) {
        return {Role::data, position - lead_};
    }
    return {Role::special, specials_[position - lead_ - blocks()]};
}

std::uint32_t Collective::data_chunk(std::size_t block) const {
    return base_ + static_cast<std::uint32_t>(lead_ + block);
}

std::uint32_t Collective::special_chunk(std::size_t block) const {
    const auto place = std::lower_bound(specials_.begin(), specials_.end(), block) - specials_.begin();
    return base_ + static_cast<std::uint32_t>(lead_ + blocks() + static_cast<std::size_t>(place));
}

BlockExponent Collective::announce(std::size_t index) {
    const std::span<const float> elements = block(index);
    const BlockExponent found = block_exponent(format_, elements);
    if (found.special) {
        state_[index] |= SPECIAL_HERE;
        std::vector<std::uint8_t>& classes = classes_[index];
        classes.resize(elements.size());
        classify(elements, classes);
    }
    return found;
}

void Collective::learn_exponent(std::size_t block, std::uint16_t code, bool special) {
    exponents_[block] = code;
    state_[block] |= special ? EXPONENT_KNOWN | SPECIAL : EXPONENT_KNOWN;
    ++known_;
    if (!closed()) {
        return;
    }
    for (std::size_t i = 0; i < blocks(); ++i) {
        if (this->special(i)) {
            specials_.push_back(i);
        }
    }
}

std::uint32_t Collective::fill_data(std::size_t index, std::span<std::byte> words) const {
    const bool special_here = (state_[index] & SPECIAL_HERE) != 0;
    return quantise(format_, exponents_[index], block(index), special_here, words);
}

std::uint32_t Collective::fill_classes(std::size_t index, std::span<std::byte> words) const {
    const auto found = classes_.find(index);
    return pack_classes(format_, found == classes_.end() ? std::span<const std::uint8_t>{} : found->second,
                        words);
}

}  // namespace inagg
