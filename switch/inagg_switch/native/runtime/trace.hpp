// SPDX-License-Identifier: Apache-2.0
//
// Describes each step of a packet in a line of text, in programs compiled with ISW_TRACED. In other programs
// ISW_TRACE expands to nothing.
#ifndef INAGG_SWITCH_TRACE_HPP
#define INAGG_SWITCH_TRACE_HPP

#ifdef ISW_TRACED

#include <cstdint>
#include <cstdio>
#include <string>

#include "program.h"
#include "tables/table.hpp"
#include "values/bits.hpp"

// Evaluates `...` (a std::string) and writes it only while tracing is on. `trace` must be a Trace in scope.
#define ISW_TRACE(...) \
    if (trace.is_on()) trace.line(__VA_ARGS__)

namespace isw {

// The names of a table and of its key fields, as the P4 source spells them.
struct TableNames {
    const char* name;
    const char* const* fields;
};

class Trace {
  public:
    void to(isw_text_fn write, void* ctx) {
        write_ = write;
        ctx_ = ctx;
    }
    bool is_on() const { return write_ != nullptr; }
    void line(const std::string& text) const {
        if (is_on()) write_(ctx_, text.data(), text.size());
    }

    static std::string number(const std::uint64_t* limbs, std::size_t count) {
        while (count > 1 && limbs[count - 1] == 0) --count;
        char digits[24];
        std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(limbs[count - 1]));
        std::string text = digits;
        while (--count > 0) {
            std::snprintf(digits, sizeof digits, "%016llx",
                          static_cast<unsigned long long>(limbs[count - 1]));
            text += digits;
        }
        return text;
    }

    // Writes a look-up: the key and the entry found (NULL: miss).
    void table(const TableInfo& info, const TableNames& names, const std::uint64_t* key,
               const Entry* found) const {
        if (!is_on()) return;
        std::string text = std::string("table ") + names.name + ": " + (found != nullptr ? "hit" : "miss");
        std::size_t limb = 0;
        for (std::uint32_t f = 0; f < info.field_count; ++f) {
            const std::uint32_t limbs = limbs_of(info.fields[f].width);
            text += std::string(f == 0 ? " for " : ", ") + names.fields[f] + "=" + number(key + limb, limbs);
            if (found != nullptr) text += matched(info.fields[f], *found, limb);
            limb += limbs;
        }
        if (found != nullptr && found->priority > 0) text += ", priority " + std::to_string(found->priority);
        line(text);
    }

  private:
    // The entry's match of one field, in brackets: prefix, range or mask. Empty for an exact match.
    static std::string matched(const FieldInfo& field, const Entry& entry, std::size_t limb) {
        const std::uint32_t limbs = limbs_of(field.width);
        const std::string value = number(&entry.value[limb], limbs);
        if (field.kind == MatchKind::lpm) return " (" + value + "/" + std::to_string(entry.prefix) + ")";
        if (field.kind == MatchKind::exact) return "";
        const std::string other = number(&entry.mask[limb], limbs);
        if (field.kind == MatchKind::range) return " (" + value + ".." + other + ")";
        return other == "0x0" ? " (anything)" : " (" + value + "&" + other + ")";
    }

    isw_text_fn write_ = nullptr;
    void* ctx_ = nullptr;
};

// A value of W bits as hexadecimal digits.
template <unsigned W>
std::string shown(const value_t<W>& value) {
    std::uint64_t limbs[limbs_of(W) == 0 ? 1 : limbs_of(W)] = {};
    to_limbs<W>(value, limbs);
    return Trace::number(limbs, sizeof limbs / sizeof *limbs);
}

}  // namespace isw

#else

#define ISW_TRACE(...) static_cast<void>(0)

#endif  // ISW_TRACED

#endif  // INAGG_SWITCH_TRACE_HPP
