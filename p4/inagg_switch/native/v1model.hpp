// SPDX-License-Identifier: Apache-2.0
//
// The v1model pipeline as BMv2's simple_switch runs it (targets/simple_switch/simple_switch.cpp and its
// documentation, docs/simple_switch.md):
//   parser, checksum verification, ingress; then multicast if mcast_grp is set, else unicast to egress_spec
//   unless that is the drop port; then, for every copy, egress, and unless that drops it, checksum update and
//   deparser.
#ifndef INAGG_SWITCH_V1MODEL_HPP
#define INAGG_SWITCH_V1MODEL_HPP

#include <cstdint>

#include "abi.hpp"
#include "checksum.hpp"
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
inline constexpr std::uint32_t kInstanceReplication = 5;

// Transitions that a parser which can go round may make; BMv2 would go on for ever.
inline constexpr unsigned kMaxParserSteps = 100000;

// lookahead of a header or struct; the caller has seen that the packet is long enough.
template <class T>
T peek(const PacketIn& packet) {
    T result{};
    result.load(packet.rest());
    if constexpr (requires { result.valid; }) result.valid = true;
    return result;
}

// BMv2's assign_header: one that is not valid leaves the fields of the other as they are.
template <class T>
void assign_header(T& target, const T& source) {
    if (source.valid) {
        target = source;
    } else {
        target.valid = false;
    }
}

struct ApplyResult {
    bool hit;
    std::uint32_t action;  // index in the table's actions
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
    bool exited = false;
    bool checksum_error = false;

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

// Derived is the generated class; it has types Headers, Metadata and Standard, and parse, verify, ingress,
// egress, update and deparse.
template <class Derived>
class V1Pipeline : public V1Program {
  public:
    using V1Program::V1Program;

    void process(std::uint32_t port, const std::uint8_t* frame, std::size_t length, std::uint64_t now_us,
                 isw_emit_fn emit, void* ctx) override {
        if (port >= kDropPort || length > ISW_MAX_FRAME) return;
        auto& self = static_cast<Derived&>(*this);
        auto& packet = self.packet;
        clear_object(packet);
        packet.standard.ingress_port = wrap<9>(port);
        packet.standard.packet_length = current_length = packet_bytes = static_cast<std::uint32_t>(length);
        packet.standard.ingress_global_timestamp = wrap<48>(elapsed(now_us));
        packet_in.start(frame, length);
        ISW_TRACE("packet of " + std::to_string(length) + " bytes in by port " + std::to_string(port));
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
        forward(self, now_us, emit, ctx);
    }

  private:
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
            if (i + 1 == replicas.size()) {
                send(self, packet, replicas[i].port, now_us, emit, ctx);
            } else {
                copy_object(self.copy, packet);
                send(self, self.copy, replicas[i].port, now_us, emit, ctx);
            }
        }
    }

    template <class Packet>
    void send(Derived& self, Packet& packet, std::uint32_t port, std::uint64_t now_us, isw_emit_fn emit,
              void* ctx) {
        packet.standard.egress_port = wrap<9>(port);
        packet.standard.egress_spec = 0;
        packet.standard.packet_length = current_length;
        packet.standard.egress_global_timestamp = wrap<48>(elapsed(now_us));
        exited = false;
        ISW_TRACE("egress to port " + std::to_string(port) + ", rid " +
                  std::to_string(packet.standard.egress_rid));
        self.egress(packet);
        if (packet.standard.egress_spec == kDropPort) {
            ISW_TRACE("dropped: egress_spec is the drop port after egress");
            return;
        }
        self.update(packet);
        packet_out.start();
        self.deparse(packet);
        packet_out.append(packet_in.rest(), packet_in.rest_length());
        ISW_TRACE("packet of " + std::to_string(packet_out.length()) + " bytes out by port " +
                  std::to_string(port));
        emit(ctx, port, packet_out.data(), packet_out.length());
    }
};

}  // namespace isw

#endif  // INAGG_SWITCH_V1MODEL_HPP
