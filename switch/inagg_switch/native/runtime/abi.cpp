// SPDX-License-Identifier: Apache-2.0
#include "abi.hpp"

namespace isw {
namespace {

ProgramBase& program(void* handle) { return *static_cast<ProgramBase*>(handle); }

// Runs `f` on the object with this id. Out of memory is the only exception that `f` throws; it becomes an
// error code.
template <class T, class F>
int with(const Directory<T>& directory, std::uint32_t id, F f) noexcept {
    T* object = directory.find(id);
    if (object == nullptr) return -ENOENT;
    try {
        return f(*object);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

void destroy(void* handle) { delete &program(handle); }
void lock(void* handle) { program(handle).mutex.lock(); }
void unlock(void* handle) { program(handle).mutex.unlock(); }

void process(void* handle, std::uint32_t port, const std::uint8_t* frame, std::size_t length,
             std::uint64_t now_us, const isw_late* late, isw_emit_fn emit, isw_queue_fn queue, void* ctx) {
    program(handle).process(port, frame, length, now_us, late, emit, queue, ctx);
}

int table_insert(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                 std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.insert(match, priority, action, params, length); });
}

int table_modify(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                 std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.modify(match, priority, action, params, length); });
}

int table_delete(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority) {
    return with(program(handle).tables, table, [&](Table& t) { return t.remove(match, priority); });
}

int table_set_default(void* handle, std::uint32_t table, std::uint32_t action, const std::uint8_t* params,
                      std::size_t length) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.set_default(action, params, length); });
}

int table_entries(void* handle, std::uint32_t table, std::size_t first, std::size_t count, isw_entry_fn visit,
                  void* ctx) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.visit_entries(first, count, visit, ctx); });
}

int table_entry(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                isw_entry_fn visit, void* ctx) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.visit_entry(match, priority, visit, ctx); });
}

int table_default(void* handle, std::uint32_t table, isw_entry_fn visit, void* ctx) {
    return with(program(handle).tables, table, [&](Table& t) {
        t.visit_default(visit, ctx);
        return 0;
    });
}

int multicast_set(void* handle, std::uint32_t group, const isw_replica* replicas, std::size_t count) {
    try {
        return program(handle).multicast_set(group, replicas, count);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int counter_read(void* handle, std::uint32_t counter, std::uint64_t index, std::uint64_t* packets,
                 std::uint64_t* bytes) {
    return with(program(handle).counters, counter, [&](Counter& c) { return c.read(index, packets, bytes); });
}

int counter_write(void* handle, std::uint32_t counter, std::uint64_t index, std::uint64_t packets,
                  std::uint64_t bytes) {
    return with(program(handle).counters, counter,
                [&](Counter& c) { return c.write(index, packets, bytes); });
}

int direct_counter_read(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                        std::uint64_t* packets, std::uint64_t* bytes) {
    return with(program(handle).counted_tables, table, [&](Table& t) {
        int error = 0;
        const Entry* entry = t.find_entry(match, priority, error);
        if (entry == nullptr) return error;
        *packets = entry->packets;
        *bytes = entry->bytes;
        return 0;
    });
}

int direct_counter_write(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                         std::uint64_t packets, std::uint64_t bytes) {
    return with(program(handle).counted_tables, table, [&](Table& t) {
        int error = 0;
        Entry* entry = t.find_entry(match, priority, error);
        if (entry == nullptr) return error;
        entry->packets = packets;
        entry->bytes = bytes;
        return 0;
    });
}

int register_read(void* handle, std::uint32_t reg, std::uint64_t index, std::uint8_t* value) {
    return with(program(handle).registers, reg,
                [&](RegisterBase& r) { return r.control_read(index, value); });
}

int register_write(void* handle, std::uint32_t reg, std::uint64_t index, const std::uint8_t* value) {
    return with(program(handle).registers, reg,
                [&](RegisterBase& r) { return r.control_write(index, value); });
}

int trace(void* handle, isw_text_fn write, void* ctx) { return program(handle).trace_to(write, ctx); }

int meter_read(void* handle, std::uint32_t meter, std::uint64_t index, isw_meter* config) {
    return with(program(handle).meters, meter, [&](Meters& m) { return m.read(index, config); });
}

int meter_write(void* handle, std::uint32_t meter, std::uint64_t index, const isw_meter* config) {
    return with(program(handle).meters, meter, [&](Meters& m) { return m.write(index, config); });
}

int direct_meter_read(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                      isw_meter* config) {
    return with(program(handle).metered_tables, table, [&](Table& t) {
        int error = 0;
        const Entry* entry = t.find_entry(match, priority, error);
        if (entry != nullptr) *config = entry->meter.config();
        return error;
    });
}

int direct_meter_write(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                       const isw_meter* config) {
    return with(program(handle).metered_tables, table, [&](Table& t) {
        int error = 0;
        Entry* entry = t.find_entry(match, priority, error);
        return entry == nullptr ? error : entry->meter.write(config);
    });
}

int clone_set(void* handle, std::uint32_t session, const isw_replica* replicas, std::size_t count,
              std::uint32_t max_length) {
    try {
        return program(handle).clone_set(session, replicas, count, max_length);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int on_digest(void* handle, isw_digest_fn f, void* ctx) {
    program(handle).digest_to = f;
    program(handle).digest_context = ctx;
    return 0;
}

int on_log(void* handle, isw_log_fn f, void* ctx) {
    program(handle).log_to = f;
    program(handle).log_context = ctx;
    return 0;
}

int member_insert(void* handle, std::uint32_t profile, std::uint32_t member, std::uint32_t action,
                  const std::uint8_t* params, std::size_t length) {
    return with(program(handle).profiles, profile,
                [&](ActionProfile& p) { return p.insert_member(member, action, params, length); });
}

int member_modify(void* handle, std::uint32_t profile, std::uint32_t member, std::uint32_t action,
                  const std::uint8_t* params, std::size_t length) {
    return with(program(handle).profiles, profile,
                [&](ActionProfile& p) { return p.modify_member(member, action, params, length); });
}

int member_delete(void* handle, std::uint32_t profile, std::uint32_t member) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) { return p.delete_member(member); });
}

int group_set(void* handle, std::uint32_t profile, std::uint32_t group, const std::uint32_t* members,
              std::size_t count) {
    return with(program(handle).profiles, profile,
                [&](ActionProfile& p) { return p.set_group(group, members, count); });
}

int group_delete(void* handle, std::uint32_t profile, std::uint32_t group) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) { return p.delete_group(group); });
}

int profile_members(void* handle, std::uint32_t profile, isw_profile_fn visit, void* ctx) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) {
        p.visit_members(visit, ctx);
        return 0;
    });
}

int profile_groups(void* handle, std::uint32_t profile, isw_profile_fn visit, void* ctx) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) {
        p.visit_groups(visit, ctx);
        return 0;
    });
}

int table_insert_indirect(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                          std::uint32_t kind, std::uint32_t id) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.insert_indirect(match, priority, kind, id); });
}

int table_modify_indirect(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                          std::uint32_t kind, std::uint32_t id) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.modify_indirect(match, priority, kind, id); });
}

int table_set_default_indirect(void* handle, std::uint32_t table, std::uint32_t kind, std::uint32_t id) {
    return with(program(handle).tables, table, [&](Table& t) { return t.set_default_indirect(kind, id); });
}

int value_set_write(void* handle, std::uint32_t value_set, const isw_match* rows, std::size_t count) {
    return with(program(handle).value_sets, value_set, [&](ValueSet& v) { return v.write(rows, count); });
}

void priority_queues(void* handle, std::uint32_t count) { program(handle).priority_queues = count; }

}  // namespace

isw_api api_with(void* (*create)(std::uint64_t seed, isw_text_fn why, void* ctx)) {
    return {
        ISW_ABI_VERSION,
        create,
        destroy,
        lock,
        unlock,
        process,
        table_insert,
        table_modify,
        table_delete,
        table_set_default,
        table_entries,
        table_entry,
        table_default,
        multicast_set,
        counter_read,
        counter_write,
        direct_counter_read,
        direct_counter_write,
        register_read,
        register_write,
        trace,
        meter_read,
        meter_write,
        direct_meter_read,
        direct_meter_write,
        clone_set,
        on_digest,
        on_log,
        member_insert,
        member_modify,
        member_delete,
        group_set,
        group_delete,
        profile_members,
        profile_groups,
        table_insert_indirect,
        table_modify_indirect,
        table_set_default_indirect,
        value_set_write,
        priority_queues,
    };
}

}  // namespace isw
