// SPDX-License-Identifier: Apache-2.0
//
// The key of a table entry or of a row of a value set: one match for each field.
#ifndef INAGG_SWITCH_KEY_HPP
#define INAGG_SWITCH_KEY_HPP

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "program.h"
#include "tables/table_info.hpp"

namespace isw {

struct Key {
    std::uint32_t prefix = 0;          // length of the lpm field's prefix, in bits
    std::vector<std::uint64_t> value;  // bits outside the mask are zero; a range: its lower end
    std::vector<std::uint64_t> mask;   // a range: its upper end
};

// Writes the mask of a prefix of `prefix` bits: limbs_of(width) limbs.
inline void prefix_mask(std::uint32_t width, std::uint32_t prefix, std::uint64_t* mask) {
    std::memset(mask, 0, limbs_of(width) * sizeof *mask);
    for (std::uint32_t bit = width - prefix; bit < width;) {
        const std::uint32_t low = bit % 64;
        const std::uint32_t count = std::min(64 - low, width - bit);
        mask[bit / 64] |= (count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << low;
        bit += count;
    }
}

inline bool not_above(const std::uint64_t* a, const std::uint64_t* b, std::uint32_t n) {
    for (std::uint32_t i = n; i-- > 0;) {
        if (a[i] != b[i]) return a[i] < b[i];
    }
    return true;
}

// True if the key matches the fields' values. `limbs` holds the values of all fields, one after the other.
inline bool matches(const Key& key, const FieldInfo* fields, std::uint32_t count,
                    const std::uint64_t* limbs) {
    std::size_t at = 0;
    for (std::uint32_t f = 0; f < count; ++f) {
        const std::uint32_t n = limbs_of(fields[f].width);
        if (fields[f].kind == MatchKind::range) {
            if (!not_above(&key.value[at], limbs + at, n) || !not_above(limbs + at, &key.mask[at], n))
                return false;
        } else {
            for (std::uint32_t i = 0; i < n; ++i) {
                if (((limbs[at + i] & key.mask[at + i]) ^ key.value[at + i]) != 0) return false;
            }
        }
        at += n;
    }
    return true;
}

inline int decode_field(const FieldInfo& field, const isw_match& match, Key& out, std::uint64_t* value,
                        std::uint64_t* mask) {
    const std::uint32_t n = limbs_of(field.width);
    if (match.value == nullptr) {
        if (field.kind == MatchKind::exact) return -EINVAL;
        if (field.kind == MatchKind::range) prefix_mask(field.width, field.width, mask);
        return 0;
    }
    if (!decode_value(match.value, field.width, value)) return -EINVAL;
    if (field.kind == MatchKind::ternary || field.kind == MatchKind::range) {
        if (match.mask_or_high == nullptr || !decode_value(match.mask_or_high, field.width, mask))
            return -EINVAL;
    } else if (field.kind == MatchKind::lpm) {
        if (match.prefix_length > field.width) return -EINVAL;
        prefix_mask(field.width, match.prefix_length, mask);
        out.prefix = match.prefix_length;
    } else {
        prefix_mask(field.width, field.width, mask);
    }
    if (field.kind == MatchKind::range) {
        if (!not_above(value, mask, n)) return -EINVAL;
    } else {
        for (std::uint32_t i = 0; i < n; ++i) {
            if ((value[i] & ~mask[i]) != 0) return -EINVAL;
        }
    }
    if (field.mask != nullptr) {
        for (std::uint32_t i = 0; i < n; ++i) value[i] &= field.mask[i];
    }
    return 0;
}

inline int decode_key(const FieldInfo* fields, std::uint32_t count, const isw_match* match, Key& out) {
    std::size_t limbs = 0;
    for (std::uint32_t f = 0; f < count; ++f) limbs += limbs_of(fields[f].width);
    out.value.assign(limbs, 0);
    out.mask.assign(limbs, 0);
    std::size_t at = 0;
    for (std::uint32_t f = 0; f < count; ++f) {
        const int error = decode_field(fields[f], match[f], out, &out.value[at], &out.mask[at]);
        if (error != 0) return error;
        at += limbs_of(fields[f].width);
    }
    return 0;
}

}  // namespace isw

#endif  // INAGG_SWITCH_KEY_HPP
