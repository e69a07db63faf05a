// SPDX-License-Identifier: Apache-2.0
//
// Look-up of entries with masked keys (ternary, optional, range) by tuple space search: one hash table for
// each combination of masks, tried from the highest priority down (Srinivasan, Suri, Varghese: Packet
// Classification using Tuple Space Search, SIGCOMM 1999). Most tables have few combinations, however many
// entries. If every entry has its own combination, the search is a scan.
//
// Ranges have no mask, but a range is a union of aligned blocks of 2^n numbers, and a block has one. The
// first range field of at most 64 bits is looked up by its blocks, once the table has more than kScanned
// entries.
#ifndef INAGG_SWITCH_MASKED_INDEX_HPP
#define INAGG_SWITCH_MASKED_INDEX_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tables/key.hpp"
#include "tables/table_info.hpp"
#include "values/bits.hpp"

namespace isw {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t limb) {
    const uint128 m = static_cast<uint128>(hash ^ limb) * 0xD6E8FEB86659FD93u;
    return static_cast<std::uint64_t>(m) ^ static_cast<std::uint64_t>(m >> 64);
}

// Splits low..high into aligned blocks of 2^n numbers, at most two for each n. Calls visit(first number of
// the block, mask of the bits in which its numbers differ) for each.
template <class Visit>
void each_block(std::uint64_t low, std::uint64_t high, Visit visit) {
    for (;;) {
        std::uint64_t block = low == 0 ? ~std::uint64_t{0} : (low & -low) - 1;
        while ((low | block) > high) block >>= 1;
        visit(low, block);
        if ((low | block) == high) return;
        low = (low | block) + 1;
    }
}

// Entry is a Key with `priority` and `order`. Among entries that match, the one with the highest priority
// wins; among equals, the one inserted first.
template <class Entry>
class MaskedIndex {
  public:
    MaskedIndex(const FieldInfo* fields, std::uint32_t field_count)
        : fields_(fields), field_count_(field_count) {
        std::size_t at = 0;
        for (std::uint32_t f = 0; f < field_count_ && !has_range_; ++f) {
            has_range_ = fields_[f].kind == MatchKind::range && fields_[f].width <= 64;
            range_limb_ = at;
            at += limbs_of(fields_[f].width);
        }
    }

    // The winning entry, or NULL if none matches.
    Entry* find(const std::uint64_t* key) const {
        Entry* best = nullptr;
        for (const Masks* masks : by_priority_) {
            if (best != nullptr && best->priority > masks->highest()) break;
            Entry* found = find_in(*masks, key);
            if (found != nullptr && (best == nullptr || wins(found, best))) best = found;
        }
        return best;
    }

    void add(Entry* entry) {
        if (has_range_ && !is_spread_ && count_ == kScanned) spread();
        ++count_;
        each_part(*entry, [&](const Limbs& mask, const Limbs& value) {
            auto& masks = all_[mask];
            if (masks == nullptr) {
                masks = std::make_unique<Masks>(mask);
                by_priority_.push_back(masks.get());
            }
            Row& row = masks->rows[hash_under(mask, value.data())];
            row.insert(std::upper_bound(row.begin(), row.end(), entry, wins), entry);
            ++masks->priorities[entry->priority];
            masks->only = masks->rows.size() == 1 ? &masks->rows.begin()->second : nullptr;
        });
        sort();
    }

    void remove(const Entry* entry) {
        --count_;
        each_part(*entry, [&](const Limbs& mask, const Limbs& value) {
            const auto found = all_.find(mask);
            Masks& masks = *found->second;
            const auto row = masks.rows.find(hash_under(mask, value.data()));
            row->second.erase(std::find(row->second.begin(), row->second.end(), entry));
            if (row->second.empty()) masks.rows.erase(row);
            const auto priority = masks.priorities.find(entry->priority);
            if (--priority->second == 0) masks.priorities.erase(priority);
            masks.only = masks.rows.size() == 1 ? &masks.rows.begin()->second : nullptr;
            if (masks.rows.empty()) {
                by_priority_.erase(std::find(by_priority_.begin(), by_priority_.end(), &masks));
                all_.erase(found);
            }
        });
        sort();
    }

  private:
    using Row = std::vector<Entry*>;  // the entries of one hash value, the winner first
    using Limbs = std::vector<std::uint64_t>;
    // Up to this many entries with ranges, a scan is faster than look-ups by block.
    static constexpr std::size_t kScanned = 16;

    struct Masks {
        explicit Masks(Limbs limbs) : mask(std::move(limbs)) {}
        std::int32_t highest() const { return priorities.begin()->first; }

        Limbs mask;  // 0 in range fields, except in the one that is looked up by its blocks
        std::unordered_map<std::uint64_t, Row> rows;
        std::map<std::int32_t, std::size_t, std::greater<>> priorities;  // number of entries by priority
        const Row* only = nullptr;  // the row, if there is exactly one: no hash is needed
    };

    static bool wins(const Entry* a, const Entry* b) {
        return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
    }
    static std::uint64_t hash_under(const Limbs& mask, const std::uint64_t* key) {
        std::uint64_t hash = 0;
        for (std::size_t i = 0; i < mask.size(); ++i) hash = mix(hash, key[i] & mask[i]);
        return hash;
    }
    Limbs masks_of(const Entry& entry) const {
        Limbs mask = entry.mask;
        std::size_t at = 0;
        for (std::uint32_t f = 0; f < field_count_; ++f) {
            const std::uint32_t n = limbs_of(fields_[f].width);
            if (fields_[f].kind == MatchKind::range) std::fill_n(&mask[at], n, 0);
            at += n;
        }
        return mask;
    }
    // Calls visit(mask, value) for each place of the entry in the index.
    template <class Visit>
    void each_part(const Entry& entry, Visit visit) const {
        Limbs mask = masks_of(entry);
        Limbs value = entry.value;
        if (!is_spread_) {
            visit(mask, value);
            return;
        }
        const std::size_t at = range_limb_;
        each_block(entry.value[at], entry.mask[at], [&](std::uint64_t low, std::uint64_t block) {
            value[at] = low;
            mask[at] = ~block;
            visit(mask, value);
        });
    }
    void spread() {
        Row entries;
        for (const auto& [mask, masks] : all_) {
            for (const auto& [hash, row] : masks->rows) entries.insert(entries.end(), row.begin(), row.end());
        }
        all_.clear();
        by_priority_.clear();
        is_spread_ = true;
        count_ = 0;
        for (Entry* entry : entries) add(entry);
    }
    Entry* find_in(const Masks& masks, const std::uint64_t* key) const {
        const Row* row = masks.only;
        if (row == nullptr) {
            const auto found = masks.rows.find(hash_under(masks.mask, key));
            if (found == masks.rows.end()) return nullptr;
            row = &found->second;
        }
        for (Entry* entry : *row) {
            if (matches(*entry, fields_, field_count_, key)) return entry;
        }
        return nullptr;
    }
    void sort() {
        const auto higher = [](const Masks* a, const Masks* b) { return a->highest() > b->highest(); };
        if (!std::is_sorted(by_priority_.begin(), by_priority_.end(), higher)) {
            std::stable_sort(by_priority_.begin(), by_priority_.end(), higher);
        }
    }

    const FieldInfo* fields_;
    std::uint32_t field_count_;
    bool has_range_ = false;
    std::size_t range_limb_ = 0;  // first limb of the range field that is looked up by its blocks
    bool is_spread_ = false;      // entries are indexed by their blocks
    std::size_t count_ = 0;
    std::map<Limbs, std::unique_ptr<Masks>> all_;
    std::vector<Masks*> by_priority_;  // highest priority first
};

}  // namespace isw

#endif  // INAGG_SWITCH_MASKED_INDEX_HPP
