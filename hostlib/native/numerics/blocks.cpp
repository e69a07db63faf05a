// SPDX-License-Identifier: Apache-2.0
#include "numerics/blocks.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "wire/wire.hpp"

namespace inagg {
namespace {

constexpr std::size_t CACHE_LINE = 64;
constexpr std::size_t BLOCKS_AHEAD = 4;
// Elements that are converted before they are streamed. They stay in the cache next to the processor.
constexpr std::size_t PIECE = 256;
// Bytes of a tensor of which nothing is left in a processor's own caches at the end of its sum.
constexpr std::size_t LARGE = std::size_t{1} << 20;

}  // namespace

std::span<float> HostBlocks::part_of(std::span<float> whole, std::size_t block) const {
    const std::size_t first = std::min(block * block_elements_, whole.size());
    return whole.subspan(first, std::min(block_elements_, whole.size() - first));
}

std::span<std::byte> HostBlocks::memory(std::size_t block) const {
    const std::size_t size = block_elements_ * bytes_of(floats_.type);
    const std::size_t first = block * size;
    return floats_.memory.subspan(first, std::min(size, floats_.memory.size() - first));
}

std::span<float> HostBlocks::read(std::size_t block) const {
    const std::span<std::byte> bytes = memory(block);
    const std::size_t count = bytes.size() / bytes_of(floats_.type);
    if (floats_.type == FloatType::float32) {
        return {reinterpret_cast<float*>(bytes.data()), count};
    }
    thread_local std::vector<float> widened;
    widened.resize(std::max(widened.size(), count));
    const std::span<float> found = std::span(widened).first(count);
    widen(floats_.type, bytes, found);
    return found;
}

// An ordinary store reads the line first. A large tensor's lines come from memory that all processors share,
// where the sums go again; so streaming saves half of that traffic, and the stores behind wait for none of
// it.
bool HostBlocks::worth_streaming(std::span<const std::byte> memory) {
    return memory.size() >= LARGE && reinterpret_cast<std::uintptr_t>(memory.data()) % STREAM_ALIGNMENT == 0;
}

// The scan for a block's exponent is the first to touch the block, and would wait for memory.
void HostBlocks::prefetch(std::size_t block) const {
    if (block * block_elements_ < floats_.elements()) {
        const std::span<const std::byte> bytes = memory(block);
        for (std::size_t line = 0; line < bytes.size(); line += CACHE_LINE) {
            __builtin_prefetch(&bytes[line]);
        }
    }
}

BlockExponent HostBlocks::announce(std::size_t block) {
    prefetch(block + BLOCKS_AHEAD);
    const std::span<const float> elements = read(block);
    const BlockExponent found = block_exponent(format_, elements, floats_.rounding);
    if (found.limit != NO_LIMIT) {
        apart_.keep(block, elements, found.limit);
    }
    return found;
}

std::uint32_t HostBlocks::fill(std::size_t block, std::uint16_t code, std::span<std::byte> words) const {
    const std::span<const float> elements = read(block);
    const std::uint32_t limit = apart_.limit(block);
    const std::uint32_t sum =
        quantise(format_, code, elements, limit, words, floats_.rounding, block * block_elements_);
    if (!floats_.residual.empty()) {
        residual(format_, code, elements, limit, words, part_of(floats_.residual, block));
    }
    return sum;
}

void HostBlocks::take(std::size_t block, std::uint16_t code, bool /*special*/,
                      std::span<const std::byte> words) const {
    const bool whole = floats_.type == FloatType::float32;
    const std::size_t size = bytes_of(floats_.type);
    std::span<std::byte> sums = memory(block);
    if (whole && !streamed_) {
        dequantise(format_, code, words, average_,
                   {reinterpret_cast<float*>(sums.data()), sums.size() / size});
        return;
    }
    // NOLINTBEGIN(cppcoreguidelines-pro-type-member-init): what is read has been filled.
    alignas(STREAM_ALIGNMENT) std::array<float, PIECE> piece;
    alignas(STREAM_ALIGNMENT) std::array<std::uint16_t, PIECE> halves;
    // NOLINTEND(cppcoreguidelines-pro-type-member-init)
    while (!sums.empty()) {
        const std::size_t count = std::min(sums.size() / size, PIECE);
        const std::span<float> some = std::span(piece).first(count);
        dequantise(format_, code, words.first(count * format_.lane_bytes()), average_, some);
        const std::span<std::byte> place = sums.first(count * size);
        const std::span<std::byte> rounded =
            streamed_ ? std::as_writable_bytes(std::span(halves).first(count)) : place;
        if (!whole) {
            narrow(floats_.type, some, rounded);
        }
        if (streamed_) {
            stream(whole ? std::as_bytes(some) : rounded, place);
        }
        sums = sums.subspan(place.size());
        words = words.subspan(count * format_.lane_bytes());
    }
}

BlockExponent StagedBlocks::announce(std::size_t block) const { return staging_->exponent(block); }

// The sum replaces the lanes: a block whose result is in is never sent again.
void StagedBlocks::take(std::size_t block, std::uint16_t code, bool special,
                        std::span<const std::byte> words) const {
    if (special) {
        dequantise(staging_->format(), code, words, average_, staging_->special_sum(block));
        return;
    }
    std::ranges::copy(words, staging_->datagram(block).subspan(HEADER_BYTES).begin());
}

}  // namespace inagg
