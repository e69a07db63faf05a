// SPDX-License-Identifier: Apache-2.0
//
// Descriptions of tables, actions and action profiles, which the compiler emits; and conversion of values
// between the control plane's bytes and 64-bit limbs, least significant first.
#ifndef INAGG_SWITCH_TABLE_INFO_HPP
#define INAGG_SWITCH_TABLE_INFO_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "values/bits.hpp"

namespace isw {

enum class MatchKind : std::uint8_t { exact, lpm, ternary, range, optional };

struct FieldInfo {
    std::uint32_t width = 0;
    MatchKind kind = MatchKind::exact;
    const std::uint64_t* mask =
        nullptr;  // limbs of the mask in a key `field & mask`, which applies to entries too
};

struct ActionInfo {
    std::uint32_t id;
    bool in_entries;  // may be used in entries: not @defaultonly
    bool as_default;  // may be the default action: not @tableonly
    const std::uint32_t* widths;
    std::uint32_t width_count;
};

struct ProfileInfo {
    std::uint32_t id;
    std::uint32_t size;
    const ActionInfo* actions;
    std::uint32_t action_count;
};

struct TableInfo {
    std::uint32_t id;
    std::uint32_t size;
    const FieldInfo* fields;
    std::uint32_t field_count;
    const ActionInfo* actions;
    std::uint32_t action_count;
    bool const_entries;
    bool const_default;
};

constexpr std::uint32_t limbs_of(std::uint32_t width) { return (width + 63) / 64; }

// Converts (width + 7) / 8 bytes of a field or parameter to limbs. False if the value does not fit the width.
inline bool decode_value(const std::uint8_t* bytes, std::uint32_t width, std::uint64_t* limbs) {
    const std::uint32_t n = (width + 7) / 8;
    if (width % 8 != 0 && (bytes[0] >> (width % 8)) != 0) return false;
    std::memset(limbs, 0, limbs_of(width) * sizeof *limbs);
    for (std::uint32_t i = 0; i < n; ++i) limbs[i / 8] |= std::uint64_t{bytes[n - 1 - i]} << (8 * (i % 8));
    return true;
}

inline void encode_value(const std::uint64_t* limbs, std::uint32_t width, std::uint8_t* bytes) {
    const std::uint32_t n = (width + 7) / 8;
    for (std::uint32_t i = 0; i < n; ++i)
        bytes[n - 1 - i] = static_cast<std::uint8_t>(limbs[i / 8] >> (8 * (i % 8)));
}

// The value of W bits that begins at `limbs`.
template <unsigned W>
inline value_t<W> from_limbs(const std::uint64_t* limbs) {
    if constexpr (W <= 64) {
        return static_cast<value_t<W>>(*limbs);
    } else {
        value_t<W> v;
        std::memcpy(v.limb, limbs, sizeof v.limb);
        return v;
    }
}

template <unsigned W>
inline void to_limbs(const value_t<W>& v, std::uint64_t* limbs) {
    if constexpr (W <= 64) {
        *limbs = v;
    } else {
        std::memcpy(limbs, v.limb, sizeof v.limb);
    }
}

// Converts action parameters in the ABI's format to limbs. False if they do not fit the action.
inline bool decode_params(const ActionInfo& action, const std::uint8_t* params, std::size_t length,
                          std::vector<std::uint64_t>& limbs) {
    std::size_t bytes = 0;
    std::size_t count = 0;
    for (std::uint32_t p = 0; p < action.width_count; ++p) {
        bytes += (action.widths[p] + 7) / 8;
        count += limbs_of(action.widths[p]);
    }
    if (bytes != length) return false;
    limbs.assign(count, 0);
    std::uint64_t* to = limbs.data();
    for (std::uint32_t p = 0; p < action.width_count; ++p) {
        if (!decode_value(params, action.widths[p], to)) return false;
        params += (action.widths[p] + 7) / 8;
        to += limbs_of(action.widths[p]);
    }
    return true;
}

inline std::vector<std::uint8_t> encode_params(const ActionInfo& action,
                                               const std::vector<std::uint64_t>& limbs) {
    std::vector<std::uint8_t> params;
    const std::uint64_t* from = limbs.data();
    for (std::uint32_t p = 0; p < action.width_count; ++p) {
        const std::size_t start = params.size();
        params.resize(start + (action.widths[p] + 7) / 8);
        encode_value(from, action.widths[p], &params[start]);
        from += limbs_of(action.widths[p]);
    }
    return params;
}

}  // namespace isw

#endif  // INAGG_SWITCH_TABLE_INFO_HPP
