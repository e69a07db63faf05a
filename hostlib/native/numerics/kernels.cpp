// SPDX-License-Identifier: Apache-2.0
//
// Loops for the compiler to vectorise: no branch, no call, no reduction except of integers. Every result is
// exact or rounded once (numerics.cpp says why), so all builds of this file give the same bits.
//
// Loops take LONG_STEP or STEP elements at a time: with a constant count there is no loop for the remainder,
// and a sum is reduced to one number once. Only a tensor's last block has a remainder.
#include "numerics/kernels.hpp"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace inagg {
namespace {

constexpr size_t LONG_STEP = 256;
constexpr size_t STEP = 64;
constexpr uint32_t MAGNITUDE = 0x7fffffff;
constexpr uint32_t INFINITE = 0x7f800000;  // magnitudes from here on are infinities and NaNs

uint32_t big_endian(uint32_t lane) {
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    return lane;
#elif defined(__SSE2__) && !defined(__SSSE3__)
    // This instruction set cannot reverse bytes, and GCC does not vectorise what it recognises as a reversal:
    // hence the product.
    const uint32_t swapped = (lane & 0x00ff00ff) * 256 + (lane >> 8 & 0x00ff00ff);
    return swapped << 16 | swapped >> 16;
#else
    return __builtin_bswap32(lane);
#endif
}

uint64_t big_endian(uint64_t number) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_bswap64(number);
#else
    return number;
#endif
}

uint16_t big_endian(uint16_t lane) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return static_cast<uint16_t>(lane << 8 | lane >> 8);
#else
    return lane;
#endif
}

uint8_t big_endian(uint8_t lane) { return lane; }

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
#if defined(__SSE2__) && __has_builtin(__builtin_irintf)
    return __builtin_irintf(x);  // one instruction, also in a vector
#else
    return static_cast<int32_t>(__builtin_rintf(x));
#endif
}

// Calls step(first, count) with a constant count as long as it can.
template <typename Step>
[[gnu::always_inline]] inline void in_steps(size_t n, Step step) {
    size_t i = 0;
    for (; i + LONG_STEP <= n; i += LONG_STEP) {
        step(i, LONG_STEP);
    }
    for (; i + STEP <= n; i += STEP) {
        step(i, STEP);
    }
    if (i < n) {
        step(i, n - i);
    }
}

// Signed: SSE2 has no unsigned comparison.
int32_t magnitude(float x) { return static_cast<int32_t>(__builtin_bit_cast(uint32_t, x) & MAGNITUDE); }

int32_t greatest_finite(const float* __restrict x, size_t n) {
    int32_t greatest = 0;
    for (size_t i = 0; i < n; ++i) {
        const int32_t found = magnitude(x[i]);
        const int32_t candidate = found < static_cast<int32_t>(INFINITE) ? found : 0;
        greatest = candidate > greatest ? candidate : greatest;
    }
    return greatest;
}

ScanResult scan(const float* __restrict x, size_t n) {
    int32_t greatest = 0;
    for (size_t i = 0; i < n; ++i) {
        const int32_t candidate = magnitude(x[i]);
        greatest = candidate > greatest ? candidate : greatest;
    }
    const bool special = greatest >= static_cast<int32_t>(INFINITE);
    return {static_cast<uint32_t>(special ? greatest_finite(x, n) : greatest), special};
}

uint32_t count_below(const float* __restrict x, size_t n, uint32_t bound) {
    uint32_t count = 0;
    in_steps(n, [&](size_t first, size_t steps) __attribute__((always_inline)) {
        for (size_t i = first; i < first + steps; ++i) {
            count += magnitude(x[i]) < static_cast<int32_t>(bound) ? 1 : 0;
        }
    });
    return count;
}

template <typename Lane>
uint32_t pack(const float* __restrict x, size_t n, float scale_1, float scale_2, uint32_t bias,
              unsigned char* __restrict lanes) {
    uint32_t sum = 0;
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            const auto lane = static_cast<uint32_t>(round_to_even(x[i] * scale_1 * scale_2)) + bias;
            sum += lane;
            store(lanes, i, static_cast<Lane>(lane));
        }
    });
    return sum;
}

template <typename Lane>
uint32_t pack_stochastic(const float* __restrict x, size_t n, float scale_1, float scale_2, uint32_t bias,
                         const uint16_t* __restrict draws, unsigned char* __restrict lanes) {
    uint32_t sum = 0;
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            const float value = x[i] * scale_1 * scale_2;
            const auto whole = static_cast<int32_t>(value);
            const float fraction = __builtin_fabsf(value - static_cast<float>(whole));
            const float threshold = static_cast<float>(2 * int32_t{draws[i]} + 1) * 0x1p-17F;
            const int32_t away = (__builtin_bit_cast(int32_t, value) >> 31) | 1;
            const auto lane = static_cast<uint32_t>(whole + (fraction > threshold ? away : 0)) + bias;
            sum += lane;
            store(lanes, i, static_cast<Lane>(lane));
        }
    });
    return sum;
}

template <typename Lane, typename Scale>
void unpack(const unsigned char* __restrict lanes, size_t n, uint32_t zero, Scale scale,
            float* __restrict x) {
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            const uint32_t lane = load<Lane>(lanes, i);
            x[i] = static_cast<float>(static_cast<Scale>(static_cast<int32_t>(lane - zero)) * scale);
        }
    });
}

uint32_t sum_32(const unsigned char* __restrict lanes, size_t n) {
    uint32_t sum = 0;
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            sum += load<uint32_t>(lanes, i);
        }
    });
    return sum;
}

// The sums of the bytes at even and at odd places. A step adds four bytes at once, in fields of 16 bits,
// which hold the sum of LONG_STEP bytes.
struct ByteSums {
    uint32_t even = 0;
    uint32_t odd = 0;
};

ByteSums byte_sums(const unsigned char* __restrict bytes, size_t n) {
    static_assert(LONG_STEP * UINT8_MAX <= UINT16_MAX);
    constexpr uint32_t FIELDS = 0x00ff00ff;
    constexpr bool LITTLE = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    ByteSums sums;
    in_steps(n / 4, [&](size_t first, size_t count) __attribute__((always_inline)) {
        uint32_t low = 0;
        uint32_t high = 0;
        for (size_t i = first; i < first + count; ++i) {
            uint32_t four;
            __builtin_memcpy(&four, bytes + 4 * i, sizeof(four));
            low += four & FIELDS;
            high += four >> 8 & FIELDS;
        }
        sums.even += ((LITTLE ? low : high) & 0xffff) + ((LITTLE ? low : high) >> 16);
        sums.odd += ((LITTLE ? high : low) & 0xffff) + ((LITTLE ? high : low) >> 16);
    });
    for (size_t i = n / 4 * 4; i < n; ++i) {
        (i % 2 == 0 ? sums.even : sums.odd) += bytes[i];
    }
    return sums;
}

uint32_t sum_16(const unsigned char* lanes, size_t n) {
    const ByteSums sums = byte_sums(lanes, 2 * n);
    return 256 * sums.even + sums.odd;
}

uint32_t sum_8(const unsigned char* lanes, size_t n) {
    const ByteSums sums = byte_sums(lanes, n);
    return sums.even + sums.odd;
}

void add(const unsigned char* __restrict lanes, size_t n, unsigned char* __restrict sums) {
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            store(sums, i, load<uint64_t>(sums, i) + load<uint64_t>(lanes, i));
        }
    });
}

// Exact if the lane is the nearest one: the residual is then no larger than the element, and a multiple of
// the element's last place. So it fits a float, and every intermediate value fits a double.
template <typename Lane>
void residual(const float* __restrict x, const unsigned char* __restrict lanes, size_t n, uint32_t bias,
              double scale, float* __restrict out) {
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            const auto q = static_cast<int32_t>(uint32_t{load<Lane>(lanes, i)} - bias);
            out[i] = static_cast<float>(static_cast<double>(x[i]) - static_cast<double>(q) * scale);
        }
    });
}

void within(const float* __restrict x, size_t n, uint32_t limit, float* __restrict out) {
    for (size_t i = 0; i < n; ++i) {
        out[i] = magnitude(x[i]) <= static_cast<int32_t>(limit) ? x[i] : 0.0F;
    }
}

uint32_t rotate(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }

// Threefry2x32 with 13 rounds; numerics.hpp names the source.
void draw(uint64_t key, uint64_t counter, size_t n, uint16_t* __restrict out) {
    const uint32_t keys[3] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                              0x1bd11bda ^ static_cast<uint32_t>(key) ^ static_cast<uint32_t>(key >> 32)};
    constexpr int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const auto low = static_cast<uint32_t>(counter);
    const auto high = static_cast<uint32_t>(counter >> 32);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t own = low + static_cast<uint32_t>(i);
        uint32_t x = own + keys[0];
        uint32_t y = high + (own < low ? 1 : 0) + keys[1];
#pragma GCC unroll 13
        for (uint32_t round = 0; round < 13; ++round) {
            x += y;
            y = rotate(y, rotations[round % 8]) ^ x;
            if (round % 4 == 3) {
                const uint32_t turn = round / 4 + 1;
                x += keys[turn % 3];
                y += keys[(turn + 1) % 3] + turn;
            }
        }
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
        x = rotate(x, 16);
        y = rotate(y, 16);
#endif
        __builtin_memcpy(out + 4 * i, &x, sizeof(x));
        __builtin_memcpy(out + 4 * i + 2, &y, sizeof(y));
    }
}

struct BFloat16 {
    static uint32_t widen(uint32_t half) { return half << 16; }

    static uint32_t narrow(uint32_t bits) {
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        const auto size = static_cast<int32_t>(bits & MAGNITUDE);
        return size > static_cast<int32_t>(INFINITE) ? 0x7fc0 : rounded;
    }
};

struct Float16 {
    static constexpr uint32_t REBIAS = uint32_t{127 - 15} << 23;
    static constexpr int32_t LEAST_NORMAL = 0x38800000;  // 2^-14, as a float32
    static constexpr int32_t OVERFLOW = 0x477ff000;      // 65520, which rounds to 2^16

    // All cases are computed, and one is selected: so the loop has no branch. A subnormal m 2^-24 is the
    // difference of two normal floats, 2^-14 + m 2^-24 and 2^-14.
    static uint32_t widen(uint32_t half) {
        const auto size = static_cast<int32_t>(half & 0x7fff);
        const uint32_t shifted = static_cast<uint32_t>(size) << 13;
        const float above = __builtin_bit_cast(float, shifted + REBIAS + (uint32_t{1} << 23));
        const uint32_t subnormal = __builtin_bit_cast(uint32_t, above - 0x1p-14F);
        const uint32_t finite = size < 0x400 ? subnormal : shifted + REBIAS;
        return (size < 0x7c00 ? finite : shifted | INFINITE) | (half & 0x8000) << 16;
    }

    // The last place of the float 1/2 + x is 2^-24, that of a subnormal: the sum rounds x as wanted.
    static uint32_t narrow(uint32_t bits) {
        const auto size = static_cast<int32_t>(bits & MAGNITUDE);
        const uint32_t magnitude = static_cast<uint32_t>(size);
        const float above = __builtin_bit_cast(float, magnitude) + 0.5F;
        const uint32_t subnormal = __builtin_bit_cast(uint32_t, above) - 0x3f000000;
        const uint32_t normal = (magnitude - REBIAS + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const uint32_t finite = size < LEAST_NORMAL ? subnormal : normal;
        const uint32_t special = size > static_cast<int32_t>(INFINITE) ? 0x7e00 : 0x7c00;
        return (size < OVERFLOW ? finite : special) | (bits >> 16 & 0x8000);
    }
};

template <typename Half>
void widen(const uint16_t* __restrict halves, size_t n, float* __restrict x) {
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            x[i] = __builtin_bit_cast(float, Half::widen(halves[i]));
        }
    });
}

template <typename Half>
void narrow(const float* __restrict x, size_t n, uint16_t* __restrict halves) {
    in_steps(n, [&](size_t first, size_t count) __attribute__((always_inline)) {
        for (size_t i = first; i < first + count; ++i) {
            halves[i] = static_cast<uint16_t>(Half::narrow(__builtin_bit_cast(uint32_t, x[i])));
        }
    });
}

void stream(const unsigned char* __restrict bytes, size_t n, unsigned char* __restrict out) {
    size_t i = 0;
#ifdef __AVX512F__
    for (; i + 64 <= n; i += 64) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i), _mm512_loadu_si512(bytes + i));
    }
#elif defined(__SSE2__)
    for (; i + 16 <= n; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i)));
    }
#endif
    for (; i < n; ++i) {
        out[i] = bytes[i];
    }
}

void multiply(float* x, size_t n, float factor) {
    for (size_t i = 0; i < n; ++i) {
        x[i] *= factor;
    }
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
    .count_below = count_below,
    .pack = {pack<uint8_t>, pack<uint16_t>, pack<uint32_t>},
    .pack_stochastic = {pack_stochastic<uint8_t>, pack_stochastic<uint16_t>, pack_stochastic<uint32_t>},
    .unpack = {unpack<uint8_t, float>, unpack<uint16_t, float>, unpack<uint32_t, float>},
    .unpack_wide = {unpack<uint8_t, double>, unpack<uint16_t, double>, unpack<uint32_t, double>},
    .sum = {sum_8, sum_16, sum_32},
    .add = add,
    .residual = {residual<uint8_t>, residual<uint16_t>, residual<uint32_t>},
    .within = within,
    .draw = draw,
    .widen = {widen<BFloat16>, widen<Float16>},
    .narrow = {narrow<BFloat16>, narrow<Float16>},
    .stream = stream,
    .multiply = multiply,
    .divide = divide,
};

}  // namespace inagg
