// SPDX-License-Identifier: Apache-2.0
//
// Match-action tables. A key is an array of 64-bit limbs: each field takes (width + 63) / 64 of them, least
// significant first. Tables with exact fields and at most one lpm field are looked up by hash, one look-up
// for each prefix length; tables with a ternary, range or optional field are looked up in masked_index.hpp.
#ifndef INAGG_SWITCH_TABLE_HPP
#define INAGG_SWITCH_TABLE_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "program.h"
#include "tables/key.hpp"
#include "tables/masked_index.hpp"
#include "tables/meter.hpp"
#include "tables/profile.hpp"
#include "tables/table_info.hpp"
#include "values/bits.hpp"

namespace isw {

// What packets have done to an entry.
struct Use {
    std::uint64_t packets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t last_hit_us = 0;
};

struct Entry : Key {
    std::uint32_t action = 0;  // index in the table's actions
    std::int32_t priority = 0;
    bool is_const = false;
    std::uint64_t order = 0;  // number of earlier insertions into the table
    std::size_t place = 0;    // index in Table::entries_
    std::uint64_t hash = 0;
    Use use;
    std::vector<std::uint64_t> params;
    Indirect indirect;  // set in tables with an action profile; `action` and `params` are then unused
    Meter meter;

    bool same_key(const Entry& other) const {
        return priority == other.priority && prefix == other.prefix && value == other.value &&
               mask == other.mask;
    }
};

class Table {
  public:
    // `profile`: the action profile that the entries refer to; NULL if the entries hold their actions.
    explicit Table(const TableInfo& info, ActionProfile* profile = nullptr);

    const TableInfo& info() const { return info_; }
    const Entry& default_entry() const { return default_; }

    // The entry that matches, or NULL.
    template <unsigned K>
    Entry* lookup(const std::uint64_t (&key)[K]) const {
        if (entries_.empty()) return nullptr;
        if (masked_) return find_masked(key);
        if (lpm_limb_ >= 0) return longest_prefix(key, K);
        const auto same = [&](const Entry& e) {
            std::uint64_t difference = 0;
            for (unsigned i = 0; i < K; ++i) difference |= e.value[i] ^ key[i];
            return difference == 0;
        };
        if (last_ != nullptr && same(*last_)) return last_;
        Entry* const found = find(hash_of(key, K, 0), same);
        if (found != nullptr) last_ = found;
        return found;
    }

    int insert(const isw_match* match, std::int32_t priority, std::uint32_t action,
               const std::uint8_t* params, std::size_t length);
    int modify(const isw_match* match, std::int32_t priority, std::uint32_t action,
               const std::uint8_t* params, std::size_t length);
    int insert_indirect(const isw_match* match, std::int32_t priority, std::uint32_t kind, std::uint32_t id);
    int modify_indirect(const isw_match* match, std::int32_t priority, std::uint32_t kind, std::uint32_t id);
    int set_default_indirect(std::uint32_t kind, std::uint32_t id);
    int remove(const isw_match* match, std::int32_t priority);
    int set_default(std::uint32_t action, const std::uint8_t* params, std::size_t length);
    // Adds an entry that the program declares. Throws std::logic_error if insert() would refuse it.
    void declare_entry(const isw_match* match, std::int32_t priority, std::uint32_t action,
                       const std::uint8_t* params, std::size_t length, bool is_const);
    // Sets the default action that the program declares; set_default(0) restores it. Throws std::logic_error
    // if set_default() would refuse it.
    void declare_default(std::uint32_t action, const std::uint8_t* params, std::size_t length);
    // `use_of`: what to show as an entry's use.
    using UseOf = std::function<Use(const Entry&)>;
    int visit_entries(std::size_t first, std::size_t count, const UseOf& use_of, isw_entry_fn visit,
                      void* ctx) const;
    int visit_entry(const isw_match* match, std::int32_t priority, const UseOf& use_of, isw_entry_fn visit,
                    void* ctx);
    void visit_default(isw_entry_fn visit, void* ctx) const;
    // Returns NULL and the reason in `error` (-errno) if there is no such entry.
    Entry* find_entry(const isw_match* match, std::int32_t priority, int& error);
    // The entry of another thread's table, which has had the same calls, as this table has it.
    const Entry& twin(const Entry& entry) const { return *entries_[entry.place]; }

  private:
    struct Bucket {
        std::uint64_t hash;
        Entry* entry;
    };

    static std::uint64_t hash_of(const std::uint64_t* key, std::size_t n, std::uint64_t seed) {
        std::uint64_t h = seed + 0x9E3779B97F4A7C15u;
        for (std::size_t i = 0; i < n; ++i) h = mix(h, key[i]);
        return h;
    }
    template <class Same>
    Entry* find(std::uint64_t hash, Same same) const {
        const std::size_t mask = buckets_.size() - 1;
        for (std::size_t i = hash & mask; buckets_[i].entry != nullptr; i = (i + 1) & mask) {
            if (buckets_[i].hash == hash && same(*buckets_[i].entry)) return buckets_[i].entry;
        }
        return nullptr;
    }
    Entry* find_masked(const std::uint64_t* key) const;
    Entry* longest_prefix(const std::uint64_t* key, std::size_t limbs) const;

    std::uint64_t entry_hash(const Entry& e) const;
    int decode_entry(const isw_match* match, std::int32_t priority, Entry& out) const;
    int decode_both(const isw_match* match, std::int32_t priority, std::uint32_t action,
                    const std::uint8_t* params, std::size_t length, Entry& out) const;
    int decode_action(std::uint32_t action, const std::uint8_t* params, std::size_t length, Entry& out) const;
    int add(std::unique_ptr<Entry> e);
    Entry* find_same(const Entry& e) const;
    void add_to_index(Entry* e);
    void remove_from_index(const Entry* e);
    void show(const Entry& e, const Use& use, isw_entry_fn visit, void* ctx, bool is_default) const;

    const TableInfo& info_;
    ActionProfile* profile_;
    std::size_t limbs_ = 0;
    bool masked_ = false;
    std::int32_t lpm_limb_ = -1;
    std::uint32_t lpm_width_ = 0;
    std::vector<std::uint32_t> prefix_counts_;  // entries by prefix length
    std::vector<std::unique_ptr<Entry>> entries_;
    // The entry that was found last, in tables with exact fields only. The segments of one large frame, and
    // the copies of one packet, mostly have the same key.
    mutable Entry* last_ = nullptr;
    MaskedIndex<Entry> by_masks_;
    std::uint64_t inserted_ = 0;
    std::vector<Bucket> buckets_;
    std::size_t indexed_ = 0;
    Entry default_;
    Entry declared_default_;
};

}  // namespace isw

#endif  // INAGG_SWITCH_TABLE_HPP
