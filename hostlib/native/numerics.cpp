// SPDX-License-Identifier: Apache-2.0
#include "numerics.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels.hpp"
#include "wire.hpp"

namespace inagg {
namespace {

struct NamedKernels {
    const char* name;
    const Kernels* kernels;
};

std::vector<NamedKernels> runnable_kernels() {
    std::vector<NamedKernels> found;
#ifdef INAGG_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) {
        found.push_back({"x86-64-v4", &KERNELS_x86_64_v4});
    }
    if (__builtin_cpu_supports("x86-64-v3")) {
        found.push_back({"x86-64-v3", &KERNELS_x86_64_v3});
    }
    if (__builtin_cpu_supports("x86-64-v2")) {
        found.push_back({"x86-64-v2", &KERNELS_x86_64_v2});
    }
#endif
    found.push_back({"baseline", &KERNELS_baseline});
    return found;
}

std::atomic<const Kernels*> chosen = runnable_kernels().front().kernels;

const Kernels& kernels() { return *chosen.load(std::memory_order_relaxed); }

constexpr int FLOAT_FRACTION_BITS = 23;
constexpr int LEAST_NORMAL = -126;  // the exponent of the least normal float
constexpr int GREATEST_NORMAL = 127;

// 2^exponent, for the exponent of a normal float.
float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent - LEAST_NORMAL + 1)
                                << FLOAT_FRACTION_BITS);
}

// The same for a double, for -1022 <= exponent <= 1023.
double wide_power_of_two(int exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

unsigned char* raw(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

const unsigned char* raw(std::span<const std::byte> bytes) {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

std::uint32_t load_lane(const LaneFormat& format, const unsigned char* words, std::size_t i) {
    std::uint32_t lane = 0;
    for (std::size_t byte = 0; byte < format.lane_bytes(); ++byte) {
        lane = lane << 8 | words[i * format.lane_bytes() + byte];
    }
    return lane;
}

void store_lane(const LaneFormat& format, unsigned char* words, std::size_t i, std::uint32_t lane) {
    for (std::size_t byte = format.lane_bytes(); byte-- > 0; lane >>= 8) {
        words[i * format.lane_bytes() + byte] = static_cast<unsigned char>(lane);
    }
}

std::size_t lanes_in(const LaneFormat& format, std::span<const std::byte> words) {
    return words.size() / format.lane_bytes();
}

// Lanes first, first + 1... to the end of `words`: summed.
std::uint32_t sum_from(const LaneFormat& format, std::span<const std::byte> words, std::size_t first) {
    std::uint32_t sum = 0;
    for (std::size_t i = first; i < lanes_in(format, words); ++i) {
        sum += load_lane(format, raw(words), i);
    }
    return sum;
}

// The same lanes set to `lane`; their sum.
std::uint32_t fill_from(const LaneFormat& format, std::span<std::byte> words, std::size_t first,
                        std::uint32_t lane) {
    const std::size_t end = lanes_in(format, words);
    for (std::size_t i = first; i < end; ++i) {
        store_lane(format, raw(words), i, lane);
    }
    return static_cast<std::uint32_t>(end - first) * lane;
}

}  // namespace

std::vector<std::string> available_kernels() {
    std::vector<std::string> names;
    for (const NamedKernels& found : runnable_kernels()) {
        names.emplace_back(found.name);
    }
    return names;
}

void use_kernels(const std::string& name) {
    for (const NamedKernels& found : runnable_kernels()) {
        if (name == found.name) {
            chosen = found.kernels;
            return;
        }
    }
    throw std::invalid_argument("this machine cannot run kernels named " + name);
}

LaneFormat::LaneFormat(unsigned bits, unsigned workers)
    : bits_(bits), workers_(workers), guard_bits_(static_cast<unsigned>(std::bit_width(workers - 1))) {
    if (bits != 16 && bits != 32) {
        throw std::invalid_argument("lane_bits is " + std::to_string(bits) + "; it must be 16 or 32");
    }
    if (workers < 1 || workers > 64) {
        throw std::invalid_argument("workers is " + std::to_string(workers) + "; it must be 1 to 64");
    }
}

std::size_t LaneFormat::block_elements(std::size_t words) const { return words_bytes(words) / lane_bytes(); }

bool valid_exponent(std::uint16_t code) {
    return code == 0 || (code >= EXPONENT_BIAS + LEAST_EXPONENT && code <= EXPONENT_BIAS + GREATEST_EXPONENT);
}

BlockExponent block_exponent(const LaneFormat& format, std::span<const float> block) {
    const ScanResult found = kernels().scan(block.data(), block.size());
    if (found.greatest == 0) {
        return {0, found.special};
    }
    // m = f x 2^k, 1/2 <= f < 1, with f = significand / 2^24.
    const int shift = std::countl_zero(found.greatest) - (31 - FLOAT_FRACTION_BITS);
    std::uint32_t significand;
    int k;
    if (shift > 0) {  // subnormal: the greatest set bit is below that of a normal float
        significand = found.greatest << shift;
        k = FLOAT_FRACTION_BITS + 1 - shift + (LEAST_NORMAL - FLOAT_FRACTION_BITS);
    } else {
        constexpr std::uint32_t implicit = std::uint32_t{1} << FLOAT_FRACTION_BITS;
        significand = (found.greatest & (implicit - 1)) | implicit;
        k = static_cast<int>(found.greatest >> FLOAT_FRACTION_BITS) + LEAST_NORMAL;
    }
    // f x 2^F rounds to 2^F from 2^F - 1/2 on: half way is a tie, and 2^F is the even one.
    const int dropped = FLOAT_FRACTION_BITS + 1 - format.fraction_bits();
    if (dropped > 0) {
        const std::uint32_t half = std::uint32_t{1} << (dropped - 1);
        k += significand + half >= (std::uint32_t{1} << (FLOAT_FRACTION_BITS + 1)) ? 1 : 0;
    }
    return {static_cast<std::uint16_t>(k + EXPONENT_BIAS), found.special};
}

std::uint32_t quantise(const LaneFormat& format, std::uint16_t code, std::span<const float> block,
                       bool special, std::span<std::byte> words) {
    // x 2^(F-E) in two steps, since F-E goes up to 179. Up is exact; down is exact but for values that end
    // below 2^-126, which round to zero either way.
    float scale_1 = 0;
    float scale_2 = 0;
    if (code != 0) {
        const int scale = format.fraction_bits() - (code - EXPONENT_BIAS);
        const int first = std::min(scale, GREATEST_NORMAL);
        scale_1 = power_of_two(first);
        scale_2 = power_of_two(scale - first);
    }
    const bool wide_lanes = format.bits() == 32;
    const auto pack = special ? (wide_lanes ? kernels().pack32_special : kernels().pack16_special)
                              : (wide_lanes ? kernels().pack32 : kernels().pack16);
    const std::uint32_t sum = pack(block.data(), block.size(), scale_1, scale_2, format.bias(), raw(words));
    return sum + fill_from(format, words, block.size(), format.bias());
}

std::uint32_t dequantise(const LaneFormat& format, std::uint16_t code, std::span<const std::byte> words,
                         bool average, std::span<float> block) {
    const int scale = code == 0 ? 0 : (code - EXPONENT_BIAS) - format.fraction_bits();
    const bool wide_lanes = format.bits() == 32;
    std::uint32_t sum;
    if (scale >= LEAST_NORMAL) {
        // An integer's conversion rounds once; the product is exact or overflows just where rounding would.
        const auto unpack = wide_lanes ? kernels().unpack32 : kernels().unpack16;
        sum = unpack(raw(words), block.size(), format.zero_sum(), power_of_two(scale), block.data());
    } else {
        // The product may be subnormal: a float product would round a second time.
        const auto unpack = wide_lanes ? kernels().unpack32_wide : kernels().unpack16_wide;
        sum = unpack(raw(words), block.size(), format.zero_sum(), wide_power_of_two(scale), block.data());
    }
    if (average) {
        kernels().divide(block.data(), block.size(), static_cast<float>(format.workers()));
    }
    return sum + sum_from(format, words, block.size());
}

void classify(std::span<const float> block, std::span<std::uint8_t> classes) {
    std::transform(block.begin(), block.end(), classes.begin(), [](float x) -> std::uint8_t {
        if (x != x) {
            return NOT_A_NUMBER;
        }
        if (x == std::numeric_limits<float>::infinity()) {
            return PLUS_INFINITY;
        }
        return x == -std::numeric_limits<float>::infinity() ? MINUS_INFINITY : FINITE;
    });
}

std::uint32_t pack_classes(const LaneFormat& format, std::span<const std::uint8_t> classes,
                           std::span<std::byte> words) {
    const unsigned minus_shift = format.guard_bits() + 1;
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < classes.size(); ++i) {
        const std::uint32_t plus = (classes[i] & PLUS_INFINITY) != 0 ? 1 : 0;
        const std::uint32_t minus = (classes[i] & MINUS_INFINITY) != 0 ? 1 : 0;
        const std::uint32_t lane = plus | minus << minus_shift;
        store_lane(format, raw(words), i, lane);
        sum += lane;
    }
    return sum + fill_from(format, words, classes.size(), 0);
}

std::uint32_t apply_classes(const LaneFormat& format, std::span<const std::byte> words,
                            std::span<float> block) {
    const unsigned minus_shift = format.guard_bits() + 1;
    const std::uint32_t counter = (std::uint32_t{1} << minus_shift) - 1;
    for (std::size_t i = 0; i < block.size(); ++i) {
        const std::uint32_t lane = load_lane(format, raw(words), i);
        const bool plus = (lane & counter) != 0;
        const bool minus = ((lane >> minus_shift) & counter) != 0;
        if (plus && minus) {
            block[i] = std::numeric_limits<float>::quiet_NaN();
        } else if (plus || minus) {
            block[i] =
                plus ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
        }
    }
    return sum_from(format, words, 0);
}

}  // namespace inagg
