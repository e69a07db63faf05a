// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of program.h over a generated program.
#ifndef INAGG_SWITCH_ABI_HPP
#define INAGG_SWITCH_ABI_HPP

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <vector>

#include "meter.hpp"
#include "profile.hpp"
#include "program.h"
#include "state.hpp"
#include "table.hpp"
#include "value_set.hpp"

namespace isw {

// Objects of one kind by P4Info id.
template <class T>
class Directory {
  public:
    void add(std::uint32_t id, T& object) { objects_.push_back({id, &object}); }
    T* find(std::uint32_t id) const {
        for (const auto& named : objects_) {
            if (named.id == id) return named.object;
        }
        return nullptr;
    }

  private:
    struct Named {
        std::uint32_t id;
        T* object;
    };
    std::vector<Named> objects_;
};

class ProgramBase {
  public:
    virtual ~ProgramBase() = default;
    virtual void process(std::uint32_t port, const std::uint8_t* frame, std::size_t length,
                         std::uint64_t now_us, isw_emit_fn emit, void* ctx) = 0;
    virtual int multicast_set(std::uint32_t group, const isw_replica* replicas, std::size_t count) = 0;
    virtual int trace_to(isw_text_fn, void*) { return -ENOTSUP; }
    virtual int clone_set(std::uint32_t session, const isw_replica* replicas, std::size_t count,
                          std::uint32_t max_length) = 0;

    std::mutex mutex;
    Directory<Table> tables;
    Directory<Table> counted_tables;  // those with a direct counter
    Directory<Counter> counters;
    Directory<RegisterBase> registers;
    Directory<Meters> meters;
    Directory<Table> metered_tables;  // those with a direct meter
    Directory<ActionProfile> profiles;
    Directory<ValueSet> value_sets;
    isw_digest_fn digest_to = nullptr;
    void* digest_context = nullptr;
    isw_log_fn log_to = nullptr;
    void* log_context = nullptr;
};

namespace abi {

inline ProgramBase& program(void* handle) { return *static_cast<ProgramBase*>(handle); }

// Runs `f` on the object with that id. No exception leaves: the only one thrown here is for lack of memory.
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

inline void destroy(void* handle) { delete &program(handle); }
inline void lock(void* handle) { program(handle).mutex.lock(); }
inline void unlock(void* handle) { program(handle).mutex.unlock(); }

inline void process(void* handle, std::uint32_t port, const std::uint8_t* frame, std::size_t length,
                    std::uint64_t now_us, isw_emit_fn emit, void* ctx) {
    program(handle).process(port, frame, length, now_us, emit, ctx);
}

inline int table_insert(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                        std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.insert(match, priority, action, params, length); });
}

inline int table_modify(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                        std::uint32_t action, const std::uint8_t* params, std::size_t length) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.modify(match, priority, action, params, length); });
}

inline int table_delete(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority) {
    return with(program(handle).tables, table, [&](Table& t) { return t.remove(match, priority); });
}

inline int table_set_default(void* handle, std::uint32_t table, std::uint32_t action,
                             const std::uint8_t* params, std::size_t length) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.set_default(action, params, length); });
}

inline int table_entries(void* handle, std::uint32_t table, isw_entry_fn visit, void* ctx) {
    return with(program(handle).tables, table, [&](Table& t) {
        t.visit_entries(visit, ctx);
        return 0;
    });
}

inline int table_default(void* handle, std::uint32_t table, isw_entry_fn visit, void* ctx) {
    return with(program(handle).tables, table, [&](Table& t) {
        t.visit_default(visit, ctx);
        return 0;
    });
}

inline int multicast_set(void* handle, std::uint32_t group, const isw_replica* replicas, std::size_t count) {
    try {
        return program(handle).multicast_set(group, replicas, count);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

inline int counter_read(void* handle, std::uint32_t counter, std::uint64_t index, std::uint64_t* packets,
                        std::uint64_t* bytes) {
    return with(program(handle).counters, counter, [&](Counter& c) { return c.read(index, packets, bytes); });
}

inline int counter_write(void* handle, std::uint32_t counter, std::uint64_t index, std::uint64_t packets,
                         std::uint64_t bytes) {
    return with(program(handle).counters, counter,
                [&](Counter& c) { return c.write(index, packets, bytes); });
}

inline int direct_counter_read(void* handle, std::uint32_t table, const isw_match* match,
                               std::int32_t priority, std::uint64_t* packets, std::uint64_t* bytes) {
    return with(program(handle).counted_tables, table, [&](Table& t) {
        int error = 0;
        const Entry* entry = t.find_entry(match, priority, error);
        if (entry == nullptr) return error;
        *packets = entry->packets;
        *bytes = entry->bytes;
        return 0;
    });
}

inline int direct_counter_write(void* handle, std::uint32_t table, const isw_match* match,
                                std::int32_t priority, std::uint64_t packets, std::uint64_t bytes) {
    return with(program(handle).counted_tables, table, [&](Table& t) {
        int error = 0;
        Entry* entry = t.find_entry(match, priority, error);
        if (entry == nullptr) return error;
        entry->packets = packets;
        entry->bytes = bytes;
        return 0;
    });
}

inline int register_read(void* handle, std::uint32_t reg, std::uint64_t index, std::uint8_t* value) {
    return with(program(handle).registers, reg,
                [&](RegisterBase& r) { return r.control_read(index, value); });
}

inline int register_write(void* handle, std::uint32_t reg, std::uint64_t index, const std::uint8_t* value) {
    return with(program(handle).registers, reg,
                [&](RegisterBase& r) { return r.control_write(index, value); });
}

inline int trace(void* handle, isw_text_fn write, void* ctx) { return program(handle).trace_to(write, ctx); }

inline int meter_read(void* handle, std::uint32_t meter, std::uint64_t index, isw_meter* config) {
    return with(program(handle).meters, meter, [&](Meters& m) { return m.read(index, config); });
}

inline int meter_write(void* handle, std::uint32_t meter, std::uint64_t index, const isw_meter* config) {
    return with(program(handle).meters, meter, [&](Meters& m) { return m.write(index, config); });
}

inline int direct_meter_read(void* handle, std::uint32_t table, const isw_match* match, std::int32_t priority,
                             isw_meter* config) {
    return with(program(handle).metered_tables, table, [&](Table& t) {
        int error = 0;
        const Entry* entry = t.find_entry(match, priority, error);
        if (entry != nullptr) *config = entry->meter.config();
        return error;
    });
}

inline int direct_meter_write(void* handle, std::uint32_t table, const isw_match* match,
                              std::int32_t priority, const isw_meter* config) {
    return with(program(handle).metered_tables, table, [&](Table& t) {
        int error = 0;
        Entry* entry = t.find_entry(match, priority, error);
        return entry == nullptr ? error : entry->meter.write(config);
    });
}

inline int clone_set(void* handle, std::uint32_t session, const isw_replica* replicas, std::size_t count,
                     std::uint32_t max_length) {
    try {
        return program(handle).clone_set(session, replicas, count, max_length);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

inline int on_digest(void* handle, isw_digest_fn f, void* ctx) {
    program(handle).digest_to = f;
    program(handle).digest_context = ctx;
    return 0;
}

inline int on_log(void* handle, isw_log_fn f, void* ctx) {
    program(handle).log_to = f;
    program(handle).log_context = ctx;
    return 0;
}

inline int member_insert(void* handle, std::uint32_t profile, std::uint32_t member, std::uint32_t action,
                         const std::uint8_t* params, std::size_t length) {
    return with(program(handle).profiles, profile,
                [&](ActionProfile& p) { return p.insert_member(member, action, params, length); });
}

inline int member_modify(void* handle, std::uint32_t profile, std::uint32_t member, std::uint32_t action,
                         const std::uint8_t* params, std::size_t length) {
    return with(program(handle).profiles, profile,
                [&](ActionProfile& p) { return p.modify_member(member, action, params, length); });
}

inline int member_delete(void* handle, std::uint32_t profile, std::uint32_t member) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) { return p.delete_member(member); });
}

inline int group_set(void* handle, std::uint32_t profile, std::uint32_t group, const std::uint32_t* members,
                     std::size_t count) {
    return with(program(handle).profiles, profile,
                [&](ActionProfile& p) { return p.set_group(group, members, count); });
}

inline int group_delete(void* handle, std::uint32_t profile, std::uint32_t group) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) { return p.delete_group(group); });
}

inline int profile_members(void* handle, std::uint32_t profile, isw_profile_fn visit, void* ctx) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) {
        p.visit_members(visit, ctx);
        return 0;
    });
}

inline int profile_groups(void* handle, std::uint32_t profile, isw_profile_fn visit, void* ctx) {
    return with(program(handle).profiles, profile, [&](ActionProfile& p) {
        p.visit_groups(visit, ctx);
        return 0;
    });
}

inline int table_insert_indirect(void* handle, std::uint32_t table, const isw_match* match,
                                 std::int32_t priority, std::uint32_t kind, std::uint32_t id) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.insert_indirect(match, priority, kind, id); });
}

inline int table_modify_indirect(void* handle, std::uint32_t table, const isw_match* match,
                                 std::int32_t priority, std::uint32_t kind, std::uint32_t id) {
    return with(program(handle).tables, table,
                [&](Table& t) { return t.modify_indirect(match, priority, kind, id); });
}

inline int table_set_default_indirect(void* handle, std::uint32_t table, std::uint32_t kind,
                                      std::uint32_t id) {
    return with(program(handle).tables, table, [&](Table& t) { return t.set_default_indirect(kind, id); });
}

inline int value_set_write(void* handle, std::uint32_t value_set, const isw_match* rows, std::size_t count) {
    return with(program(handle).value_sets, value_set, [&](ValueSet& v) { return v.write(rows, count); });
}

template <class P>
void* create(std::uint64_t seed) {
    try {
        return static_cast<ProgramBase*>(new P(seed));
    } catch (const std::bad_alloc&) {
        return nullptr;
    } catch (const std::exception& error) {  // what the compiler should have refused
        std::fprintf(stderr, "inagg_switch: %s\n", error.what());
        return nullptr;
    }
}

}  // namespace abi

template <class P>
const isw_api* api_of() {
    static const isw_api api = {
        ISW_ABI_VERSION,
        abi::create<P>,
        abi::destroy,
        abi::lock,
        abi::unlock,
        abi::process,
        abi::table_insert,
        abi::table_modify,
        abi::table_delete,
        abi::table_set_default,
        abi::table_entries,
        abi::table_default,
        abi::multicast_set,
        abi::counter_read,
        abi::counter_write,
        abi::direct_counter_read,
        abi::direct_counter_write,
        abi::register_read,
        abi::register_write,
        abi::trace,
        abi::meter_read,
        abi::meter_write,
        abi::direct_meter_read,
        abi::direct_meter_write,
        abi::clone_set,
        abi::on_digest,
        abi::on_log,
        abi::member_insert,
        abi::member_modify,
        abi::member_delete,
        abi::group_set,
        abi::group_delete,
        abi::profile_members,
        abi::profile_groups,
        abi::table_insert_indirect,
        abi::table_modify_indirect,
        abi::table_set_default_indirect,
        abi::value_set_write,
    };
    return &api;
}

}  // namespace isw

#endif  // INAGG_SWITCH_ABI_HPP
