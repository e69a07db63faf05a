// SPDX-License-Identifier: Apache-2.0
//
// Implements the C ABI of program.h for a generated program.
#ifndef INAGG_SWITCH_ABI_HPP
#define INAGG_SWITCH_ABI_HPP

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <vector>

#include "program.h"
#include "state.hpp"
#include "tables/meter.hpp"
#include "tables/profile.hpp"
#include "tables/table.hpp"
#include "tables/value_set.hpp"

namespace isw {

// Finds the objects of one kind by P4Info id.
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

// What every generated program has: the objects that the control plane reaches, and the mutex of program.h.
class ProgramBase {
  public:
    virtual ~ProgramBase() = default;
    virtual void process(std::uint32_t port, const std::uint8_t* frame, std::size_t length,
                         std::uint64_t now_us, const isw_late* late, isw_emit_fn emit, isw_queue_fn queue,
                         void* ctx) = 0;
    virtual int multicast_set(std::uint32_t group, const isw_replica* replicas, std::size_t count) = 0;
    virtual int trace_to(isw_text_fn, void*) { return -ENOTSUP; }
    virtual int clone_set(std::uint32_t session, const isw_replica* replicas, std::size_t count,
                          std::uint32_t max_length) = 0;

    std::recursive_mutex mutex;
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
    std::uint32_t priority_queues = 1;
};

// The function table of program.h for programs that `create` makes.
isw_api api_with(void* (*create)(std::uint64_t seed, isw_text_fn why, void* ctx));

template <class P>
void* create_program(std::uint64_t seed, isw_text_fn why, void* ctx) {
    const char* reason = "there is not enough memory for its state";
    try {
        return static_cast<ProgramBase*>(new P(seed));
    } catch (const std::bad_alloc&) {
        why(ctx, reason, std::strlen(reason));
    } catch (const std::exception& error) {  // declared entries that the compiler should have refused
        why(ctx, error.what(), std::strlen(error.what()));
    }
    return nullptr;
}

template <class P>
const isw_api* api_of() {
    static const isw_api api = api_with(create_program<P>);
    return &api;
}

}  // namespace isw

#endif  // INAGG_SWITCH_ABI_HPP
