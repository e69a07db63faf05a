// SPDX-License-Identifier: Apache-2.0
#include "abi.hpp"

#include <algorithm>

namespace isw {
namespace {

Threads& threads(void* handle) { return *static_cast<Threads*>(handle); }

// Thread 0's program: what is the same in all is read there.
ProgramBase& program(void* handle) { return *threads(handle).programs.front(); }

// Runs `f` on a program. Out of memory is the only exception that `f` throws; it becomes an error code.
template <class F>
int guarded(ProgramBase& program, F f) noexcept {
    try {
        return f(program);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

// Runs `f` on the program of each thread. They are in the same state, so it has the same result in all. Ends
// the process if only some have enough memory: they would differ.
template <class F>
int in_all(void* handle, F f) noexcept {
    Threads& all = threads(handle);
    ++all.shared.changes;
    const int result = guarded(*all.programs.front(), f);
    for (std::size_t thread = 1; thread < all.programs.size(); ++thread) {
        if (guarded(*all.programs[thread], f) != result) std::terminate();
    }
    return result;
}

template <class T>
using In = Directory<T> ProgramBase::*;

// Runs `f` on the object with this id in the program of a thread.
template <class T, class F>
int on(ProgramBase& program, In<T> directory, std::uint32_t id, F f) noexcept {
    T* object = (program.*directory).find(id);
    return object == nullptr ? -ENOENT : guarded(program, [&](ProgramBase&) { return f(*object); });
}

// The same in the program of thread 0, to read.
template <class T, class F>
int with(void* handle, In<T> directory, std::uint32_t id, F f) noexcept {
    return on(program(handle), directory, id, f);
}

// The same in those of all threads, to write.
template <class T, class F>
int with_all(void* handle, In<T> directory, std::uint32_t id, F f) noexcept {
    return in_all(handle, [&](ProgramBase& one) { return on(one, directory, id, f); });
}

// Tells what the packets of all threads have done to an entry of a table of thread 0.
Table::UseOf use_by_all(void* handle, const Table& table) {
    return [handle, &table](const Entry& entry) {
        Use sum;
        for (const auto& one : threads(handle).programs) {
            const Use& use = one->tables.find(table.info().id)->twin(entry).use;
            sum.packets += use.packets;
            sum.bytes += use.bytes;
            sum.last_hit_us = std::max(sum.last_hit_us, use.last_hit_us);
        }
        return sum;
    };
}

void destroy(void* handle) { delete &threads(handle); }
void lock(void* handle) {
    for (const auto& one : threads(handle).programs) one->lock();
}
void unlock(void* handle) {
    for (const auto& one : threads(handle).programs) one->unlock();
}
void lock_thread(void* handle, std::uint32_t thread) { threads(handle).programs[thread]->lock(); }
void unlock_thread(void* handle, std::uint32_t thread) { threads(handle).programs[thread]->unlock(); }

void process(void* handle, std::uint32_t thread, std::uint32_t port, const std::uint8_t* frame,
             std::size_t length, std::uint64_t now_us, const isw_late* late, isw_emit_fn emit,
             isw_queue_fn queue, void* ctx) {
    ProgramBase& one = *threads(handle).programs[thread];
    one.process(port, frame, length, now_us, late, emit, queue, ctx);
    // Who holds the mutexes of all threads may go on with another one, which must not wait for this one.
    if (one.is_held_again()) one.stripe.leave();
}

int table_insert(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                 std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    return with_all(handle, &ProgramBase::tables, table,
                    [&](Table& t) { return t.insert(match, priority, action, params, length); });
}

int table_modify(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                 std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    return with_all(handle, &ProgramBase::tables, table,
                    [&](Table& t) { return t.modify(match, priority, action, params, length); });
}

int table_delete(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority) {
    return with_all(handle, &ProgramBase::tables, table, [&](Table& t) { return t.remove(match, priority); });
}

int table_set_default(void* handle, std::uint32_t table, std::uint32_t action, const std::uint8_t* params,
                      std::size_t length) {
    return with_all(handle, &ProgramBase::tables, table,
                    [&](Table& t) { return t.set_default(action, params, length); });
}

int table_entries(void* handle, std::uint32_t table, std::size_t first, std::size_t count, isw_entry_fn visit,
                  void* ctx) {
    return with(handle, &ProgramBase::tables, table,
                [&](Table& t) { return t.visit_entries(first, count, use_by_all(handle, t), visit, ctx); });
}

int table_entry(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                isw_entry_fn visit, void* ctx) {
    return with(handle, &ProgramBase::tables, table,
                [&](Table& t) { return t.visit_entry(match, priority, use_by_all(handle, t), visit, ctx); });
}

int table_default(void* handle, std::uint32_t table, isw_entry_fn visit, void* ctx) {
    return with(handle, &ProgramBase::tables, table, [&](Table& t) {
        t.visit_default(visit, ctx);
        return 0;
    });
}

int multicast_set(void* handle, std::uint32_t group, const isw_replica* replicas, std::size_t count) {
    return in_all(handle, [&](ProgramBase& one) { return one.multicast_set(group, replicas, count); });
}

int counter_read(void* handle, std::uint32_t counter, std::uint64_t index, std::uint64_t* packets,
                 std::uint64_t* bytes) {
    *packets = *bytes = 0;
    int result = 0;
    for (const auto& one : threads(handle).programs) {
        result = on(*one, &ProgramBase::counters, counter, [&](Counter& c) {
            std::uint64_t more_packets = 0;
            std::uint64_t more_bytes = 0;
            const int error = c.read(index, &more_packets, &more_bytes);
            *packets += more_packets;
            *bytes += more_bytes;
            return error;
        });
    }
    return result;
}

// The counts of all threads add up: thread 0 has the value, the others 0.
int counter_write(void* handle, std::uint32_t counter, std::uint64_t index, std::uint64_t packets,
                  std::uint64_t bytes) {
    const ProgramBase* first = &program(handle);
    return in_all(handle, [&](ProgramBase& one) {
        const bool has = &one == first;
        return on(one, &ProgramBase::counters, counter,
                  [&](Counter& c) { return c.write(index, has ? packets : 0, has ? bytes : 0); });
    });
}

int direct_counter_read(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                        std::uint64_t* packets, std::uint64_t* bytes) {
    return with(handle, &ProgramBase::counted_tables, table, [&](Table& t) {
        int error = 0;
        const Entry* entry = t.find_entry(match, priority, error);
        if (entry == nullptr) return error;
        const Use use = use_by_all(handle, t)(*entry);
        *packets = use.packets;
        *bytes = use.bytes;
        return 0;
    });
}

int direct_counter_write(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                         std::uint64_t packets, std::uint64_t bytes) {
    const ProgramBase* first = &program(handle);
    return in_all(handle, [&](ProgramBase& one) {
        const bool has = &one == first;
        return on(one, &ProgramBase::counted_tables, table, [&](Table& t) {
            int error = 0;
            Entry* entry = t.find_entry(match, priority, error);
            if (entry == nullptr) return error;
            entry->use.packets = has ? packets : 0;
            entry->use.bytes = has ? bytes : 0;
            return 0;
        });
    });
}

int register_read(void* handle, std::uint32_t reg, std::uint64_t index, std::uint8_t* value) {
    return with(handle, &ProgramBase::registers, reg,
                [&](RegisterBase& r) { return r.control_read(index, value); });
}

int register_write(void* handle, std::uint32_t reg, std::uint64_t index, const std::uint8_t* value) {
    return with(handle, &ProgramBase::registers, reg,
                [&](RegisterBase& r) { return r.control_write(index, value); });
}

int trace(void* handle, isw_text_fn write, void* ctx) {
    return in_all(handle, [&](ProgramBase& one) { return one.trace_to(write, ctx); });
}

int meter_read(void* handle, std::uint32_t meter, std::uint64_t index, isw_meter* config) {
    return with(handle, &ProgramBase::meters, meter, [&](Meters& m) { return m.read(index, config); });
}

int meter_write(void* handle, std::uint32_t meter, std::uint64_t index, const isw_meter* config) {
    return with_all(handle, &ProgramBase::meters, meter, [&](Meters& m) { return m.write(index, config); });
}

int direct_meter_read(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                      isw_meter* config) {
    return with(handle, &ProgramBase::metered_tables, table, [&](Table& t) {
        int error = 0;
        const Entry* entry = t.find_entry(match, priority, error);
        if (entry != nullptr) *config = entry->meter.config();
        return error;
    });
}

int direct_meter_write(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                       const isw_meter* config) {
    return with_all(handle, &ProgramBase::metered_tables, table, [&](Table& t) {
        int error = 0;
        Entry* entry = t.find_entry(match, priority, error);
        return entry == nullptr ? error : entry->meter.write(config);
    });
}

int clone_set(void* handle, std::uint32_t session, const isw_replica* replicas, std::size_t count,
              std::uint32_t max_length) {
    return in_all(handle,
                  [&](ProgramBase& one) { return one.clone_set(session, replicas, count, max_length); });
}

int on_digest(void* handle, isw_digest_fn f, void* ctx) {
    return in_all(handle, [&](ProgramBase& one) {
        one.digest_to = f;
        one.digest_context = ctx;
        return 0;
    });
}

int on_log(void* handle, isw_log_fn f, void* ctx) {
    return in_all(handle, [&](ProgramBase& one) {
        one.log_to = f;
        one.log_context = ctx;
        return 0;
    });
}

int member_insert(void* handle, std::uint32_t profile, std::uint32_t member, std::uint32_t action,
                  const std::uint8_t* params, std::size_t length) {
    return with_all(handle, &ProgramBase::profiles, profile,
                    [&](ActionProfile& p) { return p.insert_member(member, action, params, length); });
}

int member_modify(void* handle, std::uint32_t profile, std::uint32_t member, std::uint32_t action,
                  const std::uint8_t* params, std::size_t length) {
    return with_all(handle, &ProgramBase::profiles, profile,
                    [&](ActionProfile& p) { return p.modify_member(member, action, params, length); });
}

int member_delete(void* handle, std::uint32_t profile, std::uint32_t member) {
    return with_all(handle, &ProgramBase::profiles, profile,
                    [&](ActionProfile& p) { return p.delete_member(member); });
}

int group_set(void* handle, std::uint32_t profile, std::uint32_t group, const std::uint32_t* members,
              std::size_t count) {
    return with_all(handle, &ProgramBase::profiles, profile,
                    [&](ActionProfile& p) { return p.set_group(group, members, count); });
}

int group_delete(void* handle, std::uint32_t profile, std::uint32_t group) {
    return with_all(handle, &ProgramBase::profiles, profile,
                    [&](ActionProfile& p) { return p.delete_group(group); });
}

int profile_members(void* handle, std::uint32_t profile, isw_profile_fn visit, void* ctx) {
    return with(handle, &ProgramBase::profiles, profile, [&](ActionProfile& p) {
        p.visit_members(visit, ctx);
        return 0;
    });
}

int profile_groups(void* handle, std::uint32_t profile, isw_profile_fn visit, void* ctx) {
    return with(handle, &ProgramBase::profiles, profile, [&](ActionProfile& p) {
        p.visit_groups(visit, ctx);
        return 0;
    });
}

int table_insert_indirect(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                          std::uint32_t kind, std::uint32_t id) {
    return with_all(handle, &ProgramBase::tables, table,
                    [&](Table& t) { return t.insert_indirect(match, priority, kind, id); });
}

int table_modify_indirect(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                          std::uint32_t kind, std::uint32_t id) {
    return with_all(handle, &ProgramBase::tables, table,
                    [&](Table& t) { return t.modify_indirect(match, priority, kind, id); });
}

int table_set_default_indirect(void* handle, std::uint32_t table, std::uint32_t kind, std::uint32_t id) {
    return with_all(handle, &ProgramBase::tables, table,
                    [&](Table& t) { return t.set_default_indirect(kind, id); });
}

int value_set_write(void* handle, std::uint32_t value_set, const isw_match* rows, std::size_t count) {
    return with_all(handle, &ProgramBase::value_sets, value_set,
                    [&](ValueSet& v) { return v.write(rows, count); });
}

void priority_queues(void* handle, std::uint32_t count) {
    for (const auto& one : threads(handle).programs) one->priority_queues = count;
}

}  // namespace

isw_api api_with(const char* one_thread, const isw_steering* steering, CreateFunction create) {
    return {
        ISW_ABI_VERSION,
        one_thread,
        steering,
        create,
        destroy,
        lock,
        unlock,
        lock_thread,
        unlock_thread,
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
