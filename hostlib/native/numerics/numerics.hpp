// SPDX-License-Identifier: Apache-2.0
//
// Blocks of float32 to lanes and back (protocol.md, 3 and 4). Every function is exact or rounds once, to
// nearest even unless asked otherwise, so ranks on different processors get the same bits. Callers keep the
// default floating-point environment: subnormals are not flushed to zero.
#ifndef INAGG_NUMERICS_HPP
#define INAGG_NUMERICS_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace inagg {

// How a job of `workers`, 1 to 4096, packs lanes of 8, 16 or 32 `bits` (3.1). Lanes of 8 bits have room for
// 64 workers, lanes of 16 bits for 2048. Throws std::invalid_argument.
class LaneFormat {
  public:
    LaneFormat(unsigned bits, unsigned workers);

    unsigned bits() const { return bits_; }
    unsigned workers() const { return workers_; }
    unsigned guard_bits() const { return guard_bits_; }
    int fraction_bits() const { return static_cast<int>(bits_ - 1 - guard_bits_); }
    std::uint32_t bias() const { return std::uint32_t{1} << fraction_bits(); }
    // The lane sum that stands for zero, N B. At most 2^31.
    std::uint32_t zero_sum() const { return workers_ * bias(); }
    std::size_t lane_bytes() const { return bits_ / 8; }
    // L: elements in a block of `words`.
    std::size_t block_elements(std::size_t words) const;

    // The lanes in which a special block's classes travel, and the number C of DATA chunks they take (3.3).
    LaneFormat class_format() const { return {2 * (guard_bits_ + 1) <= bits_ ? bits_ : 2 * bits_, workers_}; }
    std::size_t class_chunks() const { return class_format().bits_ / bits_; }

  private:
    unsigned bits_;
    unsigned workers_;
    unsigned guard_bits_;
};

// How an element between two lane values is rounded (3.1). To the nearest, or stochastically: away from zero
// with a probability equal to its fraction, rounded to a multiple of 2^-16. The random numbers come from
// Threefry2x32 with 13 rounds, a counter-based generator: element i of a tensor uses the 16-bit word i mod 4
// at the counter floor(i / 4) under the key `seed`. So a seed gives the same lanes on every machine, however
// the tensor is cut into blocks. (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3,
// SC 2011. Their library Random123 says that 13 is the least number of rounds without a known statistical
// flaw.)
struct Rounding {
    bool stochastic = false;
    std::uint64_t seed = 0;
};

// The bits of the greatest finite magnitude.
inline constexpr std::uint32_t GREATEST_FINITE = 0x7f7fffff;
inline constexpr std::uint32_t NO_LIMIT = 0x7fffffff;

inline std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & NO_LIMIT; }

struct BlockExponent {
    std::uint16_t code = 0;  // on the wire: e + EXPONENT_BIAS, or 0 if no element is finite and non-zero
    bool special = false;    // the block holds a NaN or an infinity
    bool wide = false;       // the block holds outliers (3.3)
    // An element travels in the block's lanes if the bits of its magnitude are not greater. Others travel
    // apart.
    std::uint32_t limit = NO_LIMIT;
};

// The least and the greatest exponent of a float32 block: of 2^-149, and of the greatest float if it rounds
// up.
inline constexpr int LEAST_EXPONENT = -148;
inline constexpr int GREATEST_EXPONENT = 129;

bool valid_exponent(std::uint16_t code);

BlockExponent block_exponent(const LaneFormat& format, std::span<const float> block, Rounding rounding = {});

// The code of the elements that are not beyond `limit`, however far they are from one another.
std::uint16_t exponent_within(const LaneFormat& format, std::span<const float> block, std::uint32_t limit,
                              Rounding rounding = {});

// Fills all of `words` with the block's lanes under exponent `code`, padded; returns their checksum. Elements
// beyond `limit` count as zero. `code` is at least that of the other elements under the same rounding.
// `first_element` is the index of the block's first element in its tensor.
std::uint32_t quantise(const LaneFormat& format, std::uint16_t code, std::span<const float> block,
                       std::uint32_t limit, std::span<std::byte> words, Rounding rounding = {},
                       std::uint64_t first_element = 0);

// The part of each element that its lane in `words` does not hold: out[i] = block[i] - q 2^(E-F). Exact if
// the lane was rounded to nearest, otherwise rounded once; 0 for an element beyond `limit`. For error
// feedback (Seide, Fu, Droppo, Li and Yu: 1-bit stochastic gradient descent, Interspeech 2014).
void residual(const LaneFormat& format, std::uint16_t code, std::span<const float> block, std::uint32_t limit,
              std::span<const std::byte> words, std::span<float> out);

// The sums that `words` hold, for as many elements as `block` has; with `average` divided by N.
void dequantise(const LaneFormat& format, std::uint16_t code, std::span<const std::byte> words, bool average,
                std::span<float> block);

// The types of elements in memory.
enum class FloatType : std::uint8_t { float32, bfloat16, float16 };
constexpr std::size_t bytes_of(FloatType type) { return type == FloatType::float32 ? 4 : 2; }

// 16-bit floats as float32, exactly; and back, rounded to nearest even. `halves` has bytes_of(type) for each
// of `floats`.
void widen(FloatType type, std::span<const std::byte> halves, std::span<float> floats);
void narrow(FloatType type, std::span<const float> floats, std::span<std::byte> halves);

// Copies to memory that nobody reads soon, past the caches: `out` is aligned to STREAM_ALIGNMENT, and not
// read into a cache before it is written. finish_streams() makes the copies visible to other threads.
inline constexpr std::size_t STREAM_ALIGNMENT = 64;
void stream(std::span<const std::byte> from, std::span<std::byte> out);
void finish_streams();

// The checksum of all lanes, to compare with the header's.
std::uint32_t lane_sum(const LaneFormat& format, std::span<const std::byte> words);

// Adds the lanes of `words` to those of `sums`, of any width; both have the same size.
void add_words(std::span<const std::byte> words, std::span<std::byte> sums);

// The builds of the inner loops that this machine can run, the fastest first. The fastest is in use.
std::vector<std::string> available_kernels();
// For tests: uses another build, in the whole process. Throws std::invalid_argument.
void use_kernels(const std::string& name);

}  // namespace inagg

#endif
