// SPDX-License-Identifier: Apache-2.0
//
// What generated code works on: a program's state, and what it asks to be done with its packet.
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

// Transitions that a parser which can go round may make; BMv2 would go on for ever.
inline constexpr unsigned kMaxParserSteps = 100000;

// Rounds that loops make for one received packet, of those that do not evidently end; BMv2 would go on for
// ever.
inline constexpr std::uint32_t kMaxLoopRounds = 1000000;

// ApplyResult.action where nothing ran.
inline constexpr std::uint32_t kNoAction = 0xFFFFFFFF;

struct ApplyResult {
    bool hit;
    std::uint32_t action;  // index in the table's actions
};

// What a program asks to be done with its packet after ingress or egress; the last call of each kind counts.
// Field lists are numbered from 1, 0 is none.
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

// State and per-packet context that generated code works on.
class V1Program : public ProgramBase {
  public:
    explicit V1Program(std::uint64_t seed) : random(seed) {}

    MulticastGroups groups;
    CloneSessions clones;
    Random random;
    PacketIn packet_in;
    PacketOut packet_out;
    std::uint32_t packet_bytes = 0;    // length of the packet as it came in: what counters count
    std::uint32_t current_length = 0;  // the same, with headers added and removed since
    std::uint64_t clock_us = 0;        // what process() was given
    std::uint64_t now_us = 0;          // the same, since the first packet
    std::uint32_t digest_id = 0;       // 0: none
    std::vector<std::uint8_t> digest_data;
    std::uint32_t loop_rounds = 0;
    bool exited = false;
    bool checksum_error = false;
    bool halted = false;  // an assertion failed; BMv2 ends then
    Requests requests;
    HashInput hash_input;

    // BMv2's process ends; here no packet gets any further.
    void halt(const char* why) {
        halted = true;
        ISW_TRACE(why);
        if (log_to != nullptr) log_to(log_context, why);
    }
    // False when loops have gone round too often: they all end then.
    bool go_round() {
        if (loop_rounds < kMaxLoopRounds) {
            ++loop_rounds;
            return true;
        }
        if (loop_rounds == kMaxLoopRounds) {
            ++loop_rounds;
            const std::string why = "a loop is left after " + std::to_string(kMaxLoopRounds) + " rounds";
            ISW_TRACE(why);
            if (log_to != nullptr) log_to(log_context, why.c_str());
        }
        return false;
    }
    // log_msg: every {} of the text is a number; \{ and \} are brackets.
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

    // setValid of a header that is invalid makes its fields zero; both change the packet_length that egress
    // sees (add_header and remove_header in BMv2's primitives.cpp).
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

    // What a checksum takes of the payload: once the packet is to be truncated, so much of it alone, as in
    // BMv2.
    std::size_t payload_length() const {
        return std::min<std::size_t>(packet_in.rest_length(), requests.length);
    }

    // A count that direct counters make on every hit, whether or not an action calls count(), as in BMv2.
    void count(Entry& entry) {
        ++entry.packets;
        entry.bytes += packet_bytes;
    }

  protected:
    std::uint64_t elapsed(std::uint64_t now_us) {
        if (!started_) {
            started_ = true;
            start_us_ = now_us;
        }
        return now_us >= start_us_ ? now_us - start_us_ : 0;
    }

  private:
    bool started_ = false;
    std::uint64_t start_us_ = 0;
};

}  // namespace isw

#endif  // INAGG_SWITCH_V1PROGRAM_HPP
