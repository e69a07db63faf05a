// SPDX-License-Identifier: Apache-2.0
//
// Implements the C ABI of program.h for a generated program.
#ifndef INAGG_SWITCH_ABI_HPP
#define INAGG_SWITCH_ABI_HPP

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program.h"
#include "state.hpp"
#include "stripes.hpp"
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

// What the threads of a program share besides registers.
struct Shared {
    static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

    std::unique_ptr<Stripes> stripes;             // NULL: there is one thread
    std::atomic<std::uint64_t> start_us{kNever};  // of the first packet
    std::atomic<bool> halted{false};              // an assertion failed

    // For traced programs, whose packets go one after the other.
    std::mutex trace_mutex;
    struct User {
        std::uint64_t change;
        std::uint32_t stripe;
    };
    std::unordered_map<const void*, User> users;  // of registers' cells, since change `change`
    std::uint64_t changes = 0;                    // by the control plane; written with all mutexes held
};

// A generated program as one thread runs it: the objects that the control plane reaches, and the thread's
// mutex.
class ProgramBase {
  public:
    explicit ProgramBase(Shared& shared_) : shared(shared_), stripe(shared_.stripes.get()) {}
    virtual ~ProgramBase() = default;
    ProgramBase(const ProgramBase&) = delete;
    ProgramBase& operator=(const ProgramBase&) = delete;
    virtual void process(std::uint32_t port, const std::uint8_t* frame, std::size_t length,
                         std::uint64_t now_us, const isw_late* late, isw_emit_fn emit, isw_queue_fn queue,
                         void* ctx) = 0;
    virtual int multicast_set(std::uint32_t group, const isw_replica* replicas, std::size_t count) = 0;
    virtual int trace_to(isw_text_fn, void*) { return -ENOTSUP; }
    virtual int clone_set(std::uint32_t session, const isw_replica* replicas, std::size_t count,
                          std::uint32_t max_length) = 0;

    void lock() {
        mutex_.lock();
        ++depth_;
    }
    // Whether the mutex is held more than once.
    bool is_held_again() const { return depth_ > 1; }
    void unlock() {
        if (--depth_ == 0) stripe.leave();
        mutex_.unlock();
    }

    Shared& shared;
    StripeLock stripe;
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

  private:
    std::recursive_mutex mutex_;
    unsigned depth_ = 0;  // how often the mutex is held; guarded by it
};

// What a handle of program.h refers to.
struct Threads {
    Shared shared;
    std::vector<std::unique_ptr<ProgramBase>> programs;  // by thread; the first one has the registers' cells
};

using CreateFunction = void* (*)(std::uint64_t seed, std::uint32_t threads, isw_text_fn why, void* ctx);

// The function table of program.h for programs that `create` makes.
isw_api api_with(const char* one_thread, const isw_steering* steering, CreateFunction create);

template <class P>
void* create_program(std::uint64_t seed, std::uint32_t threads, isw_text_fn why, void* ctx) {
    const char* reason = "there is not enough memory for its state";
    try {
        if constexpr (P::kOneThread != nullptr) {
            if (threads > 1) throw std::logic_error(P::kOneThread);
        }
        auto made = std::make_unique<Threads>();
        if (threads > 1) made->shared.stripes = std::make_unique<Stripes>();
        P* thread_0 = nullptr;
        for (std::uint32_t thread = 0; thread < threads; ++thread) {
            // Seeds that differ by a constant: SplitMix64 makes unrelated streams of them.
            auto program = std::make_unique<P>(made->shared, seed + thread, thread_0);
            if (thread == 0) thread_0 = program.get();
            made->programs.push_back(std::move(program));
        }
        return made.release();
    } catch (const std::bad_alloc&) {
        why(ctx, reason, std::strlen(reason));
    } catch (const std::exception& error) {  // or declared entries that the compiler should have refused
        why(ctx, error.what(), std::strlen(error.what()));
    }
    return nullptr;
}

template <class P>
const isw_api* api_of() {
    static const isw_api api = api_with(P::kOneThread, P::steering(), create_program<P>);
    return &api;
}

}  // namespace isw

#endif  // INAGG_SWITCH_ABI_HPP
