// SPDX-License-Identifier: Apache-2.0
//
// The base of generated programs: state, per-packet context, and the requests of a packet (clone,
// resubmit...).
#ifndef INAGG_SWITCH_V1PROGRAM_HPP
#define INAGG_SWITCH_V1PROGRAM_HPP

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "abi.hpp"
#include "packet.hpp"
#include "state.hpp"
#include "tables/table.hpp"
#include "trace.hpp"
#include "values/checksum.hpp"
#include "values/decimal.hpp"
#include "values/hash.hpp"
#include "values/tuple.hpp"
#include "values/varbit.hpp"

namespace isw {

// The most transitions of a parser that has a cycle. BMv2 has no limit.
inline constexpr unsigned kMaxParserSteps = 100000;

// The most iterations, for one received packet, of loops whose end the compiler cannot prove. BMv2 has no
// limit.
inline constexpr std::uint32_t kMaxLoopIterations = 1000000;

// ApplyResult.action when no action ran.
inline constexpr std::uint32_t kNoAction = 0xFFFFFFFF;

struct ApplyResult {
    bool hit;
    std::uint32_t action;  // index in the table's actions
};

// What a program requests for its packet after ingress or egress. The last call of each kind counts. Field
// lists are numbered from 1; 0 means no request.
struct Requests {
    static constexpr std::uint32_t kWhole = std::numeric_limits<std::uint32_t>::max();

    std::uint32_t clone_list = 0;
    std::uint32_t clone_session = 0;
    std::uint32_t resubmit = 0;
    std::uint32_t recirculate = 0;
    std::uint32_t length = kWhole;

    void clone(std::uint64_t session, std::uint32_t list) {
        clone_session = static_cast<std::uint32_t>(session & CloneSessions::kMax);
        clone_list = list;
    }
    void truncate(std::uint32_t bytes) { length = std::min(length, bytes); }
};

// The base class of a generated program: its state and the context of the current packet.
class V1Program : public ProgramBase {
  public:
    V1Program(Shared& shared_, std::uint64_t seed) : ProgramBase(shared_), random(seed) {}

    MulticastGroups groups;
    CloneSessions clones;
    Random random;
    PacketIn packet_in;
    PacketOut packet_out;
    std::uint32_t packet_bytes = 0;    // length as received; counters count this
    std::uint32_t current_length = 0;  // length with headers added and removed
    std::uint64_t clock_us = 0;        // the time that process() was called with
    std::uint64_t now_us = 0;          // the same, counted from the first packet
    std::uint32_t digest_id = 0;       // 0: none
    std::vector<std::uint8_t> digest_data;
    std::uint32_t loop_iterations = 0;
    bool exited = false;
    bool checksum_error = false;
    Requests requests;
    HashInput hash_input;

    // After a failed assertion. BMv2's process exits; this program drops every packet.
    void halt(const char* why) {
        shared.halted.store(true, std::memory_order_relaxed);
        ISW_TRACE(why);
        if (log_to != nullptr) log_to(log_context, why);
    }
    // Counts an iteration of a loop. False at the limit: every loop ends, for the rest of the packet.
    bool next_iteration() {
        if (loop_iterations < kMaxLoopIterations) {
            ++loop_iterations;
            return true;
        }
        if (loop_iterations == kMaxLoopIterations) {
            ++loop_iterations;
            const std::string why =
                "loops end after " + std::to_string(kMaxLoopIterations) + " iterations for one packet";
            ISW_TRACE(why);
            if (log_to != nullptr) log_to(log_context, why.c_str());
        }
        return false;
    }
    // log_msg(): each {} in `text` is replaced by the next number; \{ and \} are literal brackets.
    void log(const char* text, std::initializer_list<std::string> numbers) {
        std::string message;
        auto next = numbers.begin();
        for (const char* c = text; *c != 0; ++c) {
            if (*c == '\\' && (c[1] == '{' || c[1] == '}')) {
                message += *++c;
            } else if (*c == '{' && next != numbers.end()) {
                message += *next++;
                while (c[1] != 0 && *c != '}') ++c;
            } else {
                message += *c;
            }
        }
        log_to(log_context, message.c_str());
    }

#ifdef ISW_TRACED
    Trace trace;
    int trace_to(isw_text_fn write, void* ctx) override {
        trace.to(write, ctx);
        return 0;
    }
#endif

    int multicast_set(std::uint32_t group, const isw_replica* replicas, std::size_t count) override {
        return groups.set(group, replicas, count);
    }

    int clone_set(std::uint32_t session, const isw_replica* replicas, std::size_t count,
                  std::uint32_t max_length) override {
        return clones.set(session, replicas, count, max_length);
    }

    // setValid() of an invalid header sets its fields to zero. setValid() and setInvalid() change the
    // packet_length that egress sees (add_header and remove_header in BMv2's primitives.cpp).
    template <class T>
    void set_valid(T& header) {
        if (header.valid) return;
        if constexpr (requires { header.clear(); }) {
            header.clear();
        } else {
            header = T{};
        }
        header.valid = true;
        current_length += static_cast<std::uint32_t>(length_of(header));
    }
    template <class T>
    void set_invalid(T& header) {
        if (!header.valid) return;
        header.valid = false;
        current_length -= static_cast<std::uint32_t>(length_of(header));
    }

    // Bytes of payload that a checksum covers. After truncate() only that many, as in BMv2.
    std::size_t payload_length() const {
        return std::min<std::size_t>(packet_in.rest_length(), requests.length);
    }

    // A direct counter counts every hit, whether or not an action calls count(), as in BMv2.
    void count(Entry& entry) {
        ++entry.use.packets;
        entry.use.bytes += packet_bytes;
    }

  protected:
    std::uint64_t elapsed(std::uint64_t now_us) {
        if (start_us_ == Shared::kNever) {
            if (shared.start_us.compare_exchange_strong(start_us_, now_us)) start_us_ = now_us;
        }
        return now_us >= start_us_ ? now_us - start_us_ : 0;
    }

  private:
    std::uint64_t start_us_ = Shared::kNever;  // of all threads' first packet, as this thread knows it
};

}  // namespace isw

#endif  // INAGG_SWITCH_V1PROGRAM_HPP
