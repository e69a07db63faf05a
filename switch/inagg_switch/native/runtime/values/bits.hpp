// SPDX-License-Identifier: Apache-2.0
//
// Values of bit<W> and int<W>. Up to 64 bits they are stored in the smallest unsigned integer that holds
// them, wider ones in Wide<W>: 64-bit limbs, least significant first. Bits above W are always zero. int<W> is
// two's complement in the same storage; operations that depend on the sign have names with `_signed`.
#ifndef INAGG_SWITCH_BITS_HPP
#define INAGG_SWITCH_BITS_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "values/wide.hpp"

namespace isw {

template <unsigned W>
using narrow_t = std::conditional_t<
    W <= 8, std::uint8_t,
    std::conditional_t<W <= 16, std::uint16_t, std::conditional_t<W <= 32, std::uint32_t, std::uint64_t>>>;

template <unsigned W>
struct Storage {
    using type = narrow_t<W>;
};
template <unsigned W>
    requires(W > 64)
struct Storage<W> {
    using type = Wide<W>;
};

// The C++ type of bit<W> and int<W>.
template <unsigned W>
using value_t = Storage<W>::type;

template <unsigned W>
inline constexpr std::uint64_t ones = W >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << W) - 1;

template <unsigned W>
constexpr narrow_t<W> wrap(std::uint64_t v) {
    return static_cast<narrow_t<W>>(v & ones<W>);
}

// Sign-extends a value of W <= 64 bits.
template <unsigned W>
constexpr std::int64_t to_signed(std::uint64_t v) {
    return static_cast<std::int64_t>(v << (64 - W)) >> (64 - W);
}

// --- arithmetic, modulo 2^W

template <unsigned W>
constexpr value_t<W> add(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return wrap<W>(std::uint64_t{a} + b);
    } else {
        return wide_add(a, b);
    }
}

template <unsigned W>
constexpr value_t<W> sub(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return wrap<W>(std::uint64_t{a} - b);
    } else {
        return wide_sub(a, b);
    }
}

template <unsigned W>
constexpr value_t<W> mul(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return wrap<W>(std::uint64_t{a} * b);
    } else {
        return wide_mul(a, b);
    }
}

template <unsigned W>
constexpr value_t<W> neg(const value_t<W>& a) {
    return sub<W>(value_t<W>{}, a);
}

template <unsigned W>
constexpr value_t<W> bit_not(const value_t<W>& a) {
    if constexpr (W <= 64) {
        return wrap<W>(~std::uint64_t{a});
    } else {
        return wide_not(a);
    }
}

template <unsigned W>
constexpr value_t<W> bit_and(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return static_cast<value_t<W>>(a & b);
    } else {
        return wide_each(a, b, [](std::uint64_t x, std::uint64_t y) { return x & y; });
    }
}

template <unsigned W>
constexpr value_t<W> bit_or(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return static_cast<value_t<W>>(a | b);
    } else {
        return wide_each(a, b, [](std::uint64_t x, std::uint64_t y) { return x | y; });
    }
}

template <unsigned W>
constexpr value_t<W> bit_xor(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return static_cast<value_t<W>>(a ^ b);
    } else {
        return wide_each(a, b, [](std::uint64_t x, std::uint64_t y) { return x ^ y; });
    }
}

// --- comparisons

template <unsigned W>
constexpr bool less(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return a < b;
    } else {
        return wide_less(a, b);
    }
}

template <unsigned W>
constexpr bool less_signed(const value_t<W>& a, const value_t<W>& b) {
    if constexpr (W <= 64) {
        return to_signed<W>(a) < to_signed<W>(b);
    } else {
        const bool negative_a = wide_bit(a, W - 1);
        const bool negative_b = wide_bit(b, W - 1);
        return negative_a != negative_b ? negative_a : wide_less(a, b);
    }
}

// --- shifts, by any distance

template <unsigned W>
constexpr std::uint64_t distance(const value_t<W>& v) {
    if constexpr (W <= 64) {
        return v;
    } else {
        return wide_fits_64(v) ? v.limb[0] : ~std::uint64_t{0};
    }
}

template <unsigned W>
constexpr value_t<W> shl(const value_t<W>& a, std::uint64_t by) {
    if (by >= W) return value_t<W>{};
    if constexpr (W <= 64) {
        return wrap<W>(std::uint64_t{a} << by);
    } else {
        return wide_shl(a, static_cast<unsigned>(by));
    }
}

template <unsigned W>
constexpr value_t<W> shr(const value_t<W>& a, std::uint64_t by) {
    if (by >= W) return value_t<W>{};
    if constexpr (W <= 64) {
        return static_cast<value_t<W>>(std::uint64_t{a} >> by);
    } else {
        return wide_shr(a, static_cast<unsigned>(by));
    }
}

template <unsigned W>
constexpr value_t<W> shr_signed(const value_t<W>& a, std::uint64_t by) {
    if constexpr (W <= 64) {
        return wrap<W>(static_cast<std::uint64_t>(to_signed<W>(a) >> (by >= W ? 63 : by)));
    } else {
        if (!wide_bit(a, W - 1)) return shr<W>(a, by);
        return bit_not<W>(shr<W>(bit_not<W>(a), by));
    }
}

// --- saturating arithmetic

template <unsigned W>
constexpr value_t<W> add_saturating(const value_t<W>& a, const value_t<W>& b) {
    const value_t<W> sum = add<W>(a, b);
    return less<W>(sum, a) ? bit_not<W>(value_t<W>{}) : sum;
}

template <unsigned W>
constexpr value_t<W> sub_saturating(const value_t<W>& a, const value_t<W>& b) {
    return less<W>(a, b) ? value_t<W>{} : sub<W>(a, b);
}

template <unsigned W>
constexpr value_t<W> one_bit(unsigned position) {
    if constexpr (W <= 64) {
        return wrap<W>(std::uint64_t{1} << position);
    } else {
        value_t<W> v{};
        v.limb[position / 64] = std::uint64_t{1} << (position % 64);
        return v;
    }
}

// The smallest int<W> if `negative`, else the largest.
template <unsigned W>
constexpr value_t<W> signed_limit(bool negative) {
    const value_t<W> smallest = one_bit<W>(W - 1);
    return negative ? smallest : bit_not<W>(smallest);
}

template <unsigned W>
constexpr bool is_negative(const value_t<W>& v) {
    if constexpr (W <= 64) {
        return ((v >> (W - 1)) & 1) != 0;
    } else {
        return wide_bit(v, W - 1);
    }
}

template <unsigned W>
constexpr value_t<W> add_saturating_signed(const value_t<W>& a, const value_t<W>& b) {
    const value_t<W> sum = add<W>(a, b);
    const bool overflow = is_negative<W>(a) == is_negative<W>(b) && is_negative<W>(sum) != is_negative<W>(a);
    return overflow ? signed_limit<W>(is_negative<W>(a)) : sum;
}

template <unsigned W>
constexpr value_t<W> sub_saturating_signed(const value_t<W>& a, const value_t<W>& b) {
    const value_t<W> difference = sub<W>(a, b);
    const bool overflow =
        is_negative<W>(a) != is_negative<W>(b) && is_negative<W>(difference) != is_negative<W>(a);
    return overflow ? signed_limit<W>(is_negative<W>(a)) : difference;
}

// --- widths

// The low To bits of `v`, extended with zeros if To > From.
template <unsigned From, unsigned To>
constexpr value_t<To> resize(const value_t<From>& v) {
    if constexpr (From <= 64 && To <= 64) {
        return wrap<To>(v);
    } else if constexpr (From <= 64) {
        value_t<To> r{};
        r.limb[0] = v;
        return r;
    } else if constexpr (To <= 64) {
        return wrap<To>(v.limb[0]);
    } else {
        return wide_resize<To>(v);
    }
}

// The low To bits of `v`, sign-extended if To > From.
template <unsigned From, unsigned To>
constexpr value_t<To> resize_signed(const value_t<From>& v) {
    if constexpr (To <= From) {
        return resize<From, To>(v);
    } else {
        const value_t<To> r = resize<From, To>(v);
        return is_negative<From>(v) ? bit_or<To>(r, shl<To>(bit_not<To>(value_t<To>{}), From)) : r;
    }
}

template <unsigned Left, unsigned Right>
constexpr value_t<Left + Right> concat(const value_t<Left>& a, const value_t<Right>& b) {
    constexpr unsigned W = Left + Right;
    return bit_or<W>(shl<W>(resize<Left, W>(a), Right), resize<Right, W>(b));
}

template <unsigned W, unsigned High, unsigned Low>
constexpr value_t<High - Low + 1> slice(const value_t<W>& v) {
    if constexpr (W <= 64) {
        return wrap<High - Low + 1>(std::uint64_t{v} >> Low);
    } else {
        return resize<W, High - Low + 1>(shr<W>(v, Low));
    }
}

// `v` with bits High..Low replaced.
template <unsigned W, unsigned High, unsigned Low>
constexpr value_t<W> with_slice(const value_t<W>& v, const value_t<High - Low + 1>& part) {
    constexpr unsigned N = High - Low + 1;
    const value_t<W> mask = shl<W>(resize<N, W>(bit_not<N>(value_t<N>{})), Low);
    return bit_or<W>(bit_and<W>(v, bit_not<W>(mask)), shl<W>(resize<N, W>(part), Low));
}

// --- big-endian memory

// Reads n <= 8 bytes, most significant first.
template <unsigned n>
inline std::uint64_t load_bytes(const std::uint8_t* p) {
    if constexpr (n == 1) {
        return *p;
    } else if constexpr (n == 2) {
        std::uint16_t v;
        std::memcpy(&v, p, sizeof v);
        return __builtin_bswap16(v);
    } else if constexpr (n == 4) {
        std::uint32_t v;
        std::memcpy(&v, p, sizeof v);
        return __builtin_bswap32(v);
    } else if constexpr (n == 8) {
        return load_be64(p);
    } else {
        constexpr unsigned kFirst = std::bit_floor(n);
        return load_bytes<kFirst>(p) << (8 * (n - kFirst)) | load_bytes<n - kFirst>(p + kFirst);
    }
}

// Writes the low 8n bits of `v`.
template <unsigned n>
inline void store_bytes(std::uint8_t* p, std::uint64_t v) {
    if constexpr (n == 1) {
        *p = static_cast<std::uint8_t>(v);
    } else if constexpr (n == 2) {
        const std::uint16_t swapped = __builtin_bswap16(static_cast<std::uint16_t>(v));
        std::memcpy(p, &swapped, sizeof swapped);
    } else if constexpr (n == 4) {
        const std::uint32_t swapped = __builtin_bswap32(static_cast<std::uint32_t>(v));
        std::memcpy(p, &swapped, sizeof swapped);
    } else if constexpr (n == 8) {
        store_be64(p, v);
    } else {
        constexpr unsigned kFirst = std::bit_floor(n);
        store_bytes<kFirst>(p, v >> (8 * (n - kFirst)));
        store_bytes<n - kFirst>(p + kFirst, v);
    }
}

// Reads W bits, beginning at bit Offset, in packet order: most significant first.
template <unsigned Offset, unsigned W>
inline value_t<W> load_bits(const std::uint8_t* p) {
    if constexpr (W <= 64) {
        constexpr unsigned shift = Offset % 8;
        constexpr unsigned bytes = (shift + W + 7) / 8;
        p += Offset / 8;
        if constexpr (bytes <= 8) {
            return wrap<W>(load_bytes<bytes>(p) >> (8 * bytes - shift - W));
        } else {
            const uint128 v = static_cast<uint128>(load_be64(p)) << 8 | p[8];
            return wrap<W>(static_cast<std::uint64_t>(v >> (8 * bytes - shift - W)));
        }
    } else {
        return wide_load<W>(p, Offset);
    }
}

// to = v; copies wide numbers in vector blocks.
template <unsigned W>
constexpr void set(value_t<W>& to, const value_t<W>& v) {
    if constexpr (W <= 64) {
        to = v;
    } else {
        wide_copy(to, v);
    }
}

template <unsigned Offset, unsigned W>
inline void load_bits_to(value_t<W>& to, const std::uint8_t* p) {
    if constexpr (W <= 64) {
        to = load_bits<Offset, W>(p);
    } else {
        wide_load_to(to, p, Offset);
    }
}

// Writes W bits, beginning at bit Offset. Bits of a byte that the field shares with others are ORed: they
// must be zero before.
template <unsigned Offset, unsigned W>
inline void store_bits(std::uint8_t* p, const value_t<W>& v) {
    if constexpr (W <= 64) {
        constexpr unsigned shift = Offset % 8;
        constexpr unsigned bytes = (shift + W + 7) / 8;
        p += Offset / 8;
        if constexpr (shift == 0 && W % 8 == 0) {
            store_bytes<bytes>(p, v);
        } else {
            uint128 placed = static_cast<uint128>(v) << (8 * bytes - shift - W);
            for (unsigned i = bytes; i-- > 0; placed >>= 8) p[i] |= static_cast<std::uint8_t>(placed);
        }
    } else {
        wide_store<W>(p, Offset, v);
    }
}

template <unsigned W>
inline constexpr unsigned bytes_of = (W + 7) / 8;

// Reads a value in the control plane's format: (W + 7) / 8 bytes, big-endian, zeros above the value.
template <unsigned W>
inline value_t<W> load_value(const std::uint8_t* p) {
    return load_bits<8 * bytes_of<W> - W, W>(p);
}

template <unsigned W>
inline void store_value(std::uint8_t* p, const value_t<W>& v) {
    std::memset(p, 0, bytes_of<W>);
    store_bits<8 * bytes_of<W> - W, W>(p, v);
}

}  // namespace isw

#endif  // INAGG_SWITCH_BITS_HPP
