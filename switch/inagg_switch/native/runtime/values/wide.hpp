// SPDX-License-Identifier: Apache-2.0
//
// Numbers of more than 64 bits. Compilers vectorise these loops (byte order, logic, copies). They do not
// vectorise the carry chain of an addition, so wide_x86.hpp has one written by hand.
#ifndef INAGG_SWITCH_WIDE_HPP
#define INAGG_SWITCH_WIDE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include "values/wide_x86.hpp"
#endif

namespace isw {

__extension__ typedef unsigned __int128 uint128;

// True for widths that the vector versions support: whole 512-bit blocks, at most 4096 bits.
template <unsigned W>
inline constexpr bool wide_in_blocks =
#if defined(__AVX2__)
    W % 512 == 0 && W <= 4096;
#else
    false;
#endif

// Numbers of whole blocks are aligned to cache lines.
template <unsigned W>
struct alignas(wide_in_blocks<W> ? 64 : alignof(std::uint64_t)) Wide {
    static constexpr unsigned limbs = (W + 63) / 64;
    static constexpr std::uint64_t top_mask =
        W % 64 == 0 ? ~std::uint64_t{0} : (std::uint64_t{1} << (W % 64)) - 1;

    std::uint64_t limb[limbs];

    constexpr bool operator==(const Wide& other) const {
        std::uint64_t difference = 0;
        for (unsigned i = 0; i < limbs; ++i) difference |= limb[i] ^ other.limb[i];
        return difference == 0;
    }
};

template <unsigned W>
constexpr void wide_trim(Wide<W>& v) {
    v.limb[Wide<W>::limbs - 1] &= Wide<W>::top_mask;
}

// to = from. Compilers turn a plain assignment into `rep movs`, which starts slowly.
template <unsigned W>
constexpr void wide_copy(Wide<W>& to, const Wide<W>& from) {
    if constexpr (wide_in_blocks<W>) {
        if (!std::is_constant_evaluated()) {
            constexpr unsigned n = Wide<W>::limbs;
            copy_limbs<n>(to.limb, from.limb);
            return;
        }
    }
    to = from;
}

// to = a + b; `to` may be `a` or `b`.
template <unsigned W>
constexpr void wide_add_to(Wide<W>& to, const Wide<W>& a, const Wide<W>& b) {
    if constexpr (wide_in_blocks<W>) {
        if (!std::is_constant_evaluated()) {
            constexpr unsigned n = Wide<W>::limbs;
            add_limbs<n>(to.limb, a.limb, b.limb);
            return;
        }
    }
    std::uint64_t carry = 0;
    for (unsigned i = 0; i < Wide<W>::limbs; ++i) {
        const std::uint64_t partial = a.limb[i] + carry;
        carry = partial < carry;
        const std::uint64_t sum = partial + b.limb[i];
        carry += sum < partial;
        to.limb[i] = sum;
    }
    wide_trim(to);
}

template <unsigned W>
constexpr Wide<W> wide_add(const Wide<W>& a, const Wide<W>& b) {
    Wide<W> r;
    wide_add_to(r, a, b);
    return r;
}

template <unsigned W, class F>
constexpr Wide<W> wide_each(const Wide<W>& a, const Wide<W>& b, F f) {
    Wide<W> r;
    for (unsigned i = 0; i < Wide<W>::limbs; ++i) r.limb[i] = f(a.limb[i], b.limb[i]);
    return r;
}

template <unsigned W>
constexpr Wide<W> wide_not(const Wide<W>& a) {
    Wide<W> r;
    for (unsigned i = 0; i < Wide<W>::limbs; ++i) r.limb[i] = ~a.limb[i];
    wide_trim(r);
    return r;
}

template <unsigned W>
constexpr Wide<W> wide_sub(const Wide<W>& a, const Wide<W>& b) {
    Wide<W> r;
    std::uint64_t borrow = 0;
    for (unsigned i = 0; i < Wide<W>::limbs; ++i) {
        const std::uint64_t partial = a.limb[i] - borrow;
        borrow = a.limb[i] < borrow;
        r.limb[i] = partial - b.limb[i];
        borrow += partial < b.limb[i];
    }
    wide_trim(r);
    return r;
}

template <unsigned W>
constexpr Wide<W> wide_mul(const Wide<W>& a, const Wide<W>& b) {
    Wide<W> r{};
    for (unsigned i = 0; i < Wide<W>::limbs; ++i) {
        std::uint64_t carry = 0;
        for (unsigned j = 0; i + j < Wide<W>::limbs; ++j) {
            const uint128 t = static_cast<uint128>(a.limb[i]) * b.limb[j] + r.limb[i + j] + carry;
            r.limb[i + j] = static_cast<std::uint64_t>(t);
            carry = static_cast<std::uint64_t>(t >> 64);
        }
    }
    wide_trim(r);
    return r;
}

template <unsigned W>
constexpr bool wide_less(const Wide<W>& a, const Wide<W>& b) {
    for (unsigned i = Wide<W>::limbs; i-- > 0;) {
        if (a.limb[i] != b.limb[i]) return a.limb[i] < b.limb[i];
    }
    return false;
}

template <unsigned W>
constexpr bool wide_bit(const Wide<W>& v, unsigned position) {
    return (v.limb[position / 64] >> (position % 64) & 1) != 0;
}

template <unsigned W>
constexpr bool wide_fits_64(const Wide<W>& v) {
    std::uint64_t above = 0;
    for (unsigned i = 1; i < Wide<W>::limbs; ++i) above |= v.limb[i];
    return above == 0;
}

// by < W.
template <unsigned W>
constexpr Wide<W> wide_shl(const Wide<W>& a, unsigned by) {
    Wide<W> r{};
    const unsigned whole = by / 64;
    const unsigned part = by % 64;
    for (unsigned i = whole; i < Wide<W>::limbs; ++i) {
        r.limb[i] = a.limb[i - whole] << part;
        if (part != 0 && i > whole) r.limb[i] |= a.limb[i - whole - 1] >> (64 - part);
    }
    wide_trim(r);
    return r;
}

// by < W.
template <unsigned W>
constexpr Wide<W> wide_shr(const Wide<W>& a, unsigned by) {
    Wide<W> r{};
    const unsigned whole = by / 64;
    const unsigned part = by % 64;
    for (unsigned i = 0; i + whole < Wide<W>::limbs; ++i) {
        r.limb[i] = a.limb[i + whole] >> part;
        if (part != 0 && i + whole + 1 < Wide<W>::limbs) r.limb[i] |= a.limb[i + whole + 1] << (64 - part);
    }
    return r;
}

template <unsigned To, unsigned From>
constexpr Wide<To> wide_resize(const Wide<From>& v) {
    Wide<To> r{};
    constexpr unsigned n = Wide<To>::limbs < Wide<From>::limbs ? Wide<To>::limbs : Wide<From>::limbs;
    for (unsigned i = 0; i < n; ++i) r.limb[i] = v.limb[i];
    wide_trim(r);
    return r;
}

inline std::uint64_t load_be64(const std::uint8_t* p) {
    std::uint64_t v;
    std::memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

inline void store_be64(std::uint8_t* p, std::uint64_t v) {
    v = __builtin_bswap64(v);
    std::memcpy(p, &v, 8);
}

// Reads `width` <= 64 bits, beginning at bit `offset`.
inline std::uint64_t load_span(const std::uint8_t* p, unsigned offset, unsigned width) {
    uint128 v = 0;
    const unsigned shift = offset % 8;
    const unsigned bytes = (shift + width + 7) / 8;
    for (unsigned i = 0; i < bytes; ++i) v = v << 8 | p[offset / 8 + i];
    v >>= 8 * bytes - shift - width;
    return static_cast<std::uint64_t>(v) &
           (width >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << width) - 1);
}

inline void or_span(std::uint8_t* p, unsigned offset, unsigned width, std::uint64_t v) {
    const unsigned shift = offset % 8;
    const unsigned bytes = (shift + width + 7) / 8;
    uint128 placed = static_cast<uint128>(v) << (8 * bytes - shift - width);
    for (unsigned i = bytes; i-- > 0; placed >>= 8) p[offset / 8 + i] |= static_cast<std::uint8_t>(placed);
}

template <unsigned W>
inline void wide_load_to(Wide<W>& r, const std::uint8_t* p, unsigned offset) {
    constexpr unsigned n = Wide<W>::limbs;
    if (W % 64 == 0 && offset % 8 == 0) {
        p += offset / 8;
        if constexpr (wide_in_blocks<W>) {
            limbs_from_bytes<n>(r.limb, p);
        } else {
            for (unsigned i = 0; i < n; ++i) r.limb[i] = load_be64(p + sizeof r.limb[i] * (n - 1 - i));
        }
        return;
    }
    for (unsigned i = 0; i < n; ++i) {
        const unsigned width = i == n - 1 && W % 64 != 0 ? W % 64 : 64;
        r.limb[i] = load_span(p, offset + W - 64 * i - width, width);
    }
}

template <unsigned W>
inline Wide<W> wide_load(const std::uint8_t* p, unsigned offset) {
    Wide<W> r;
    wide_load_to(r, p, offset);
    return r;
}

template <unsigned W>
inline void wide_store(std::uint8_t* p, unsigned offset, const Wide<W>& v) {
    constexpr unsigned n = Wide<W>::limbs;
    if (W % 64 == 0 && offset % 8 == 0) {
        p += offset / 8;
        if constexpr (wide_in_blocks<W>) {
            limbs_to_bytes<n>(p, v.limb);
        } else {
            for (unsigned i = 0; i < n; ++i) store_be64(p + sizeof v.limb[i] * (n - 1 - i), v.limb[i]);
        }
        return;
    }
    if (W % 8 == 0 && offset % 8 == 0) std::memset(p + offset / 8, 0, W / 8);
    for (unsigned i = 0; i < n; ++i) {
        const unsigned width = i == n - 1 && W % 64 != 0 ? W % 64 : 64;
        or_span(p, offset + W - 64 * i - width, width, v.limb[i]);
    }
}

}  // namespace isw

#endif  // INAGG_SWITCH_WIDE_HPP
