// SPDX-License-Identifier: Apache-2.0
#include "ports/offload/checksum.hpp"

#include <bit>
#include <cstring>

namespace inagg::ports {
namespace {

// A vector type of GCC and Clang: one 512-bit register, or two or four smaller ones, depending on the
// instruction set.
using Words = uint64_t __attribute__((vector_size(64)));

template <class T>
T load(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// The value of a byte that is the first of the two bytes of a 16-bit word.
constexpr uint64_t kFirstOfTwo = std::endian::native == std::endian::little ? 1 : 256;

}  // namespace

// Adds 32-bit words into 64-bit sums: 2^16 is 1 modulo 2^16 - 1. Compiled once for each instruction set.
#if defined(__x86_64__)
__attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#endif
uint64_t ones_sum(const uint8_t* data, size_t length) {
    Words low{};
    Words high{};
    for (; length >= sizeof(Words); data += sizeof(Words), length -= sizeof(Words)) {
        Words words;
        std::memcpy(&words, data, sizeof words);
        low += words & 0xFFFFFFFF;
        high += words >> 32;
    }
    low += high;
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(Words) / sizeof(uint64_t); ++i) sum += low[i];
    for (; length >= sizeof(uint32_t); data += sizeof(uint32_t), length -= sizeof(uint32_t)) {
        sum += load<uint32_t>(data);
    }
    if (length & 2) {
        sum += load<uint16_t>(data);
        data += 2;
    }
    if (length & 1) sum += load<uint8_t>(data) * kFirstOfTwo;
    return sum;
}

}  // namespace inagg::ports
