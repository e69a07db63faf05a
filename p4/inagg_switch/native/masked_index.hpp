// SPDX-License-Identifier: Apache-2.0
//
// Entries whose keys have masks (ternary, optional, range), found by tuple space search: one hash table for
// every combination of masks, tried from the highest priority down (Srinivasan, Suri, Varghese: Packet
// classification using tuple space search, SIGCOMM 1999). A table has few such combinations, however many
// entries; where every entry has its own, this is a scan.
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

#include "bits.hpp"
#include "key.hpp"
#include "table_info.hpp"

namespace isw {

inline std::uint64_t mix(std::uint64_t hash, std::uint64_t limb) {
    const uint128 m = static_cast<uint128>(hash ^ limb) * 0xD6E8FEB86659FD93u;
    return static_cast<std::uint64_t>(m) ^ static_cast<std::uint64_t>(m >> 64);
}

// Entry is a Key with `priority` and `order`: of two that match, the one of the higher priority wins, then
// the one that came first.
template <class Entry>
class MaskedIndex {
  public:
    MaskedIndex(const FieldInfo* fields, std::uint32_t field_count)
        : fields_(fields), field_count_(field_count) {}

    // The entry that wins among those that match; NULL if none does.
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
        auto& masks = all_[masks_of(*entry)];
        if (masks == nullptr) {
            masks = std::make_unique<Masks>(masks_of(*entry));
            by_priority_.push_back(masks.get());
        }
        Row& row = masks->rows[hash_under(masks->mask, entry->value.data())];
        row.insert(std::upper_bound(row.begin(), row.end(), entry, wins), entry);
        ++masks->priorities[entry->priority];
        masks->only = masks->rows.size() == 1 ? &masks->rows.begin()->second : nullptr;
        sort();
    }

    void remove(const Entry* entry) {
        const auto found = all_.find(masks_of(*entry));
        Masks& masks = *found->second;
        const auto row = masks.rows.find(hash_under(masks.mask, entry->value.data()));
        row->second.erase(std::find(row->second.begin(), row->second.end(), entry));
        if (row->second.empty()) masks.rows.erase(row);
        const auto priority = masks.priorities.find(entry->priority);
        if (--priority->second == 0) masks.priorities.erase(priority);
        masks.only = masks.rows.size() == 1 ? &masks.rows.begin()->second : nullptr;
        if (masks.rows.empty()) {
            by_priority_.erase(std::find(by_priority_.begin(), by_priority_.end(), &masks));
            all_.erase(found);
        }
        sort();
    }

  private:
    using Row = std::vector<Entry*>;  // of one hash: the winner first

    struct Masks {
        explicit Masks(std::vector<std::uint64_t> limbs) : mask(std::move(limbs)) {}
        std::int32_t highest() const { return priorities.begin()->first; }

        std::vector<std::uint64_t> mask;  // 0 in range fields
        std::unordered_map<std::uint64_t, Row> rows;
        std::map<std::int32_t, std::size_t, std::greater<>> priorities;  // entries of each
        const Row* only = nullptr;  // the row, if there is one only: it needs no hash
    };

    static bool wins(const Entry* a, const Entry* b) {
        return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
    }
    static std::uint64_t hash_under(const std::vector<std::uint64_t>& mask, const std::uint64_t* key) {
        std::uint64_t hash = 0;
        for (std::size_t i = 0; i < mask.size(); ++i) hash = mix(hash, key[i] & mask[i]);
        return hash;
    }
    std::vector<std::uint64_t> masks_of(const Entry& entry) const {
        std::vector<std::uint64_t> mask = entry.mask;
        std::size_t at = 0;
        for (std::uint32_t f = 0; f < field_count_; ++f) {
            const std::uint32_t n = limbs_of(fields_[f].width);
            if (fields_[f].kind == MatchKind::range) std::fill_n(&mask[at], n, 0);
            at += n;
        }
        return mask;
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
    std::map<std::vector<std::uint64_t>, std::unique_ptr<Masks>> all_;
    std::vector<Masks*> by_priority_;  // the one with the highest first
};

}  // namespace isw

#endif  // INAGG_SWITCH_MASKED_INDEX_HPP
