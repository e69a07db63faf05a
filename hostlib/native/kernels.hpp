// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the numerics: kernels.cpp compiled once for each instruction set. Plain numbers and
// pointers only, so that no inline function of a header is compiled for an instruction set that the machine
// may lack.
#ifndef INAGG_KERNELS_HPP
#define INAGG_KERNELS_HPP

#include <stddef.h>
#include <stdint.h>

namespace inagg {

struct ScanResult {
    uint32_t greatest;  // bits of the greatest finite magnitude
    bool special;       // a NaN or an infinity was seen
};

struct Kernels {
    ScanResult (*scan)(const float* x, size_t n);

    // Lane i = round-to-nearest-even(x[i] * scale_1 * scale_2) + bias, big-endian. The sum of the lanes, mod
    // 2^32. The _special ones take a NaN or an infinity for zero.
    uint32_t (*pack32)(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias,
                       unsigned char* lanes);
    uint32_t (*pack16)(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias,
                       unsigned char* lanes);
    uint32_t (*pack32_special)(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias,
                               unsigned char* lanes);
    uint32_t (*pack16_special)(const float* x, size_t n, float scale_1, float scale_2, uint32_t bias,
                               unsigned char* lanes);

    // x[i] = (lane i - zero) * scale, rounded once if the product is a normal float. The sum of the lanes.
    uint32_t (*unpack32)(const unsigned char* lanes, size_t n, uint32_t zero, float scale, float* x);
    uint32_t (*unpack16)(const unsigned char* lanes, size_t n, uint32_t zero, float scale, float* x);

    // The same for any scale: the product is made in double, where it is exact, and rounded once.
    uint32_t (*unpack32_wide)(const unsigned char* lanes, size_t n, uint32_t zero, double scale, float* x);
    uint32_t (*unpack16_wide)(const unsigned char* lanes, size_t n, uint32_t zero, double scale, float* x);

    void (*divide)(float* x, size_t n, float divisor);
};

extern const Kernels KERNELS_baseline;
extern const Kernels KERNELS_x86_64_v2;
extern const Kernels KERNELS_x86_64_v3;
extern const Kernels KERNELS_x86_64_v4;

}  // namespace inagg

#endif
