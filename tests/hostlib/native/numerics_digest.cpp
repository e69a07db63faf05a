// SPDX-License-Identifier: Apache-2.0
//
// Prints a digest of what the numerics make of random blocks: exponents, lanes, sums, residuals, 16-bit
// floats. See test_numerics_aarch64.py.
#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "numerics/numerics.hpp"

namespace {

class Digest {  // FNV-1a
  public:
    template <typename T>
    void add(std::span<const T> values) {
        for (const std::byte byte : std::as_bytes(values)) {
            value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
        }
    }
    template <typename T>
    void add(T value) {
        add(std::span<const T>(&value, 1));
    }
    std::uint64_t value() const { return value_; }

  private:
    std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

int main() {
    std::mt19937 draw(1);
    Digest digest;
    for (int i = 0; i < 2000; ++i) {
        const unsigned bits = 8U << draw() % 3;
        const inagg::LaneFormat format(bits, 1 + draw() % (bits == 8 ? 32 : 64));
        std::vector<std::byte> words(256 * (draw() % 2 == 0 ? 4 : 32));
        std::vector<float> block(1 + draw() % format.block_elements(words.size() / 256));
        // Any bits, NaN and subnormals among them; or exponents of gradients.
        const bool any = draw() % 2 == 0;
        for (float& x : block) {
            const auto random = static_cast<std::uint32_t>(draw());
            const auto exponent = static_cast<std::uint32_t>(110 + draw() % 30);
            x = std::bit_cast<float>(any ? random : (random & 0x807fffff) | exponent << 23);
        }
        const inagg::Rounding rounding{.stochastic = draw() % 2 == 0, .seed = draw()};
        const auto [code, special, wide, limit] = inagg::block_exponent(format, block, rounding);
        digest.add(code);
        digest.add(limit);
        digest.add(inagg::quantise(format, code, block, limit, words, rounding, draw()));
        digest.add(std::span<const std::byte>(words));
        std::vector<float> out(block.size());
        inagg::residual(format, code, block, limit, words, out);
        digest.add(std::span<const float>(out));
        inagg::dequantise(format, code, words, draw() % 2 == 0, out);
        digest.add(std::span<const float>(out));
        for (const inagg::FloatType type : {inagg::FloatType::bfloat16, inagg::FloatType::float16}) {
            std::vector<std::byte> halves(inagg::bytes_of(type) * block.size());
            inagg::narrow(type, block, halves);
            digest.add(std::span<const std::byte>(halves));
            inagg::widen(type, halves, out);
            digest.add(std::span<const float>(out));
        }
    }
    std::printf("%016" PRIx64 "\n", digest.value());
}
