// SPDX-License-Identifier: Apache-2.0
//
// The hot operations on wide numbers with x86 vector instructions: copying, reversing bytes (packets are
// big-endian, limbs little-endian) and adding. wide.hpp includes this file when -march has AVX2, and has
// portable versions of the same functions.
//
// n counts limbs of 64 bits. Source and destination may be the same but must not overlap otherwise.
#ifndef INAGG_SWITCH_WIDE_X86_HPP
#define INAGG_SWITCH_WIDE_X86_HPP

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace isw {

#if defined(__AVX512BW__)

inline __m512i reverse_block(__m512i v) {
    const __m512i within =
        _mm512_broadcast_i32x4(_mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    const __m512i lanes = _mm512_shuffle_epi8(v, within);
    return _mm512_shuffle_i64x2(lanes, lanes, _MM_SHUFFLE(0, 1, 2, 3));
}

inline constexpr unsigned kBlockLimbs = 8;
using Block = __m512i;
inline Block load_block(const void* p) { return _mm512_loadu_si512(p); }
inline void store_block(void* p, Block v) { _mm512_storeu_si512(p, v); }

#elif defined(__AVX2__)

inline __m256i reverse_block(__m256i v) {
    const __m256i within =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, within), _MM_SHUFFLE(1, 0, 3, 2));
}

inline constexpr unsigned kBlockLimbs = 4;
using Block = __m256i;
inline Block load_block(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_block(void* p, Block v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

#endif

// Copies n limbs; n is a multiple of kBlockLimbs.
template <unsigned n>
inline void copy_limbs(std::uint64_t* to, const std::uint64_t* from) {
#pragma GCC unroll 64
    for (unsigned i = 0; i < n; i += kBlockLimbs) store_block(to + i, load_block(from + i));
}

// n counts bytes.
template <unsigned n>
inline void copy_bytes(std::uint8_t* to, const std::uint8_t* from) {
#pragma GCC unroll 64
    for (unsigned i = 0; i < n; i += sizeof(Block)) store_block(to + i, load_block(from + i));
}

template <unsigned n>
inline void limbs_from_bytes(std::uint64_t* to, const std::uint8_t* from) {
#pragma GCC unroll 64
    for (unsigned i = 0; i < n; i += kBlockLimbs) {
        store_block(to + i, reverse_block(load_block(from + 8 * (n - i - kBlockLimbs))));
    }
}

template <unsigned n>
inline void limbs_to_bytes(std::uint8_t* to, const std::uint64_t* from) {
#pragma GCC unroll 64
    for (unsigned i = 0; i < n; i += kBlockLimbs) {
        store_block(to + 8 * (n - i - kBlockLimbs), reverse_block(load_block(from + i)));
    }
}

#if defined(__AVX512BW__)

// Adds all limbs in parallel. If some overflow, which is rare where lanes have guard bits, one integer
// addition propagates the carries: bit i of C says that limb i overflowed; bit i of P says that limb i is all
// ones and passes a carry on. The bits in which P + (C << 1) and P differ are the limbs that receive a carry.
//
// `load` returns block i of the first summand.
template <unsigned n, class Load>
inline void add_loaded(std::uint64_t* to, Load load, const std::uint64_t* b) {
    static_assert(n <= 64);
    constexpr unsigned kBlocks = n / kBlockLimbs;
    __m512i sum[kBlocks];
    __mmask8 overflow[kBlocks];
    unsigned any = 0;
#pragma GCC unroll 8
    for (unsigned i = 0; i < kBlocks; ++i) {
        const __m512i x = load(i);
        sum[i] = _mm512_add_epi64(x, load_block(b + 8 * i));
        overflow[i] = _mm512_cmplt_epu64_mask(sum[i], x);
        any |= overflow[i];
    }
    if (any != 0) [[unlikely]] {
        const __m512i ones = _mm512_set1_epi64(-1);
        std::uint64_t overflowed = 0;
        std::uint64_t all_ones = 0;
        for (unsigned i = 0; i < kBlocks; ++i) {
            overflowed |= std::uint64_t{overflow[i]} << (8 * i);
            all_ones |= std::uint64_t{_mm512_cmpeq_epi64_mask(sum[i], ones)} << (8 * i);
        }
        const std::uint64_t carries = ((overflowed << 1) + all_ones) ^ all_ones;
        for (unsigned i = 0; i < kBlocks; ++i) {
            const auto here = static_cast<__mmask8>(carries >> (8 * i));
            sum[i] = _mm512_mask_sub_epi64(sum[i], here, sum[i], ones);
        }
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < kBlocks; ++i) store_block(to + 8 * i, sum[i]);
}

template <unsigned n>
inline void add_limbs(std::uint64_t* to, const std::uint64_t* a, const std::uint64_t* b) {
    add_loaded<n>(to, [a](unsigned i) { return load_block(a + 8 * i); }, b);
}

template <unsigned n>
inline void add_limbs_to_bytes(std::uint64_t* to, const std::uint8_t* a, const std::uint64_t* b) {
    add_loaded<n>(to, [a](unsigned i) { return reverse_block(load_block(a + 8 * (n - 8 - 8 * i))); }, b);
}

#else

template <unsigned n>
inline void add_limbs(std::uint64_t* to, const std::uint64_t* a, const std::uint64_t* b) {
    unsigned char carry = 0;
#pragma GCC unroll 64
    for (unsigned i = 0; i < n; ++i) {
        unsigned long long sum;
        carry = _addcarry_u64(carry, a[i], b[i], &sum);
        to[i] = sum;
    }
}

template <unsigned n>
inline void add_limbs_to_bytes(std::uint64_t* to, const std::uint8_t* a, const std::uint64_t* b) {
    unsigned char carry = 0;
#pragma GCC unroll 64
    for (unsigned i = 0; i < n; ++i) {
        unsigned long long limb, sum;
        __builtin_memcpy(&limb, a + 8 * (n - 1 - i), sizeof limb);
        carry = _addcarry_u64(carry, __builtin_bswap64(limb), b[i], &sum);
        to[i] = sum;
    }
}

#endif

}  // namespace isw

#endif  // INAGG_SWITCH_WIDE_X86_HPP
