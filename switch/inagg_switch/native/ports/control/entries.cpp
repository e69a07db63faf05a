// SPDX-License-Identifier: Apache-2.0
#include "ports/control/entries.hpp"

#include <algorithm>
#include <cstring>

#include "ports/control/control.hpp"
#include "ports/control/wire.hpp"

namespace inagg::ports {
namespace {

constexpr size_t kResponseBytes = 256 << 10;  // far below gRPC's default limit of 4 MiB

// --- from messages to the structs of program.h

size_t bytes_of(uint32_t bits) { return (bits + 7) / 8; }

bool fits(std::string_view digits, uint32_t bits) {
    if (digits.size() != bytes_of(bits)) return digits.size() < bytes_of(bits);
    return bits % 8 == 0 || static_cast<uint8_t>(digits.front()) >> (bits % 8) == 0;
}

// Widens a P4Runtime binary string to its full width. Returns false if it is empty or has too many bits.
bool widen(std::string_view value, const FieldShape& field, uint8_t* to) {
    const uint32_t bits = std::min(field.bits, field.given_bits);
    if (value.empty() || bits == 0) return false;
    const std::string_view digits = wire::canonical(value);
    if (!fits(digits, bits)) return false;
    const size_t size = bytes_of(field.bits);
    std::memset(to, 0, size - digits.size());
    std::memcpy(to + size - digits.size(), digits.data(), digits.size());
    return true;
}

bool is_zero(const uint8_t* bytes, size_t size) {
    return std::all_of(bytes, bytes + size, [](uint8_t byte) { return byte == 0; });
}

bool is_behind_prefix_zero(const uint8_t* value, uint32_t bits, uint32_t prefix) {
    const uint32_t free = bits - prefix;
    const uint8_t* end = value + bytes_of(bits);
    if (!is_zero(end - free / 8, free / 8)) return false;
    return free % 8 == 0 || (end[-1 - static_cast<ptrdiff_t>(free / 8)] & ((1u << free % 8) - 1)) == 0;
}

bool is_everything(const uint8_t* low, const uint8_t* high, uint32_t bits) {
    const size_t size = bytes_of(bits);
    const auto top = static_cast<uint8_t>(bits % 8 == 0 ? 0xFF : (1u << bits % 8) - 1);
    return is_zero(low, size) && high[0] == top &&
           std::all_of(high + 1, high + size, [](uint8_t byte) { return byte == 0xFF; });
}

// An update as the structs of program.h; owns its bytes.
class Prepared {
  public:
    // Returns false if the table might refuse the update.
    bool prepare(const Update& update, const TableShape& table) {
        kind_ = update.kind;
        table_ = table.id;
        priority_ = update.priority;
        action_ = update.action;
        return table.is_writable && (table.needs_priority ? priority_ > 0 : priority_ == 0) &&
               prepare_match(update, table) &&
               (kind_ == Update::Kind::remove || (update.has_action && prepare_action(update, table)));
    }

    int apply(const isw_api* api, void* handle) const {
        switch (kind_) {
            case Update::Kind::insert:
                return api->table_insert(handle, table_, match_.data(), priority_, action_, params_.data(),
                                         params_.size());
            case Update::Kind::modify:
                return api->table_modify(handle, table_, match_.data(), priority_, action_, params_.data(),
                                         params_.size());
            default:
                return remove(api, handle);
        }
    }
    int remove(const isw_api* api, void* handle) const {
        return api->table_delete(handle, table_, match_.data(), priority_);
    }

  private:
    bool prepare_match(const Update& update, const TableShape& table) {
        size_t size = 0;
        for (const FieldShape& field : table.fields) size += 2 * bytes_of(field.bits);
        values_.resize(size);
        match_.assign(table.fields.size(), isw_match{nullptr, nullptr, 0});
        size_t known = 0;
        uint8_t* at = values_.data();
        for (size_t f = 0; f < table.fields.size(); ++f) {
            const FieldShape& field = table.fields[f];
            const auto is_its = [&](const Update::Match& given) { return given.field == field.id; };
            const auto given = std::find_if(update.match.begin(), update.match.end(), is_its);
            if (given == update.match.end()) {
                if (field.kind == MatchKind::exact) return false;
                continue;
            }
            ++known;
            if (!prepare_field(*given, field, at, match_[f])) return false;
            at += 2 * bytes_of(field.bits);
        }
        return known == update.match.size();  // every field is known and occurs once
    }

    static bool prepare_field(const Update::Match& given, const FieldShape& field, uint8_t* value,
                              isw_match& match) {
        if (given.kind != field.kind || !widen(given.value, field, value)) return false;
        const size_t size = bytes_of(field.bits);
        uint8_t* other = value + size;
        match.value = value;
        if (field.kind == MatchKind::lpm) {
            match.prefix_length = given.prefix;
            return given.prefix > 0 && given.prefix <= field.bits &&
                   is_behind_prefix_zero(value, field.bits, given.prefix);
        }
        if (field.kind != MatchKind::ternary && field.kind != MatchKind::range) return true;
        if (!widen(given.other, field, other)) return false;
        match.mask_or_high = other;
        if (field.kind == MatchKind::range) {
            return std::memcmp(value, other, size) <= 0 && !is_everything(value, other, field.bits);
        }
        for (size_t i = 0; i < size; ++i) {
            if ((value[i] & ~other[i]) != 0) return false;
        }
        return !is_zero(other, size);
    }

    bool prepare_action(const Update& update, const TableShape& table) {
        const auto is_it = [&](const ActionShape& one) { return one.id == update.action && one.in_entries; };
        const auto action = std::find_if(table.actions.begin(), table.actions.end(), is_it);
        if (action == table.actions.end() || action->params.size() != update.params.size()) return false;
        size_t size = 0;
        for (const FieldShape& param : action->params) size += bytes_of(param.bits);
        params_.resize(size);
        uint8_t* at = params_.data();
        for (const FieldShape& param : action->params) {
            const auto is_its = [&](const Update::Param& given) { return given.id == param.id; };
            const auto given = std::find_if(update.params.begin(), update.params.end(), is_its);
            if (given == update.params.end() || !widen(given->value, param, at)) return false;
            at += bytes_of(param.bits);
        }
        return true;
    }

    Update::Kind kind_ = Update::Kind::unspecified;
    uint32_t table_ = 0;
    int32_t priority_ = 0;
    uint32_t action_ = 0;
    std::vector<uint8_t> values_;
    std::vector<isw_match> match_;
    std::vector<uint8_t> params_;
};

// --- from the structs of program.h to messages

class Writer {
  public:
    Writer(const TableShape& table, bool with_counters, std::vector<std::string>& responses)
        : table_(table), with_counters_(with_counters && table.is_counted), responses_(responses) {}

    static void visit(void* self, const isw_entry* entry) { static_cast<Writer*>(self)->add(*entry); }

  private:
    void add(const isw_entry& entry) {
        entry_.clear();
        wire::put(entry_, 1, table_.id);
        for (size_t f = 0; f < table_.fields.size(); ++f) add_match(table_.fields[f], entry.match[f]);
        add_action(entry);
        wire::put(entry_, 4, static_cast<uint64_t>(entry.priority));
        if (with_counters_) {
            inner_.clear();
            wire::put(inner_, 1, entry.bytes);
            wire::put(inner_, 2, entry.packets);
            wire::put(entry_, 7, inner_);
        }
        wire::put(entry_, 13, static_cast<uint64_t>(entry.is_const != 0));
        inner_.clear();
        wire::put(inner_, 2, entry_);  // Entity.table_entry
        if (responses_.empty() || responses_.back().size() >= kResponseBytes) responses_.emplace_back();
        wire::put(responses_.back(), 1, inner_);  // ReadResponse.entities
    }

    void add_match(const FieldShape& field, const isw_match& match) {
        if (match.value == nullptr) return;
        const auto shown = [&](const uint8_t* bytes) {
            return wire::canonical({reinterpret_cast<const char*>(bytes), bytes_of(field.bits)});
        };
        inner_.clear();
        wire::put(inner_, 1, shown(match.value));
        if (field.kind == MatchKind::lpm) wire::put(inner_, 2, match.prefix_length);
        if (match.mask_or_high != nullptr) wire::put(inner_, 2, shown(match.mask_or_high));
        outer_.clear();
        wire::put(outer_, 1, field.id);
        wire::put(outer_, static_cast<uint32_t>(field.kind), inner_);
        wire::put(entry_, 2, outer_);
    }

    void add_action(const isw_entry& entry) {
        const auto is_it = [&](const ActionShape& one) { return one.id == entry.action; };
        const auto action = std::find_if(table_.actions.begin(), table_.actions.end(), is_it);
        outer_.clear();
        wire::put(outer_, 1, entry.action);
        const auto* at = reinterpret_cast<const char*>(entry.params);
        for (const FieldShape& param : action->params) {
            inner_.clear();
            wire::put(inner_, 2, param.id);
            wire::put(inner_, 3, wire::canonical({at, bytes_of(param.bits)}));
            at += bytes_of(param.bits);
            wire::put(outer_, 4, inner_);
        }
        inner_.clear();
        wire::put(inner_, 1, outer_);  // TableAction.action
        wire::put(entry_, 3, inner_);
    }

    const TableShape& table_;
    bool with_counters_;
    std::vector<std::string>& responses_;
    std::string entry_;
    std::string outer_;
    std::string inner_;
};

}  // namespace

Updates::Updates(std::string request, size_t most) : request_(std::move(request)) {
    wire::Reader reader(request_);
    wire::Field field;
    Update update;
    while (reader.next(field)) {
        if (field.number != 4) {
            rest_.append(field.whole);
            continue;
        }
        if (field.type != wire::Type::bytes) return;
        has_too_many_ = updates_.size() == most;
        if (has_too_many_) return;
        updates_.push_back({static_cast<size_t>(field.bytes.data() - request_.data()), field.bytes.size(),
                            read_update(field.bytes, update)});
    }
    is_sound_ = reader.is_sound();
}

std::string_view Updates::message(size_t place) const {
    return std::string_view(request_).substr(updates_[place].start, updates_[place].length);
}

const TableShape* Entries::find(uint32_t table) const {
    const auto is_it = [&](const TableShape& one) { return one.id == table; };
    const auto found = std::find_if(tables_.begin(), tables_.end(), is_it);
    return found == tables_.end() ? nullptr : &*found;
}

size_t Entries::write(const Updates& updates, size_t first, bool only_inserts) {
    std::vector<Prepared> prepared(kEntriesAtATime);
    Update update;
    const auto prepare = [&](size_t place, Prepared& to) {
        if (place == updates.size() || !updates.is_plain(place)) return false;
        read_update(updates.message(place), update);
        if (only_inserts && update.kind != Update::Kind::insert) return false;
        const TableShape* table = find(update.table);
        return table != nullptr && to.prepare(update, *table);
    };
    for (size_t place = first;;) {
        size_t count = 0;
        while (count < kEntriesAtATime && prepare(place + count, prepared[count])) ++count;
        size_t done = 0;
        {
            const ProgramLock lock(api_, handle_);
            while (done < count && prepared[done].apply(api_, handle_) == 0) ++done;
        }
        place += done;
        if (done < kEntriesAtATime) return place;
    }
}

size_t Entries::take_back(const Updates& updates, size_t first, size_t end) {
    Prepared prepared;
    Update update;
    size_t gone = 0;
    while (end-- > first) {
        read_update(updates.message(end), update);
        const TableShape* table = find(update.table);
        if (table == nullptr || !prepared.prepare(update, *table)) continue;
        const ProgramLock lock(api_, handle_);
        if (prepared.remove(api_, handle_) == 0) ++gone;
    }
    return gone;
}

int Entries::read(uint32_t table, bool with_counters, std::vector<std::string>& responses) {
    const TableShape* shape = find(table);
    if (shape == nullptr) return -ENOENT;
    Writer writer(*shape, with_counters, responses);
    for (size_t first = 0;; first += kEntriesAtATime) {
        const ProgramLock lock(api_, handle_);
        const int shown =
            api_->table_entries(handle_, table, first, kEntriesAtATime, &Writer::visit, &writer);
        if (shown < static_cast<int>(kEntriesAtATime)) return std::min(shown, 0);
    }
}

}  // namespace inagg::ports
