// SPDX-License-Identifier: Apache-2.0
//
// Blocks of float32 to lanes and back (protocol.md, 3 and 4). Every function is exact or rounds once, to
// nearest even unless asked otherwise, whatever the machine: ranks on different processors get the same bits.
// That takes the default floating-point environment: no flushing of subnormals to zero.
#ifndef INAGG_NUMERICS_HPP
#define INAGG_NUMERICS_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace inagg {

// How a job of `workers` packs lanes of `bits`: 8, 16 or 32 (3.1). Throws std::invalid_argument.
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
    LaneFormat class_format() const { return {2 * (guard_bits_ + 1) <= bits_ ? bits_ : 16, workers_}; }
    std::size_t class_chunks() const { return class_format().bits_ / bits_; }

  private:
    unsigned bits_;
    unsigned workers_;
    unsigned guard_bits_;
};

// How an element between two lane values is rounded (3.1): to the nearest, or stochastically, away from zero
// with a probability equal to its fraction rounded to a multiple of 2^-16. Then element i of a tensor is
// rounded by the 16-bit word i mod 4 of Threefry2x32 with 13 rounds, a counter-based generator, at the
// counter floor(i / 4) under the key `seed`: by nothing else, so that a seed gives the same lanes on every
// machine and however the tensor is cut into blocks. (Salmon, Moraes, Dror and Shaw: Parallel random numbers:
// as easy as 1, 2, 3, SC 2011. 13 is the least number of rounds without a known statistical flaw, according
// to their library Random123.)
struct Rounding {
    bool stochastic = false;
    std::uint64_t seed = 0;
};

struct BlockExponent {
    std::uint16_t code;  // on the wire: e + EXPONENT_BIAS, or 0 for a block without a finite non-zero element
    bool special;        // a NaN or an infinity is in the block
};

// The least and the greatest code but 0 that a float32 block can have: of 2^-149, and of the greatest float
// where it rounds up.
inline constexpr int LEAST_EXPONENT = -148;
inline constexpr int GREATEST_EXPONENT = 129;

bool valid_exponent(std::uint16_t code);

BlockExponent block_exponent(const LaneFormat& format, std::span<const float> block, Rounding rounding = {});

// Fills all of `words` with the block's lanes under exponent `code`, padded; returns their checksum. A block
// with a NaN or an infinity is `special`: those count as zero. `code` is at least what block_exponent gave
// for the same rounding; `first_element` is the index of the block's first element in its tensor.
std::uint32_t quantise(const LaneFormat& format, std::uint16_t code, std::span<const float> block,
                       bool special, std::span<std::byte> words, Rounding rounding = {},
                       std::uint64_t first_element = 0);

// What the lanes of a block in `words` leave out of it: out[i] = block[i] - q 2^(E-F), exact if rounded to
// nearest, else to within a rounding; 0 for a NaN or an infinity. For error feedback (Seide, Fu, Droppo, Li
// and Yu: 1-bit stochastic gradient descent, Interspeech 2014).
void residual(const LaneFormat& format, std::uint16_t code, std::span<const float> block, bool special,
              std::span<const std::byte> words, std::span<float> out);

// The sums that `words` hold, for as many elements as `block` has; with `average` divided by N.
void dequantise(const LaneFormat& format, std::uint16_t code, std::span<const std::byte> words, bool average,
                std::span<float> block);

// The checksum of all lanes: unless it fits the header's, they are worthless.
std::uint32_t lane_sum(const LaneFormat& format, std::span<const std::byte> words);

// What an element of a special block is (3.3), as counted into the two counters of a class lane.
enum ElementClass : std::uint8_t { FINITE = 0, PLUS_INFINITY = 1, MINUS_INFINITY = 2, NOT_A_NUMBER = 3 };

void classify(std::span<const float> block, std::span<std::uint8_t> classes);

// A special block's classes go in class_chunks() parts of equal length, each in a packet of its own;
// `classes` and `block` below are such a part, and `format` is that of the block's own lanes.

// Fills all of `words` with class lanes, FINITE where `classes` ends; returns their checksum.
std::uint32_t pack_classes(const LaneFormat& format, std::span<const std::uint8_t> classes,
                           std::span<std::byte> words);

// Puts NaN and infinities into sums.
void apply_classes(const LaneFormat& format, std::span<const std::byte> words, std::span<float> block);

// Builds of the inner loops that this machine can run, the best first; the best is used.
std::vector<std::string> available_kernels();
// For tests: uses another one, in the whole process. Throws std::invalid_argument.
void use_kernels(const std::string& name);

}  // namespace inagg

#endif
