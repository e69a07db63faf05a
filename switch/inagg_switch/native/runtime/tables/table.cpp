// SPDX-License-Identifier: Apache-2.0
//
// The parts of Table that do not depend on the program: conversion of entries from and to the control plane,
// and the look-ups with masks and prefixes. Built once and linked with every program.
#include "tables/table.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace isw {

Table::Table(const TableInfo& info, ActionProfile* profile)
    : info_(info),
      profile_(profile),
      by_masks_(info.fields, info.field_count),
      buckets_(8, Bucket{0, nullptr}) {
    for (std::uint32_t i = 0; i < info.field_count; ++i) {
        const FieldInfo& field = info.fields[i];
        if (field.kind == MatchKind::lpm) {
            lpm_limb_ = static_cast<std::int32_t>(limbs_);
            lpm_width_ = field.width;
            prefix_counts_.assign(field.width + 1, 0);
        } else if (field.kind != MatchKind::exact) {
            masked_ = true;
        }
        limbs_ += limbs_of(field.width);
    }
}

Entry* Table::find_masked(const std::uint64_t* key) const { return by_masks_.find(key); }

Entry* Table::longest_prefix(const std::uint64_t* key, std::size_t limbs) const {
    std::uint64_t masked[64];
    std::vector<std::uint64_t> large;
    std::uint64_t* copy = masked;
    if (limbs > 64) {
        large.resize(limbs);
        copy = large.data();
    }
    std::memcpy(copy, key, limbs * 8);
    const std::size_t at = static_cast<std::size_t>(lpm_limb_);
    std::uint64_t mask[1024];
    for (std::uint32_t prefix = lpm_width_ + 1; prefix-- > 0;) {
        if (prefix_counts_[prefix] == 0) continue;
        prefix_mask(lpm_width_, prefix, mask);
        for (std::uint32_t i = 0; i < limbs_of(lpm_width_); ++i) copy[at + i] = key[at + i] & mask[i];
        Entry* found = find(hash_of(copy, limbs, prefix), [&](const Entry& e) {
            return e.prefix == prefix && std::memcmp(e.value.data(), copy, limbs * 8) == 0;
        });
        if (found != nullptr) return found;
    }
    return nullptr;
}

std::uint64_t Table::entry_hash(const Entry& e) const {
    if (!masked_) return hash_of(e.value.data(), limbs_, lpm_limb_ >= 0 ? e.prefix : 0);
    const std::uint64_t seed = hash_of(e.mask.data(), limbs_, static_cast<std::uint64_t>(e.priority));
    return hash_of(e.value.data(), limbs_, seed);
}

// --- decoding

int Table::decode_entry(const isw_match* match, std::int32_t priority, Entry& out) const {
    if (masked_ ? priority <= 0 : priority != 0) return -EINVAL;
    out.priority = priority;
    const int error = decode_key(info_.fields, info_.field_count, match, out);
    if (error == 0) out.hash = entry_hash(out);
    return error;
}

int Table::decode_action(std::uint32_t action, const std::uint8_t* params, std::size_t length,
                         Entry& out) const {
    for (std::uint32_t i = 0; i < info_.action_count; ++i) {
        const ActionInfo& known = info_.actions[i];
        if (known.id != action) continue;
        if (!decode_params(known, params, length, out.params)) return -EINVAL;
        out.action = i;
        return 0;
    }
    return -ENOENT;
}

int Table::decode_both(const isw_match* match, std::int32_t priority, std::uint32_t action,
                       const std::uint8_t* params, std::size_t length, Entry& out) const {
    int error = decode_entry(match, priority, out);
    if (error == 0) error = decode_action(action, params, length, out);
    if (error == 0 && !info_.actions[out.action].in_entries) error = -EPERM;
    return error;
}

// --- the index by hash: linear probing, at most half full

Entry* Table::find_same(const Entry& e) const {
    return find(e.hash, [&](const Entry& other) { return other.same_key(e); });
}

void Table::add_to_index(Entry* e) {
    if (2 * (indexed_ + 1) > buckets_.size()) {
        std::vector<Bucket> old(2 * buckets_.size(), Bucket{0, nullptr});
        old.swap(buckets_);
        indexed_ = 0;
        for (const Bucket& b : old) {
            if (b.entry != nullptr) add_to_index(b.entry);
        }
    }
    const std::size_t mask = buckets_.size() - 1;
    std::size_t i = e->hash & mask;
    while (buckets_[i].entry != nullptr) i = (i + 1) & mask;
    buckets_[i] = Bucket{e->hash, e};
    ++indexed_;
}

void Table::remove_from_index(const Entry* e) {
    const std::size_t mask = buckets_.size() - 1;
    std::size_t hole = e->hash & mask;
    while (buckets_[hole].entry != e) hole = (hole + 1) & mask;
    // Move later entries into the hole, except those that would end up before their hash's own bucket.
    for (std::size_t i = (hole + 1) & mask; buckets_[i].entry != nullptr; i = (i + 1) & mask) {
        if (((i - buckets_[i].hash) & mask) >= ((i - hole) & mask)) {
            buckets_[hole] = buckets_[i];
            hole = i;
        }
    }
    buckets_[hole].entry = nullptr;
    --indexed_;
}

// --- operations

int Table::insert(const isw_match* match, std::int32_t priority, std::uint32_t action,
                  const std::uint8_t* params, std::size_t length) {
    if (info_.const_entries) return -EPERM;
    if (profile_ != nullptr) return -EINVAL;
    auto e = std::make_unique<Entry>();
    const int error = decode_both(match, priority, action, params, length, *e);
    return error != 0 ? error : add(std::move(e));
}

void Table::declare_entry(const isw_match* match, std::int32_t priority, std::uint32_t action,
                          const std::uint8_t* params, std::size_t length, bool is_const) {
    auto e = std::make_unique<Entry>();
    int error = decode_both(match, priority, action, params, length, *e);
    e->is_const = is_const;
    if (error == 0) error = add(std::move(e));
    if (error != 0) {
        throw std::logic_error("an entry of table " + std::to_string(info_.id) + " in the program: error " +
                               std::to_string(-error));
    }
}

int Table::insert_indirect(const isw_match* match, std::int32_t priority, std::uint32_t kind,
                           std::uint32_t id) {
    if (info_.const_entries) return -EPERM;
    if (profile_ == nullptr) return -EINVAL;
    auto e = std::make_unique<Entry>();
    int error = decode_entry(match, priority, *e);
    if (error != 0) return error;
    Indirect referred;
    error = profile_->refer(kind, id, referred);
    if (error != 0) return error;
    e->indirect = referred;
    error = add(std::move(e));
    if (error != 0) ActionProfile::release(referred);
    return error;
}

int Table::add(std::unique_ptr<Entry> e) {
    if (info_.field_count == 0) return -EINVAL;  // such a table has only a default entry
    if (find_same(*e) != nullptr) return -EEXIST;
    if (entries_.size() >= info_.size) return -ENOSPC;
    if (entries_.size() == entries_.capacity()) entries_.reserve(2 * entries_.size() + 8);
    e->order = inserted_++;
    e->place = entries_.size();
    if (masked_) {
        by_masks_.add(e.get());
    } else if (lpm_limb_ >= 0) {
        ++prefix_counts_[e->prefix];
    }
    add_to_index(e.get());
    entries_.push_back(std::move(e));
    return 0;
}

Entry* Table::find_entry(const isw_match* match, std::int32_t priority, int& error) {
    Entry key;
    error = decode_entry(match, priority, key);
    if (error != 0) return nullptr;
    Entry* found = find_same(key);
    error = found == nullptr ? -ENOENT : 0;
    return found;
}

int Table::modify(const isw_match* match, std::int32_t priority, std::uint32_t action,
                  const std::uint8_t* params, std::size_t length) {
    int error = 0;
    Entry* found = find_entry(match, priority, error);
    if (found == nullptr) return error;
    if (found->is_const) return -EPERM;
    if (profile_ != nullptr) return -EINVAL;
    Entry changed;
    error = decode_action(action, params, length, changed);
    if (error != 0) return error;
    if (!info_.actions[changed.action].in_entries) return -EPERM;
    found->action = changed.action;
    found->params = std::move(changed.params);
    return 0;
}

int Table::modify_indirect(const isw_match* match, std::int32_t priority, std::uint32_t kind,
                           std::uint32_t id) {
    int error = 0;
    Entry* found = find_entry(match, priority, error);
    if (found == nullptr) return error;
    if (profile_ == nullptr) return -EINVAL;
    Indirect referred;
    error = profile_->refer(kind, id, referred);
    if (error != 0) return error;
    ActionProfile::release(found->indirect);
    found->indirect = referred;
    return 0;
}

int Table::remove(const isw_match* match, std::int32_t priority) {
    int error = 0;
    Entry* found = find_entry(match, priority, error);
    if (found == nullptr) return error;
    if (found->is_const) return -EPERM;
    ActionProfile::release(found->indirect);
    remove_from_index(found);
    if (masked_) {
        by_masks_.remove(found);
    } else if (lpm_limb_ >= 0) {
        --prefix_counts_[found->prefix];
    }
    last_ = nullptr;
    entries_.back()->place = found->place;
    std::swap(entries_[found->place], entries_.back());
    entries_.pop_back();
    return 0;
}

void Table::declare_default(std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    if (decode_action(action, params, length, declared_default_) != 0) {
        throw std::logic_error("the default action of table " + std::to_string(info_.id) + " in the program");
    }
    declared_default_.is_const = info_.const_default;
    default_ = declared_default_;
}

int Table::set_default(std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    if (info_.const_default) return -EPERM;
    if (action == 0) {
        ActionProfile::release(default_.indirect);
        default_ = declared_default_;
        return 0;
    }
    if (profile_ != nullptr) return -EINVAL;
    Entry changed;
    const int error = decode_action(action, params, length, changed);
    if (error != 0) return error;
    if (!info_.actions[changed.action].as_default) return -EPERM;
    default_ = std::move(changed);
    return 0;
}

int Table::set_default_indirect(std::uint32_t kind, std::uint32_t id) {
    if (info_.const_default) return -EPERM;
    if (profile_ == nullptr) return -EINVAL;
    Indirect referred;
    const int error = profile_->refer(kind, id, referred);
    if (error != 0) return error;
    ActionProfile::release(default_.indirect);
    default_.indirect = referred;
    return 0;
}

// --- reading back

void Table::show(const Entry& e, const Use& use, isw_entry_fn visit, void* ctx, bool is_default) const {
    std::size_t key_bytes = 0;
    for (std::uint32_t f = 0; f < info_.field_count; ++f) key_bytes += (info_.fields[f].width + 7) / 8;
    std::vector<std::uint8_t> values(key_bytes);
    std::vector<std::uint8_t> masks(key_bytes);
    std::vector<isw_match> match(is_default ? 0 : info_.field_count);
    std::size_t limb = 0;
    std::size_t byte = 0;
    for (std::uint32_t f = 0; f < match.size(); ++f) {
        const FieldInfo& field = info_.fields[f];
        encode_value(&e.value[limb], field.width, &values[byte]);
        encode_value(&e.mask[limb], field.width, &masks[byte]);
        bool any = field.kind != MatchKind::exact;
        for (std::uint32_t i = 0; i < limbs_of(field.width) && any; ++i) any = e.mask[limb + i] == 0;
        if (field.kind == MatchKind::range) {
            std::vector<std::uint64_t> all(limbs_of(field.width));
            prefix_mask(field.width, field.width, all.data());
            any = true;
            for (std::uint32_t i = 0; i < all.size(); ++i) {
                any = any && e.value[limb + i] == 0 && e.mask[limb + i] == all[i];
            }
        }
        const bool second = field.kind == MatchKind::ternary || field.kind == MatchKind::range;
        match[f] = isw_match{any ? nullptr : &values[byte], !any && second ? &masks[byte] : nullptr,
                             field.kind == MatchKind::lpm ? e.prefix : 0};
        limb += limbs_of(field.width);
        byte += (field.width + 7) / 8;
    }
    const std::uint32_t kind = e.indirect.kind();
    const ActionInfo& action = info_.actions[e.action];
    std::vector<std::uint8_t> params;
    if (kind == ISW_ACTION) params = encode_params(action, e.params);
    const isw_entry shown{is_default ? nullptr : match.data(),
                          match.size(),
                          e.priority,
                          kind == ISW_ACTION ? action.id : 0,
                          params.data(),
                          params.size(),
                          use.packets,
                          use.bytes,
                          e.is_const,
                          kind,
                          e.indirect.id(),
                          use.last_hit_us,
                          e.meter.config()};
    visit(ctx, &shown);
}

int Table::visit_entries(std::size_t first, std::size_t count, const UseOf& use_of, isw_entry_fn visit,
                         void* ctx) const {
    first = std::min(first, entries_.size());
    count = std::min(count, entries_.size() - first);
    for (std::size_t i = first; i < first + count; ++i) {
        show(*entries_[i], use_of(*entries_[i]), visit, ctx, false);
    }
    return static_cast<int>(count);
}

int Table::visit_entry(const isw_match* match, std::int32_t priority, const UseOf& use_of, isw_entry_fn visit,
                       void* ctx) {
    int error = 0;
    const Entry* found = find_entry(match, priority, error);
    if (found != nullptr) show(*found, use_of(*found), visit, ctx, false);
    return error;
}

void Table::visit_default(isw_entry_fn visit, void* ctx) const {
    show(default_, default_.use, visit, ctx, true);
}

}  // namespace isw
