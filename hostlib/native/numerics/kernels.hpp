// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the numerics: kernels.cpp is compiled once for each instruction set. Arguments are
// numbers and pointers only, so that no inline function of a header is compiled for an instruction set that
// the machine may lack. No two arrays of a call overlap.
#ifndef INAGG_KERNELS_HPP
#define INAGG_KERNELS_HPP

#include <stddef.h>
#include <stdint.h>

namespace inagg {

struct ScanResult {
    uint32_t greatest;  // bits of the greatest finite magnitude
    bool special;       // a NaN or an infinity was seen
};

// Arrays of three functions: for lanes of 8, 16 and 32 bits.
struct Kernels {
    ScanResult (*scan)(const float* x, size_t n);

    // The number of elements whose magnitudes have smaller bits than `bound`.
    uint32_t (*count_below)(const float* x, size_t n, uint32_t bound);

    // Lane i = round-to-nearest-even(x[i] * scale_1 * scale_2) + bias, big-endian. Returns the sum of the
    // lanes, mod 2^32. x holds no NaN and no infinity.
    uint32_t (*pack[3])(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias,
                        unsigned char* lanes);

    // The same rounded stochastically (numerics.hpp) by draws[i].
    uint32_t (*pack_stochastic[3])(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias,
                                   const uint16_t* draws, unsigned char* lanes);

    // x[i] = (lane i - zero) * scale, rounded once if the product is a normal float.
    void (*unpack[3])(const unsigned char* lanes, size_t n, uint32_t zero, float scale, float* x);

    // The same for any scale: the product is made in double, where it is exact, and rounded once.
    void (*unpack_wide[3])(const unsigned char* lanes, size_t n, uint32_t zero, double scale, float* x);

    // The sum of the lanes, mod 2^32.
    uint32_t (*sum[3])(const unsigned char* lanes, size_t n);

    // Adds `lanes` to `sums`, as big-endian numbers of 64 bits; n is their number. So lanes of any width are
    // added, if no sum is too large for its lane.
    void (*add)(const unsigned char* lanes, size_t n, unsigned char* sums);

    // out[i] = x[i] - (lane i - bias) * scale: what the lanes do not hold. x holds no NaN and no infinity.
    void (*residual[3])(const float* x, const unsigned char* lanes, size_t n, uint32_t bias, double scale,
                        float* out);

    // Copies x, with zero for magnitudes whose bits are greater than `limit`: also NaNs and infinities.
    void (*within)(const float* x, size_t n, uint32_t limit, float* out);

    // Random numbers under `key` for n counters from `counter` on: 64 bits each, as words of 16 bits, the
    // least significant first.
    void (*draw)(uint64_t key, uint64_t counter, size_t n, uint16_t* out);

    // bfloat16 and float16 as float32, exactly, and back, rounded to nearest even; a NaN becomes a quiet one.
    void (*widen[2])(const uint16_t* halves, size_t n, float* x);
    void (*narrow[2])(const float* x, size_t n, uint16_t* halves);

    // Copies n bytes to `out`, which is aligned to 64 bytes, without reading it into a cache first (x86's
    // non-temporal stores). Other threads see the copy after an sfence().
    void (*stream)(const unsigned char* bytes, size_t n, unsigned char* out);

    void (*multiply)(float* x, size_t n, float factor);
    void (*divide)(float* x, size_t n, float divisor);
};

extern const Kernels KERNELS_baseline;
extern const Kernels KERNELS_x86_64_v2;
extern const Kernels KERNELS_x86_64_v3;
extern const Kernels KERNELS_x86_64_v4;

}  // namespace inagg

#endif
