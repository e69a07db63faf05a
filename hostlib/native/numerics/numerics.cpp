// SPDX-License-Identifier: Apache-2.0
#include "numerics/numerics.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <stdexcept>
#include <string>

#include "numerics/kernels.hpp"
#include "wire/require.hpp"
#include "wire/wire.hpp"

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

// NOLINTNEXTLINE(bugprone-throwing-static-initialization): only a lack of memory throws.
std::atomic<const Kernels*> chosen = runnable_kernels().front().kernels;

const Kernels& kernels() { return *chosen.load(std::memory_order_relaxed); }

constexpr int FLOAT_FRACTION_BITS = 23;
constexpr int LEAST_FRACTION_BITS = 4;  // of lanes of 16 bits
constexpr int LEAST_NORMAL = -126;      // the exponent of the least normal float
constexpr int GREATEST_NORMAL = 127;

// Outliers (3.3) are more than so many binades above the one that half of the normal elements do not exceed.
constexpr std::uint32_t OUTLIER_SHARE = 2;
constexpr std::uint32_t OUTLIER_BINADES = 20;
constexpr std::uint32_t LEAST_NORMAL_BITS = 1U << FLOAT_FRACTION_BITS;

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

// The index of lanes of this width in Kernels' arrays.
std::size_t width_index(const LaneFormat& format) {
    return static_cast<std::size_t>(std::bit_width(format.bits()) - std::bit_width(8U));
}

// The index of a type of 16-bit floats in Kernels' arrays.
std::size_t half_index(FloatType type) { return type == FloatType::bfloat16 ? 0 : 1; }

// Elements in a buffer on the stack, for work that is rare or costs more than a copy.
constexpr std::size_t PIECE = 256;
constexpr std::array<float, PIECE> ZEROS{};
constexpr std::size_t DRAWS = 4;  // elements per counter

std::size_t lanes_in(const LaneFormat& format, std::span<const std::byte> words) {
    return words.size() >> width_index(format);
}

// x 2^(F-E) takes two steps, since F-E ranges from -128 to 179. Steps up are exact. Steps down are exact
// except for values that end below 2^-126, which round to zero.
struct Scale {
    float first = 0;
    float second = 0;
};

Scale lane_scale(const LaneFormat& format, std::uint16_t code) {
    if (code == 0) {
        return {};
    }
    const int scale = format.fraction_bits() - (code - EXPONENT_BIAS);
    const int first = std::clamp(scale, LEAST_NORMAL, GREATEST_NORMAL);
    return {power_of_two(first), power_of_two(scale - first)};
}

// quantise() without the padding, for blocks that need more than the scale.
std::uint32_t quantise_pieces(const LaneFormat& format, const Scale& scale, std::span<const float> block,
                              std::uint32_t limit, unsigned char* words, Rounding rounding,
                              std::uint64_t first_element) {
    const Kernels& run = kernels();
    const std::size_t width = width_index(format);
    // NOLINTBEGIN(cppcoreguidelines-pro-type-member-init): the kernels fill what is read.
    std::array<float, PIECE> within;
    std::array<std::uint16_t, PIECE + 2 * DRAWS> draws;
    // NOLINTEND(cppcoreguidelines-pro-type-member-init)
    std::uint32_t sum = 0;
    while (!block.empty()) {
        const std::size_t count = std::min(block.size(), PIECE);
        const float* x = block.data();
        if (limit != NO_LIMIT) {
            run.within(x, count, limit, within.data());
            x = within.data();
        }
        if (rounding.stochastic) {
            const std::size_t before = first_element % DRAWS;
            run.draw(rounding.seed, first_element / DRAWS, (before + count + DRAWS - 1) / DRAWS,
                     draws.data());
            sum += run.pack_stochastic[width](x, count, scale.first, scale.second, format.bias(),
                                              draws.data() + before, words);
        } else {
            sum += run.pack[width](x, count, scale.first, scale.second, format.bias(), words);
        }
        block = block.subspan(count);
        words += count * format.lane_bytes();
        first_element += count;
    }
    return sum;
}

// Sets the lanes from `first` to the end of `words` to zero elements; returns their sum.
std::uint32_t pad(const LaneFormat& format, std::span<std::byte> words, std::size_t first) {
    std::uint32_t sum = 0;
    for (std::size_t count; first < lanes_in(format, words); first += count) {
        count = std::min(lanes_in(format, words) - first, PIECE);
        sum += kernels().pack[width_index(format)](ZEROS.data(), count, 0, 0, format.bias(),
                                                   raw(words) + first * format.lane_bytes());
    }
    return sum;
}

// The code of a block whose greatest magnitude has these bits.
std::uint16_t exponent_code(const LaneFormat& format, std::uint32_t greatest, Rounding rounding) {
    if (greatest == 0) {
        return 0;
    }
    // m = f x 2^k, 1/2 <= f < 1, with f = significand / 2^24.
    const int shift = std::countl_zero(greatest) - (31 - FLOAT_FRACTION_BITS);
    std::uint32_t significand;
    int k;
    if (shift > 0) {  // subnormal: the greatest set bit is below that of a normal float
        significand = greatest << shift;
        k = FLOAT_FRACTION_BITS + 1 - shift + (LEAST_NORMAL - FLOAT_FRACTION_BITS);
    } else {
        constexpr std::uint32_t implicit = std::uint32_t{1} << FLOAT_FRACTION_BITS;
        significand = (greatest & (implicit - 1)) | implicit;
        k = static_cast<int>(greatest >> FLOAT_FRACTION_BITS) + LEAST_NORMAL;
    }
    // To nearest, f x 2^F rounds to 2^F from 2^F - 1/2 on: that is a tie, and 2^F is even. Stochastically, it
    // may do so above 2^F - 1.
    const int dropped = FLOAT_FRACTION_BITS + 1 - format.fraction_bits();
    if (dropped > 0) {
        const std::uint32_t one = std::uint32_t{1} << dropped;
        const std::uint32_t up = rounding.stochastic ? one - 1 : one / 2;
        k += significand + up >= (std::uint32_t{1} << (FLOAT_FRACTION_BITS + 1)) ? 1 : 0;
    }
    return static_cast<std::uint16_t>(k + EXPONENT_BIAS);
}

std::uint32_t count_below(std::span<const float> block, std::uint32_t bound) {
    return kernels().count_below(block.data(), block.size(), bound);
}

// Whether the block has outliers (3.3).
bool has_outliers(std::span<const float> block, const ScanResult& found) {
    const std::uint32_t field = found.greatest >> FLOAT_FRACTION_BITS;
    if (field <= OUTLIER_BINADES) {
        return false;
    }
    const std::uint32_t finite =
        found.special ? count_below(block, GREATEST_FINITE + 1) : static_cast<std::uint32_t>(block.size());
    const std::uint32_t below = count_below(block, (field - OUTLIER_BINADES) << FLOAT_FRACTION_BITS);
    if (OUTLIER_SHARE * below < finite - below) {
        return false;  // the usual case: too few, even if all of them are normal
    }
    const std::uint32_t tiny = count_below(block, LEAST_NORMAL_BITS);
    return OUTLIER_SHARE * (below - tiny) >= finite - tiny;
}

// The limit (BlockExponent) of a block that has outliers.
std::uint32_t outlier_limit(std::span<const float> block) {
    std::array<std::uint32_t, GREATEST_FINITE / (1U << FLOAT_FRACTION_BITS) + 1> with_field{};
    std::uint32_t counted = 0;
    for (const float x : block) {
        if (magnitude(x) >= LEAST_NORMAL_BITS && magnitude(x) <= GREATEST_FINITE) {
            ++with_field[magnitude(x) >> FLOAT_FRACTION_BITS];
            ++counted;
        }
    }
    std::uint32_t field = 1;
    for (std::uint32_t small = with_field[1]; OUTLIER_SHARE * small < counted; small += with_field[field]) {
        ++field;
    }
    return ((field + OUTLIER_BINADES + 1) << FLOAT_FRACTION_BITS) - 1;
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
    require(bits == 8 || bits == 16 || bits == 32,
            "lane_bits is " + std::to_string(bits) + "; it must be 8, 16 or 32");
    require_workers(workers);
    const int least = bits == 8 ? 1 : LEAST_FRACTION_BITS;
    require(fraction_bits() >= least, "lanes of " + std::to_string(bits) + " bits are too narrow for " +
                                          std::to_string(workers) + " workers");
}

std::size_t LaneFormat::block_elements(std::size_t words) const { return words_bytes(words) / lane_bytes(); }

bool valid_exponent(std::uint16_t code) {
    return code == 0 || (code >= EXPONENT_BIAS + LEAST_EXPONENT && code <= EXPONENT_BIAS + GREATEST_EXPONENT);
}

BlockExponent block_exponent(const LaneFormat& format, std::span<const float> block, Rounding rounding) {
    const ScanResult found = kernels().scan(block.data(), block.size());
    if (has_outliers(block, found)) {
        const std::uint32_t limit = outlier_limit(block);
        return {exponent_within(format, block, limit, rounding), found.special, true, limit};
    }
    return {exponent_code(format, found.greatest, rounding), found.special, false,
            found.special ? GREATEST_FINITE : NO_LIMIT};
}

std::uint16_t exponent_within(const LaneFormat& format, std::span<const float> block, std::uint32_t limit,
                              Rounding rounding) {
    std::uint32_t greatest = 0;
    for (const float x : block) {
        greatest = std::max(greatest, magnitude(x) <= limit ? magnitude(x) : 0);
    }
    return exponent_code(format, greatest, rounding);
}

std::uint32_t quantise(const LaneFormat& format, std::uint16_t code, std::span<const float> block,
                       std::uint32_t limit, std::span<std::byte> words, Rounding rounding,
                       std::uint64_t first_element) {
    const Scale scale = lane_scale(format, code);
    const std::uint32_t sum =
        limit != NO_LIMIT || rounding.stochastic
            ? quantise_pieces(format, scale, block, limit, raw(words), rounding, first_element)
            : kernels().pack[width_index(format)](block.data(), block.size(), scale.first, scale.second,
                                                  format.bias(), raw(words));
    return sum + pad(format, words, block.size());
}

void residual(const LaneFormat& format, std::uint16_t code, std::span<const float> block, std::uint32_t limit,
              std::span<const std::byte> words, std::span<float> out) {
    const Kernels& run = kernels();
    const double scale = code == 0 ? 0 : wide_power_of_two((code - EXPONENT_BIAS) - format.fraction_bits());
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): as in quantise_pieces().
    std::array<float, PIECE> within;
    for (std::size_t first = 0, count; first < block.size(); first += count) {
        count = std::min(block.size() - first, PIECE);
        const float* x = &block[first];
        if (limit != NO_LIMIT) {
            run.within(x, count, limit, within.data());
            x = within.data();
        }
        run.residual[width_index(format)](x, raw(words) + first * format.lane_bytes(), count, format.bias(),
                                          scale, &out[first]);
    }
}

void dequantise(const LaneFormat& format, std::uint16_t code, std::span<const std::byte> words, bool average,
                std::span<float> block) {
    const int scale = code == 0 ? 0 : (code - EXPONENT_BIAS) - format.fraction_bits();
    const Kernels& run = kernels();
    const std::size_t width = width_index(format);
    if (scale >= LEAST_NORMAL && scale <= GREATEST_NORMAL) {
        // The conversion from an integer rounds once. The product is exact, or overflows where rounding
        // would.
        run.unpack[width](raw(words), block.size(), format.zero_sum(), power_of_two(scale), block.data());
    } else {
        // The scale may not fit a float, and the product may be subnormal: a product of floats would round a
        // second time.
        run.unpack_wide[width](raw(words), block.size(), format.zero_sum(), wide_power_of_two(scale),
                               block.data());
    }
    if (average) {
        // The reciprocal of a power of two is exact, so the product equals the quotient.
        const auto workers = static_cast<float>(format.workers());
        if (std::has_single_bit(format.workers())) {
            run.multiply(block.data(), block.size(), 1 / workers);
        } else {
            run.divide(block.data(), block.size(), workers);
        }
    }
}

void widen(FloatType type, std::span<const std::byte> halves, std::span<float> floats) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(halves.data());
    kernels().widen[half_index(type)](from, floats.size(), floats.data());
}

void narrow(FloatType type, std::span<const float> floats, std::span<std::byte> halves) {
    auto* to = reinterpret_cast<std::uint16_t*>(halves.data());
    kernels().narrow[half_index(type)](floats.data(), floats.size(), to);
}

void stream(std::span<const std::byte> from, std::span<std::byte> out) {
    kernels().stream(raw(from), from.size(), raw(out));
}

void finish_streams() {
#ifdef __SSE2__
    __builtin_ia32_sfence();
#endif
}

std::uint32_t lane_sum(const LaneFormat& format, std::span<const std::byte> words) {
    return kernels().sum[width_index(format)](raw(words), lanes_in(format, words));
}

void add_words(std::span<const std::byte> words, std::span<std::byte> sums) {
    kernels().add(raw(words), words.size() / sizeof(std::uint64_t), raw(sums));
}

}  // namespace inagg
