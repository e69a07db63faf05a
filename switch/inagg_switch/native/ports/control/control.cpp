// SPDX-License-Identifier: Apache-2.0
#include "ports/control/control.hpp"

#include <algorithm>

namespace inagg::ports {
namespace {

const uint8_t* data_of(const std::string& bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }

const uint8_t* data_of(const std::optional<std::string>& bytes) { return bytes ? data_of(*bytes) : nullptr; }

std::vector<isw_match> key_of(const std::vector<Match>& match) {
    std::vector<isw_match> key;
    key.reserve(match.size());
    for (const Match& field : match) {
        key.push_back({data_of(field.value), data_of(field.mask_or_high), field.prefix_length});
    }
    return key;
}

std::optional<std::string> copy(const uint8_t* bytes, size_t length) {
    if (bytes == nullptr) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(bytes), length);
}

struct Collector {
    const std::vector<size_t>* field_bytes;
    std::vector<Entry>* entries;

    static void visit(void* self, const isw_entry* entry) {
        const auto& collector = *static_cast<Collector*>(self);
        Entry& out = collector.entries->emplace_back();
        for (size_t i = 0; entry->match != nullptr && i < collector.field_bytes->size(); ++i) {
            const isw_match& field = entry->match[i];
            const size_t length = (*collector.field_bytes)[i];
            out.match.push_back(
                {copy(field.value, length), copy(field.mask_or_high, length), field.prefix_length});
        }
        out.priority = entry->priority;
        out.action = entry->action;
        out.params = copy(entry->params, entry->params_length).value_or(std::string());
        out.packets = entry->packets;
        out.bytes = entry->bytes;
        out.is_const = entry->is_const != 0;
        out.indirect_kind = entry->indirect_kind;
        out.indirect_id = entry->indirect_id;
        out.last_hit_us = entry->last_hit_us;
        out.meter = entry->meter;
    }
};

}  // namespace

int Control::table_insert(uint32_t table, const std::vector<Match>& match, int32_t priority, uint32_t action,
                          const std::string& params) {
    const auto key = key_of(match);
    const ProgramLock lock(api_, handle_);
    return api_->table_insert(handle_, table, key.data(), priority, action, data_of(params), params.size());
}

int Control::table_modify(uint32_t table, const std::vector<Match>& match, int32_t priority, uint32_t action,
                          const std::string& params) {
    const auto key = key_of(match);
    const ProgramLock lock(api_, handle_);
    return api_->table_modify(handle_, table, key.data(), priority, action, data_of(params), params.size());
}

int Control::table_delete(uint32_t table, const std::vector<Match>& match, int32_t priority) {
    const auto key = key_of(match);
    const ProgramLock lock(api_, handle_);
    return api_->table_delete(handle_, table, key.data(), priority);
}

int Control::table_set_default(uint32_t table, uint32_t action, const std::string& params) {
    const ProgramLock lock(api_, handle_);
    return api_->table_set_default(handle_, table, action, data_of(params), params.size());
}

int Control::table_entries(uint32_t table, const std::vector<size_t>& field_bytes,
                           std::vector<Entry>& entries) {
    Collector collector{&field_bytes, &entries};
    for (size_t first = 0;; first += kEntriesAtATime) {
        const ProgramLock lock(api_, handle_);
        const int shown =
            api_->table_entries(handle_, table, first, kEntriesAtATime, &Collector::visit, &collector);
        if (shown < static_cast<int>(kEntriesAtATime)) return std::min(shown, 0);
    }
}

int Control::table_count(uint32_t table, uint64_t& count) {
    const ProgramLock lock(api_, handle_);
    // The ABI has no call for the number of entries, but one for the entry at an index: search for the last
    // index.
    const auto shown = [&](uint64_t place) {
        return api_->table_entries(handle_, table, place, 1, [](void*, const isw_entry*) {}, nullptr);
    };
    uint64_t end = 1;
    int result = shown(0);
    for (; result == 1; result = shown(end)) end *= 2;
    if (result < 0) return result;
    uint64_t begin = 0;  // begin <= the number <= end
    while (begin < end) {
        const uint64_t middle = (begin + end) / 2;
        if (shown(middle) == 1) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    count = begin;
    return 0;
}

int Control::table_entry(uint32_t table, const std::vector<Match>& match, int32_t priority,
                         std::vector<Entry>& entries) {
    const auto key = key_of(match);
    const std::vector<size_t> no_fields;
    Collector collector{&no_fields, &entries};
    {
        const ProgramLock lock(api_, handle_);
        const int result =
            api_->table_entry(handle_, table, key.data(), priority, &Collector::visit, &collector);
        if (result != 0) return result;
    }
    entries.front().match = match;
    return 0;
}

int Control::table_default(uint32_t table, std::vector<Entry>& entries) {
    const std::vector<size_t> no_fields;
    Collector collector{&no_fields, &entries};
    const ProgramLock lock(api_, handle_);
    return api_->table_default(handle_, table, &Collector::visit, &collector);
}

int Control::multicast_set(uint32_t group, const std::vector<std::pair<uint32_t, uint32_t>>& replicas) {
    std::vector<isw_replica> list;
    list.reserve(replicas.size());
    for (const auto& [port, rid] : replicas) list.push_back({port, rid});
    const ProgramLock lock(api_, handle_);
    return api_->multicast_set(handle_, group, list.data(), list.size());
}

// Stops at the first refused entry.
template <class Write>
int Control::each_cell(uint64_t first, uint64_t count, Write write) {
    for (uint64_t i = 0; i < count;) {
        const ProgramLock lock(api_, handle_);
        for (const uint64_t end = std::min<uint64_t>(count, i + kCellsAtATime); i < end; ++i) {
            const int result = write(first + i);
            if (result != 0) return result;
        }
    }
    return 0;
}

int Control::counter_write(uint32_t counter, uint64_t first, uint64_t count, Count value) {
    return each_cell(first, count, [&](uint64_t index) {
        return api_->counter_write(handle_, counter, index, value.packets, value.bytes);
    });
}

int Control::direct_counter_read(uint32_t table, const std::vector<Match>& match, int32_t priority,
                                 Count& value) {
    const auto key = key_of(match);
    const ProgramLock lock(api_, handle_);
    return api_->direct_counter_read(handle_, table, key.data(), priority, &value.packets, &value.bytes);
}

int Control::direct_counter_write(uint32_t table, const std::vector<Match>& match, int32_t priority,
                                  Count value) {
    const auto key = key_of(match);
    const ProgramLock lock(api_, handle_);
    return api_->direct_counter_write(handle_, table, key.data(), priority, value.packets, value.bytes);
}

int Control::register_write(uint32_t reg, uint64_t first, uint64_t count, const std::string& value) {
    return each_cell(first, count, [&](uint64_t index) {
        return api_->register_write(handle_, reg, index, data_of(value));
    });
}

int Control::meter_write(uint32_t meter, uint64_t first, uint64_t count, const isw_meter& config) {
    return each_cell(first, count,
                     [&](uint64_t index) { return api_->meter_write(handle_, meter, index, &config); });
}

}  // namespace inagg::ports
