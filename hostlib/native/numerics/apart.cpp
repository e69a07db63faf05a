// SPDX-License-Identifier: Apache-2.0
#include "numerics/apart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "wire/wire.hpp"

namespace inagg {
namespace {

// What a class adds to the two counters of a class lane.
struct Counts {
    std::uint32_t plus;
    std::uint32_t minus;
};

Counts counts_of(float x) {
    const bool nan = std::isnan(x);
    const bool infinite = std::isinf(x);
    return {nan || (infinite && x > 0) ? 1U : 0U, nan || (infinite && x < 0) ? 1U : 0U};
}

std::uint32_t load_lane(const LaneFormat& format, std::span<const std::byte> words, std::size_t i) {
    std::uint32_t lane = 0;
    for (const std::byte byte : words.subspan(i * format.lane_bytes(), format.lane_bytes())) {
        lane = lane << 8 | std::to_integer<std::uint32_t>(byte);
    }
    return lane;
}

void store_lane(const LaneFormat& format, std::span<std::byte> words, std::size_t i, std::uint32_t lane) {
    const std::span<std::byte> place = words.subspan(i * format.lane_bytes(), format.lane_bytes());
    for (std::size_t byte = place.size(); byte-- > 0; lane >>= 8) {
        place[byte] = static_cast<std::byte>(lane);
    }
}

}  // namespace

void ElementsApart::keep(std::size_t block, std::span<const float> elements, std::uint32_t limit) {
    Kept kept{limit, std::vector<float>(elements.size())};
    std::ranges::transform(elements, kept.elements.begin(),
                           [=](float x) { return magnitude(x) > limit ? x : 0.0F; });
    const std::lock_guard lock(mutex_);
    blocks_[block] = std::move(kept);
    any_ = true;
}

const ElementsApart::Kept* ElementsApart::find(std::size_t block) const {
    if (!any_) {
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    return found == blocks_.end() ? nullptr : &found->second;
}

std::span<const float> ElementsApart::of(std::size_t block) const {
    const Kept* kept = find(block);
    return kept == nullptr ? std::span<const float>{} : kept->elements;
}

std::uint32_t ElementsApart::limit(std::size_t block) const {
    const Kept* kept = find(block);
    return kept == nullptr ? NO_LIMIT : kept->limit;
}

std::uint32_t pack_classes(const LaneFormat& format, std::span<const float> elements,
                           std::span<std::byte> words) {
    const LaneFormat lanes = format.class_format();
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < words.size() / lanes.lane_bytes(); ++i) {
        const Counts counts = counts_of(i < elements.size() ? elements[i] : 0.0F);
        const std::uint32_t lane = counts.plus | counts.minus << (format.guard_bits() + 1);
        store_lane(lanes, words, i, lane);
        sum += lane;
    }
    return sum;
}

void apply_classes(const LaneFormat& format, std::span<const std::byte> words, std::span<float> block) {
    const LaneFormat lanes = format.class_format();
    const unsigned minus_shift = format.guard_bits() + 1;
    const std::uint32_t counter = (std::uint32_t{1} << minus_shift) - 1;
    for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t lane = load_lane(lanes, words, i);
        const bool plus = (lane & counter) != 0;
        const bool minus = ((lane >> minus_shift) & counter) != 0;
        if (plus && minus) {
            block[i] = std::numeric_limits<float>::quiet_NaN();
        } else if (plus || minus) {
            block[i] =
                plus ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
        }
    }
}

void outlier_residual(const LaneFormat& format, std::uint16_t code, std::span<const float> apart,
                      std::span<const std::byte> words, std::span<float> out) {
    if (out.empty()) {
        return;
    }
    std::vector<float> found(apart.size());
    residual(format, code, apart, GREATEST_FINITE, words, found);
    for (std::size_t i = 0; i < apart.size(); ++i) {
        if (apart[i] != 0 && magnitude(apart[i]) <= GREATEST_FINITE) {
            out[i] = found[i];
        }
    }
}

void add_outliers(const LaneFormat& format, Sums together, Sums outliers, bool average,
                  std::span<float> block) {
    const auto value = [&](const Sums& sums, std::size_t i) {
        const std::uint32_t lane = load_lane(format, sums.words, i) - format.zero_sum();
        const int exponent = sums.code == 0 ? 0 : (sums.code - EXPONENT_BIAS) - format.fraction_bits();
        return std::ldexp(static_cast<double>(static_cast<std::int32_t>(lane)), exponent);
    };
    for (std::size_t i = 0; i < block.size(); ++i) {
        if (load_lane(format, outliers.words, i) != format.zero_sum()) {
            const double sum = value(together, i) + value(outliers, i);
            block[i] = static_cast<float>(average ? sum / format.workers() : sum);
        }
    }
}

}  // namespace inagg
