// SPDX-License-Identifier: Apache-2.0
//
// Loops for the compiler to vectorise: no branch, no call, no reduction but integer ones. All they compute is
// exact or rounded once (numerics.cpp says why), so that every build of this file gives the same bits.
#include "kernels.hpp"

namespace inagg {
namespace {

constexpr uint32_t MAGNITUDE = 0x7fffffff;
constexpr uint32_t INFINITE = 0x7f800000;  // magnitudes from here on are infinities and NaNs

uint32_t big_endian(uint32_t lane) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap32(lane);
#else
    return lane;
#endif
}

uint16_t big_endian(uint16_t lane) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return static_cast<uint16_t>(lane << 8 | lane >> 8);
#else
    return lane;
#endif
}

template <typename Lane>
Lane load(const unsigned char* lanes, size_t i) {
    Lane lane;
    __builtin_memcpy(&lane, lanes + i * sizeof(Lane), sizeof(Lane));
    return big_endian(lane);
}

template <typename Lane>
void store(unsigned char* lanes, size_t i, Lane lane) {
    lane = big_endian(lane);
    __builtin_memcpy(lanes + i * sizeof(Lane), &lane, sizeof(Lane));
}

// |x| <= 2^31 - 128, the greatest float below 2^31.
int32_t round_to_even(float x) {
#if defined(__SSE2__) && !defined(__SSE4_1__)
    // No instruction rounds to a float here, and rintf would be a call. Up to 2^23 adding 2^23 pushes the
    // fraction out, rounded to nearest even; from there on a float has none.
    constexpr uint32_t two_to_23 = 0x4b000000;
    const auto bits = __builtin_bit_cast(uint32_t, x);
    const float magic = __builtin_bit_cast(float, (bits & ~MAGNITUDE) | two_to_23);
    const float rounded = (x + magic) - magic;
    // Selected by a mask: signs and magnitudes are too random to branch on.
    const uint32_t small = (bits & MAGNITUDE) < two_to_23 ? ~uint32_t{0} : 0;
    const uint32_t chosen = (__builtin_bit_cast(uint32_t, rounded) & small) | (bits & ~small);
    return static_cast<int32_t>(__builtin_bit_cast(float, chosen));
#else
    return static_cast<int32_t>(__builtin_rintf(x));
#endif
}

ScanResult scan(const float* x, size_t n) {
    int32_t greatest = 0;
    int32_t special = 0;
    for (size_t i = 0; i < n; ++i) {
        // Signed, as SSE2 compares no others.
        const auto magnitude = static_cast<int32_t>(__builtin_bit_cast(uint32_t, x[i]) & MAGNITUDE);
        const bool finite = magnitude < static_cast<int32_t>(INFINITE);
        const int32_t candidate = finite ? magnitude : 0;
        special |= finite ? 0 : 1;
        greatest = candidate > greatest ? candidate : greatest;
    }
    return {static_cast<uint32_t>(greatest), special != 0};
}

template <typename Lane, bool kSpecial>
uint32_t pack(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias, unsigned char* lanes) {
    uint32_t sum = 0;
    for (size_t i = 0; i < n; ++i) {
        float value = x[i];
        if constexpr (kSpecial) {
            value = (__builtin_bit_cast(uint32_t, value) & MAGNITUDE) < INFINITE ? value : 0.0F;
        }
        const auto lane =
            static_cast<Lane>(static_cast<uint32_t>(round_to_even(value * scale_1 * scale_2)) + bias);
        sum += lane;
        store<Lane>(lanes, i, lane);
    }
    return sum;
}

template <typename Lane, typename Scale>
uint32_t unpack(const unsigned char* lanes, size_t n, uint32_t zero, Scale scale, float* x) {
    uint32_t sum = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t lane = load<Lane>(lanes, i);
        sum += lane;
        x[i] = static_cast<float>(static_cast<Scale>(static_cast<int32_t>(lane - zero)) * scale);
    }
    return sum;
}

void divide(float* x, size_t n, float divisor) {
    for (size_t i = 0; i < n; ++i) {
        x[i] /= divisor;
    }
}

}  // namespace

#define INAGG_CONCAT_(a, b) a##b
#define INAGG_CONCAT(a, b) INAGG_CONCAT_(a, b)

extern const Kernels INAGG_CONCAT(KERNELS_, INAGG_KERNELS);
const Kernels INAGG_CONCAT(KERNELS_, INAGG_KERNELS) = {
    .scan = scan,
    .pack32 = pack<uint32_t, false>,
    .pack16 = pack<uint16_t, false>,
    .pack32_special = pack<uint32_t, true>,
    .pack16_special = pack<uint16_t, true>,
    .unpack32 = unpack<uint32_t, float>,
    .unpack16 = unpack<uint16_t, float>,
    .unpack32_wide = unpack<uint32_t, double>,
    .unpack16_wide = unpack<uint16_t, double>,
    .divide = divide,
};

}  // namespace inagg
