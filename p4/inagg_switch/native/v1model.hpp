// SPDX-License-Identifier: Apache-2.0
//
// The v1model pipeline as BMv2's simple_switch runs it (targets/simple_switch/simple_switch.cpp and its
// documentation, docs/simple_switch.md):
//   parser, checksum verification, ingress; then clone, digest and resubmission if they were asked for; else
//   multicast if mcast_grp is set, else unicast to egress_spec unless that is the drop port; then, for every
//   copy, egress, and unless that drops it, checksum update and deparser.
#ifndef INAGG_SWITCH_V1MODEL_HPP
#define INAGG_SWITCH_V1MODEL_HPP

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>

#include "abi.hpp"
#include "checksum.hpp"
#include "decimal.hpp"
#include "hash.hpp"
#include "packet.hpp"
#include "state.hpp"
#include "table.hpp"
#include "trace.hpp"
#include "tuple.hpp"
#include "varbit.hpp"

namespace isw {

inline constexpr std::uint32_t kDropPort = 511;

// standard_metadata.instance_type
inline constexpr std::uint32_t kInstanceNormal = 0;
inline constexpr std::uint32_t kInstanceIngressClone = 1;
inline constexpr std::uint32_t kInstanceEgressClone = 2;
inline constexpr std::uint32_t kInstanceRecirculated = 4;
inline constexpr std::uint32_t kInstanceReplication = 5;
inline constexpr std::uint32_t kInstanceResubmitted = 6;

// Clones, resubmissions and recirculations that one received packet may lead to; BMv2 would go on for ever.
inline constexpr unsigned kMaxRounds = 1024;

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

// Derived is the generated class, Packet its state of a packet: headers, metadata, standard. Derived has
// parse, verify, ingress, egress, update and deparse.
template <class Derived, class Packet>
class V1Pipeline : public V1Program {
  public:
    using V1Program::V1Program;

    void process(std::uint32_t port, const std::uint8_t* frame, std::size_t length, std::uint64_t now_us,
                 isw_emit_fn emit, void* ctx) override {
        if (port >= kDropPort || length > ISW_MAX_FRAME) return;
        auto& self = static_cast<Derived&>(*this);
        if (stopped()) {
            ISW_TRACE("packet of " + std::to_string(length) + " bytes in by port " + std::to_string(port));
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        auto& packet = self.packet;
        clear_object(packet);
        packet.standard.ingress_port = wrap<9>(port);
        packet.standard.packet_length = static_cast<std::uint32_t>(length);
        clock_us = now_us;
        this->now_us = elapsed(now_us);
        packet.standard.ingress_global_timestamp = wrap<48>(this->now_us);
        ISW_TRACE("packet of " + std::to_string(length) + " bytes in by port " + std::to_string(port));
        if constexpr (Derived::kReturns) rounds_made_ = 0;
        if constexpr (Derived::kEndlessLoops) loop_rounds = 0;
        ingress(self, frame, length, now_us, emit, ctx);
        if constexpr (Derived::kReturns) rounds(self, now_us, emit, ctx);
    }

  private:
    // A packet on its way into ingress again, and a clone on its way into egress. They wait until the packet
    // that they come from is through.
    struct Round {
        std::unique_ptr<Packet> packet;
        std::vector<std::uint8_t> frame;
    };
    struct Clone {
        std::unique_ptr<Packet> packet;
        std::vector<isw_replica> to;
        std::uint32_t max_length;
        PacketIn in;
        std::uint32_t length, bytes;
    };
    std::deque<Round> rounds_;
    std::deque<Clone> clones_;
    unsigned rounds_made_ = 0;  // of the packet received last, those that wait among them

    // After an assertion that failed: nothing is done any more.
    bool stopped() const {
        if constexpr (Derived::kHalts) return halted;
        return false;
    }
    // Counts a clone or a further round; false if there may be no more.
    bool one_more() {
        if (rounds_made_ == kMaxRounds) {
            ISW_TRACE("dropped: " + std::to_string(kMaxRounds) +
                      " clones and further rounds came of one packet, the most there may be");
            return false;
        }
        ++rounds_made_;
        return true;
    }

    void ingress(Derived& self, const std::uint8_t* frame, std::size_t length, std::uint64_t now_us,
                 isw_emit_fn emit, void* ctx) {
        auto& packet = self.packet;
        current_length = packet_bytes = static_cast<std::uint32_t>(length);
        if constexpr (Derived::kReturns) requests = Requests{};
        packet_in.start(frame, length);
        self.parse(packet);
        ISW_TRACE(std::string("parser: error.") + Derived::error_name(packet_in.error) + ", " +
                  std::to_string(packet_in.rest_length()) + " bytes not parsed");
        packet.standard.parser_error = packet_in.error;
        checksum_error = false;
        self.verify(packet);
        if (checksum_error) {
            ISW_TRACE("a checksum is wrong");
        }
        packet.standard.checksum_error = checksum_error;
        exited = false;
        self.ingress(packet);
        if (stopped()) {
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        if constexpr (Derived::kDigests) {
            if (digest_id != 0 && digest_to != nullptr) {
                digest_to(digest_context, digest_id, digest_data.data(), digest_data.size());
            }
            digest_id = 0;
        }
        if constexpr (Derived::kReturns) {
            if (requests.clone_list != 0) clone_ingress(self, frame, length, now_us, emit, ctx);
            if (requests.resubmit != 0) {
                ISW_TRACE("resubmitted");
                again(self, packet, requests.resubmit, kInstanceResubmitted, frame, length);
                return;
            }
        }
        forward(self, now_us, emit, ctx);
    }

    // The packets and clones that wait, in order, until none is left.
    void rounds(Derived& self, std::uint64_t now_us, isw_emit_fn emit, void* ctx) {
        for (;;) {
            if (stopped()) {
                clones_.clear();
                rounds_.clear();
            }
            if (!clones_.empty()) {
                const Clone clone = std::move(clones_.front());
                clones_.pop_front();
                packet_in = clone.in;
                packet_bytes = clone.bytes;
                for (const isw_replica& replica : clone.to) {
                    requests = Requests{};
                    requests.truncate(clone.max_length);
                    copy_object(self.copy, *clone.packet);
                    current_length = clone.length;
                    self.copy.standard.egress_rid = wrap<16>(replica.rid);
                    send(self, self.copy, replica.port, now_us, emit, ctx);
                }
            } else if (!rounds_.empty()) {
                frames_.push_back(std::move(rounds_.front().frame));
                copy_object(self.packet, *rounds_.front().packet);
                rounds_.pop_front();
                ISW_TRACE("ingress again");
                ingress(self, frames_.back().data(), frames_.back().size(), now_us, emit, ctx);
            } else {
                frames_.clear();
                return;
            }
        }
    }
    std::deque<std::vector<std::uint8_t>> frames_;  // of the rounds; clones may still refer to them

    // A packet with nothing but a field list of another's metadata.
    std::unique_ptr<Packet> bare(Derived& self, const Packet& from, std::uint32_t list,
                                 std::uint32_t instance_type) {
        auto made = std::make_unique<Packet>();
        clear_object(*made);
        self.preserve(list, from, *made);
        made->standard.instance_type = instance_type;
        return made;
    }
    void again(Derived& self, const Packet& packet, std::uint32_t list, std::uint32_t instance_type,
               const std::uint8_t* frame, std::size_t length) {
        if (length > ISW_MAX_FRAME || !one_more()) return;
        auto made = bare(self, packet, list, instance_type);
        made->standard.packet_length = static_cast<std::uint32_t>(length);
        rounds_.push_back(Round{std::move(made), std::vector<std::uint8_t>(frame, frame + length)});
    }

    // The clone is the packet as it came in, parsed again, without the metadata that parsing gives it.
    void clone_ingress(Derived& self, const std::uint8_t* frame, std::size_t length, std::uint64_t now_us,
                       isw_emit_fn emit, void* ctx) {
        const auto* session = clones.get(requests.clone_session);
        if (session == nullptr) {
            ISW_TRACE("no clone: session " + std::to_string(requests.clone_session) + " is not set");
            return;
        }
        const PacketIn in = packet_in;
        const Requests before = requests;
        const std::uint32_t length_before = current_length;
        auto clone = std::make_unique<Packet>();
        clear_object(*clone);
        clone->standard.ingress_port = self.packet.standard.ingress_port;
        packet_in.start(frame, length);
        self.parse(*clone);
        auto kept = bare(self, self.packet, requests.clone_list, kInstanceIngressClone);
        clone->metadata = kept->metadata;
        clone->standard = kept->standard;
        for (const isw_replica& replica : std::vector<isw_replica>(session->replicas)) {
            if (!one_more()) break;
            requests = Requests{};
            requests.truncate(session->max_length == 0 ? Requests::kWhole : session->max_length);
            copy_object(self.copy, *clone);
            current_length = static_cast<std::uint32_t>(length);
            self.copy.standard.egress_rid = wrap<16>(replica.rid);
            send(self, self.copy, replica.port, now_us, emit, ctx);
        }
        packet_in = in;
        requests = before;
        current_length = length_before;
    }
    void clone_egress(Derived& self, const Packet& packet) {
        const auto* session = clones.get(requests.clone_session);
        if (session == nullptr) {
            ISW_TRACE("no clone: session " + std::to_string(requests.clone_session) + " is not set");
            return;
        }
        std::vector<isw_replica> to;
        for (const isw_replica& replica : session->replicas) {
            if (!one_more()) break;
            to.push_back(replica);
        }
        if (to.empty()) return;
        auto clone = bare(self, packet, requests.clone_list, kInstanceEgressClone);
        clone->headers = packet.headers;
        clones_.push_back(Clone{std::move(clone), std::move(to),
                                session->max_length == 0 ? Requests::kWhole : session->max_length, packet_in,
                                current_length, packet_bytes});
    }

    void forward(Derived& self, std::uint64_t now_us, isw_emit_fn emit, void* ctx) {
        auto& packet = self.packet;
        if (packet.standard.mcast_grp == 0) {
            if (packet.standard.egress_spec == kDropPort) {
                ISW_TRACE("dropped: egress_spec is the drop port after ingress");
                return;
            }
            packet.standard.instance_type = kInstanceNormal;
            send(self, packet, packet.standard.egress_spec, now_us, emit, ctx);
            return;
        }
        packet.standard.instance_type = kInstanceReplication;
        const auto& replicas = groups.get(packet.standard.mcast_grp);
        const std::uint32_t length = current_length;
        if (replicas.empty()) {
            ISW_TRACE("dropped: multicast group " + std::to_string(packet.standard.mcast_grp) + " is empty");
        }
        for (std::size_t i = 0; i < replicas.size(); ++i) {
            packet.standard.egress_rid = wrap<16>(replicas[i].rid);
            current_length = length;
            if constexpr (Derived::kReturns) requests = Requests{};
            if (i + 1 == replicas.size()) {
                send(self, packet, replicas[i].port, now_us, emit, ctx);
            } else {
                copy_object(self.copy, packet);
                send(self, self.copy, replicas[i].port, now_us, emit, ctx);
            }
        }
    }

    void send(Derived& self, Packet& packet, std::uint32_t port, std::uint64_t now_us, isw_emit_fn emit,
              void* ctx) {
        if (stopped()) return;
        if (packet.standard.priority != 0) {
            // simple_switch has one queue a port unless it is started with more.
            ISW_TRACE("dropped: there is no queue of priority " + std::to_string(packet.standard.priority));
            return;
        }
        if constexpr (Derived::kReturns) requests.clone_list = requests.recirculate = 0;
        packet.standard.egress_port = wrap<9>(port);
        packet.standard.egress_spec = 0;
        packet.standard.packet_length = current_length;
        packet.standard.egress_global_timestamp = wrap<48>(elapsed(now_us));
        packet.standard.enq_timestamp = wrap<32>(elapsed(now_us));
        packet.standard.enq_qdepth = packet.standard.deq_timedelta = packet.standard.deq_qdepth = 0;
        exited = false;
        ISW_TRACE("egress to port " + std::to_string(port) + ", rid " +
                  std::to_string(packet.standard.egress_rid));
        self.egress(packet);
        if (stopped()) {
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        if constexpr (Derived::kReturns) {
            if (requests.clone_list != 0) clone_egress(self, packet);
        }
        if (packet.standard.egress_spec == kDropPort) {
            ISW_TRACE("dropped: egress_spec is the drop port after egress");
            return;
        }
        self.update(packet);
        packet_out.start();
        self.deparse(packet);
        packet_out.append(packet_in.rest(), packet_in.rest_length());
        if (stopped()) {
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        if constexpr (Derived::kReturns) {
            if (requests.recirculate != 0) {
                ISW_TRACE("recirculated");
                again(self, packet, requests.recirculate, kInstanceRecirculated, packet_out.data(),
                      packet_out.length());
                return;
            }
            packet_out.truncate(requests.length);
        }
        ISW_TRACE("packet of " + std::to_string(packet_out.length()) + " bytes out by port " +
                  std::to_string(port));
        emit(ctx, port, packet_out.data(), packet_out.length());
    }
};

}  // namespace isw

#endif  // INAGG_SWITCH_V1MODEL_HPP
