// SPDX-License-Identifier: Apache-2.0
#include "numerics/staging.hpp"

#include <algorithm>
#include <string>

#include "wire/require.hpp"

namespace inagg {
namespace {

std::size_t blocks_of(std::size_t elements, const LaneFormat& format, std::size_t words) {
    const std::size_t size = format.block_elements(words);
    return elements / size + (elements % size != 0 ? 1 : 0);
}

// Bytes of memory for one block.
std::size_t block_bytes(std::size_t words) {
    return datagram_bytes(Kind::data, words) + sizeof(std::uint32_t) + 2 * sizeof(std::uint16_t);
}

// Takes the first `count` values of a type off the memory.
template <typename T>
std::span<T> cut(std::span<std::byte>& memory, std::size_t count) {
    const std::span<T> taken(reinterpret_cast<T*>(memory.data()), count);
    memory = memory.subspan(taken.size_bytes());
    return taken;
}

}  // namespace

std::size_t Staging::bytes_needed(std::size_t elements, const LaneFormat& format, std::size_t words) {
    require_words(words);
    return blocks_of(elements, format, words) * block_bytes(words);
}

Staging::Staging(std::size_t elements, const LaneFormat& format, std::size_t words, Rounding rounding,
                 std::span<std::byte> memory)
    : elements_(elements), format_(format), words_(words), rounding_(rounding) {
    const std::size_t needed = bytes_needed(elements, format, words);
    require(memory.size() >= needed, "the memory has " + std::to_string(memory.size()) + " bytes; staging " +
                                         std::to_string(elements) + " elements takes " +
                                         std::to_string(needed));
    require(reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(std::uint32_t) == 0,
            "the memory is not aligned to 4 bytes");
    const std::size_t blocks = blocks_of(elements, format, words);
    datagrams_ = cut<std::byte>(memory, blocks * stride());
    checksums_ = cut<std::uint32_t>(memory, blocks);
    exponents_ = cut<std::uint16_t>(memory, blocks);
    agreed_ = cut<std::uint16_t>(memory, blocks);
    limits_.assign(blocks, NO_LIMIT);
    progress.done = blocks == 0;
}

void Staging::require_new() const {
    require(ticket_ == 0, "this Staging was submitted before, as collective " + std::to_string(ticket_) +
                              "; each is for one collective");
}

void Staging::submitted(const void* driver, Ticket ticket) {
    driver_ = driver;
    ticket_ = ticket;
}

Ticket Staging::ticket_at(const void* driver) const {
    require(ticket_ != 0 && driver_ == driver, "this Staging was not submitted here");
    return ticket_;
}

void Staging::scanned(std::span<const std::int64_t> special_blocks, std::span<const float> elements) {
    require(!scanned_, "collective " + std::to_string(ticket_) + " has been scanned before");
    require(elements.size() == special_blocks.size() * block_elements(),
            std::to_string(special_blocks.size()) + " special blocks have " +
                std::to_string(special_blocks.size() * block_elements()) + " elements, not " +
                std::to_string(elements.size()));
    check_exponents(special_blocks);
    for (std::size_t k = 0; k < special_blocks.size(); ++k) {
        const auto block = static_cast<std::size_t>(special_blocks[k]);
        const std::size_t size = std::min(block_elements(), elements_ - block * block_elements());
        const std::span<const float> own = elements.subspan(k * block_elements(), size);
        const BlockExponent found = block_exponent(format_, own, rounding_);
        apart_.keep(block, own, found.limit);
        special_exponents_[block] = found;
        limits_[block] = static_cast<std::int32_t>(found.limit);
    }
    scanned_ = true;
}

BlockExponent Staging::exponent(std::size_t block) const {
    const auto found = special_exponents_.find(block);
    return found == special_exponents_.end() ? BlockExponent{.code = exponents_[block]} : found->second;
}

// Checks that all exponents are codes that a block can have, and that the marked ones are the given ones.
void Staging::check_exponents(std::span<const std::int64_t> special_blocks) const {
    const auto refuse = [](std::size_t block, const std::string& why) {
        throw std::invalid_argument("block " + std::to_string(block) + why);
    };
    std::size_t given = 0;
    for (std::size_t i = 0; i < blocks(); ++i) {
        const std::uint16_t code = exponents_[i] & ~SPECIAL;
        if (!valid_exponent(code)) {
            refuse(i, " has the exponent code " + std::to_string(code) + ", which no block has");
        }
        const bool is_next =
            given < special_blocks.size() && special_blocks[given] == static_cast<std::int64_t>(i);
        const bool marked = (exponents_[i] & SPECIAL) != 0;
        if (marked != is_next) {
            refuse(i, marked ? " is marked as special, but is not the next of the special blocks given"
                             : " is given as special, but its exponent is not marked");
        }
        given += is_next ? 1 : 0;
    }
    require(given == special_blocks.size(),
            "the special blocks given are not in ascending order, or beyond the last block");
}

void Staging::packed(std::size_t blocks) {
    require(blocks >= packed_, "collective " + std::to_string(ticket_) + " had " + std::to_string(packed_) +
                                   " blocks packed, and now " + std::to_string(blocks));
    require(blocks <= progress.known, std::to_string(blocks) + " blocks cannot be packed: of collective " +
                                          std::to_string(ticket_) + " the exponents of " +
                                          std::to_string(progress.known) + " are agreed");
    packed_ = blocks;
}

void Staging::require_done() const {
    require(progress.done, "collective " + std::to_string(ticket_) + " is not done");
}

const BlockFloats& Staging::special_sums() const {
    require_done();
    return special_sums_;
}

const BlockFloats& Staging::outlier_residuals() const {
    require_done();
    return outlier_residuals_;
}

std::span<float> Staging::floats(BlockFloats& blocks, std::size_t block) const {
    std::vector<float>& found = blocks[block];
    found.resize(block_elements());
    return found;
}

}  // namespace inagg
