// SPDX-License-Identifier: Apache-2.0
//
// The v1model pipeline as BMv2's simple_switch runs it (targets/simple_switch/simple_switch.cpp and
// docs/simple_switch.md there):
//   1. parser, checksum verification, ingress;
//   2. digest, clone and resubmission, if ingress requested them; a resubmitted packet ends here;
//   3. multicast if mcast_grp is set, else unicast to egress_spec, unless that is the drop port;
//   4. for every copy: egress, then, unless egress drops it, checksum update and deparser.
#ifndef INAGG_SWITCH_V1MODEL_HPP
#define INAGG_SWITCH_V1MODEL_HPP

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "v1program.hpp"

namespace isw {

inline constexpr std::uint32_t kDropPort = 511;

// standard_metadata.instance_type
inline constexpr std::uint32_t kInstanceNormal = 0;
inline constexpr std::uint32_t kInstanceIngressClone = 1;
inline constexpr std::uint32_t kInstanceEgressClone = 2;
inline constexpr std::uint32_t kInstanceRecirculated = 4;
inline constexpr std::uint32_t kInstanceReplication = 5;
inline constexpr std::uint32_t kInstanceResubmitted = 6;

// The greatest enq_qdepth and deq_qdepth, of 19 bits.
inline constexpr std::uint32_t kMostWaiting = (1u << 19) - 1;

// The most clones, resubmissions and recirculations that one received packet may cause. BMv2 has no limit: an
// endless chain never ends there.
inline constexpr unsigned kMaxPasses = 1024;

// Derived is the generated class, with the methods parse, verify, ingress, egress, update and deparse. Packet
// is the state of one packet: headers, metadata, standard. Derived's constants say which parts the program
// uses:
//   kRequests       clone, resubmit, recirculate or truncate (struct Requests)
//   kDigests        digest
//   kHalts          assert or assume
//   kReadsQueues    the length of a queue, in egress
//   kEndlessLoops   loops whose end the compiler cannot prove
//   kComparesCopies copies of a multicast are equal if what Outcome::of() takes from them after egress is
//   kNumbers        the numbers of WideFields (field.hpp)
//   kUntouchedBegin, kUntouchedEnd   the bytes of Packet that egress and checksum update never change
template <class Derived, class Packet>
class V1Pipeline : public V1Program {
  public:
    // `thread_0_`: the program of thread 0, whose registers' cells the other threads use; NULL in that
    // program.
    V1Pipeline(Shared& shared_, std::uint64_t seed, Derived* thread_0_)
        : V1Program(shared_, seed), thread_0(thread_0_) {}

    // The same member of thread 0's program; NULL in that program.
    template <class Member>
    const Member* of_thread_0(Member Derived::* member) const {
        return thread_0 == nullptr ? nullptr : &(thread_0->*member);
    }

    void process(std::uint32_t port, const std::uint8_t* frame, std::size_t length, std::uint64_t now_us,
                 const isw_late* late, isw_emit_fn emit, isw_queue_fn queue, void* ctx) override {
        if (port >= kDropPort || length > ISW_MAX_FRAME) return;
        auto& self = static_cast<Derived&>(*this);
#ifdef ISW_TRACED
        const std::lock_guard one_packet(shared.trace_mutex);
        const StripeLock::Leaving at_the_end(stripe);  // others wait for the mutex above with no stripe held
#endif
        if (stopped()) {
            ISW_TRACE("packet of " + std::to_string(length) + " bytes received on port " +
                      std::to_string(port));
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        auto& packet = self.packet;
        clear_object<Derived::kNumbers>(packet);
        packet.standard.ingress_port = wrap<9>(port);
        packet.standard.packet_length = static_cast<std::uint32_t>(length);
        clock_us = now_us;
        this->now_us = elapsed(now_us);
        packet.standard.ingress_global_timestamp = wrap<48>(this->now_us);
        ISW_TRACE("packet of " + std::to_string(length) + " bytes received on port " + std::to_string(port));
        if constexpr (Derived::kRequests) {
            passes_made_ = 0;
            // Clones and further passes begin with the frame.
            if (late != nullptr) late->fill(late->ctx);
            late = nullptr;
        }
        late_ = late;
        if constexpr (Derived::kReadsQueues) queue_ = queue;
        if constexpr (Derived::kEndlessLoops) loop_iterations = 0;
        ingress(self, frame, length, now_us, emit, ctx);
        if constexpr (Derived::kRequests) run_waiting(self, now_us, emit, ctx);
    }

#ifdef ISW_TRACED
    // Reports a cell that two stripes use: their threads may use it at once.
    template <class Cells>
    void check_stripe(const Cells& cells, std::uint32_t index, const char* name) {
        const void* cell = shared.stripes == nullptr ? nullptr : cells.address(index);
        if (cell == nullptr) return;
        const Shared::User now{shared.changes, stripe.current()};
        const auto [found, is_new] = shared.users.try_emplace(cell, now);
        const Shared::User before = std::exchange(found->second, now);
        if (is_new || before.change != now.change || before.stripe == now.stripe) return;
        const std::string why = std::string(name) + "[" + std::to_string(index) + "] is used in stripe " +
                                std::to_string(before.stripe) + " and in stripe " +
                                std::to_string(now.stripe);
        ISW_TRACE(why);
        if (log_to != nullptr) log_to(log_context, why.c_str());
    }
#endif

  private:
    Derived* const thread_0;

    // A packet that waits for another pass through ingress (Pass), and a clone that waits for egress (Clone).
    // They wait until the packet that they come from is finished.
    struct Pass {
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
    std::deque<Pass> passes_;
    std::deque<Clone> clones_;
    unsigned passes_made_ = 0;  // for the current received packet, waiting ones included
    std::size_t copies_ = 1;    // of the packet that is being sent
    bool deparsed_ = false;     // packet_out has one of them, with Derived's outcome
    const isw_late* late_ = nullptr;
    isw_queue_fn queue_ = nullptr;

    // True after a failed assertion: every packet is dropped.
    bool stopped() const {
        if constexpr (Derived::kHalts) return shared.halted.load(std::memory_order_relaxed);
        return false;
    }
    // Counts a clone or another pass. False at the limit: the caller drops it.
    bool count_pass() {
        if (passes_made_ == kMaxPasses) {
            ISW_TRACE("dropped: one packet made " + std::to_string(kMaxPasses) +
                      " clones, resubmissions and recirculations, the limit");
            return false;
        }
        ++passes_made_;
        return true;
    }

    void ingress(Derived& self, const std::uint8_t* frame, std::size_t length, std::uint64_t now_us,
                 isw_emit_fn emit, void* ctx) {
        auto& packet = self.packet;
        current_length = packet_bytes = static_cast<std::uint32_t>(length);
        if constexpr (Derived::kRequests) requests = Requests{};
        packet_in.start(frame, length, std::exchange(late_, nullptr));
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
        if constexpr (Derived::kRequests) {
            if (requests.clone_list != 0) clone_ingress(self, frame, length, now_us, emit, ctx);
            if (requests.resubmit != 0) {
                ISW_TRACE("resubmitted");
                pass_again(self, packet, requests.resubmit, kInstanceResubmitted, frame, length);
                return;
            }
        }
        forward(self, now_us, emit, ctx);
    }

    // Runs the clones and packets that wait, in order, until none is left.
    void run_waiting(Derived& self, std::uint64_t now_us, isw_emit_fn emit, void* ctx) {
        for (;;) {
            if (stopped()) {
                clones_.clear();
                passes_.clear();
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
            } else if (!passes_.empty()) {
                frames_.push_back(std::move(passes_.front().frame));
                copy_object(self.packet, *passes_.front().packet);
                passes_.pop_front();
                ISW_TRACE("another pass: ingress");
                ingress(self, frames_.back().data(), frames_.back().size(), now_us, emit, ctx);
            } else {
                frames_.clear();
                return;
            }
        }
    }
    std::deque<std::vector<std::uint8_t>> frames_;  // of the passes; clones may still point into them

    // A new packet with the metadata of `from` that field list `list` names; all else is zero.
    std::unique_ptr<Packet> with_field_list(Derived& self, const Packet& from, std::uint32_t list,
                                            std::uint32_t instance_type) {
        auto made = std::make_unique<Packet>();
        clear_object(*made);
        self.preserve(list, from, *made);
        made->standard.instance_type = instance_type;
        return made;
    }
    void pass_again(Derived& self, const Packet& packet, std::uint32_t list, std::uint32_t instance_type,
                    const std::uint8_t* frame, std::size_t length) {
        if (length > ISW_MAX_FRAME || !count_pass()) return;
        auto made = with_field_list(self, packet, list, instance_type);
        made->standard.packet_length = static_cast<std::uint32_t>(length);
        passes_.push_back(Pass{std::move(made), std::vector<std::uint8_t>(frame, frame + length)});
    }

    // Clones the packet as it was received: parses it again and drops the metadata that the parser sets.
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
        auto kept = with_field_list(self, self.packet, requests.clone_list, kInstanceIngressClone);
        clone->metadata = kept->metadata;
        clone->standard = kept->standard;
        for (const isw_replica& replica : std::vector<isw_replica>(session->replicas)) {
            if (!count_pass()) break;
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
            if (!count_pass()) break;
            to.push_back(replica);
        }
        if (to.empty()) return;
        auto clone = with_field_list(self, packet, requests.clone_list, kInstanceEgressClone);
        clone->headers = packet.headers;
        clones_.push_back(Clone{std::move(clone), std::move(to),
                                session->max_length == 0 ? Requests::kWhole : session->max_length, packet_in,
                                current_length, packet_bytes});
    }

    // Copies the part of a packet's state that egress and the checksum update may change.
    static void copy_touched(Packet& to, const Packet& from) {
        copy_object<Derived::kUntouchedBegin, Derived::kUntouchedEnd>(to, from);
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
        if (replicas.size() > 1) {
            copy_touched(self.copy, packet);
            if constexpr (!Derived::kRequests) packet_out.start_copies();
        }
        copies_ = replicas.size();
        deparsed_ = false;
        for (std::size_t i = 0; i < replicas.size(); ++i) {
            if (i > 0) copy_touched(packet, self.copy);
            packet.standard.egress_rid = wrap<16>(replicas[i].rid);
            current_length = length;
            if constexpr (Derived::kRequests) requests = Requests{};
            send(self, packet, replicas[i].port, now_us, emit, ctx);
        }
        copies_ = 1;
        packet_out.end_copies();
    }

    void send(Derived& self, Packet& packet, std::uint32_t port, std::uint64_t now_us, isw_emit_fn emit,
              void* ctx) {
        if (stopped()) return;
        const auto priority = static_cast<std::uint32_t>(packet.standard.priority);
        if (priority >= priority_queues) {
            ISW_TRACE("dropped: there is no queue of priority " + std::to_string(priority));
            return;
        }
        if constexpr (Derived::kRequests) requests.clone_list = requests.recirculate = 0;
        packet.standard.egress_port = wrap<9>(port);
        packet.standard.egress_spec = 0;
        packet.standard.packet_length = current_length;
        packet.standard.egress_global_timestamp = wrap<48>(elapsed(now_us));
        packet.standard.enq_timestamp = wrap<32>(elapsed(now_us));
        packet.standard.enq_qdepth = packet.standard.deq_timedelta = packet.standard.deq_qdepth = 0;
        if constexpr (Derived::kReadsQueues) {
            // Egress runs before the packet waits. So both are the length that it meets.
            const std::uint32_t waiting = queue_ == nullptr ? 0 : std::min(queue_(ctx, port), kMostWaiting);
            packet.standard.enq_qdepth = packet.standard.deq_qdepth = waiting;
        }
        exited = false;
        ISW_TRACE("egress to port " + std::to_string(port) + ", rid " +
                  std::to_string(packet.standard.egress_rid));
        self.egress(packet);
        if (stopped()) {
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        if constexpr (Derived::kRequests) {
            if (requests.clone_list != 0) clone_egress(self, packet);
        }
        if (packet.standard.egress_spec == kDropPort) {
            ISW_TRACE("dropped: egress_spec is the drop port after egress");
            return;
        }
        if constexpr (Derived::kComparesCopies) {
            // An outcome is kept only of a copy that is then deparsed.
            if (copies_ > 1) {
                const auto outcome = decltype(self.outcome)::of(packet);
                if (deparsed_ && outcome == self.outcome) {
                    emit(ctx, port, packet_out.data(), packet_out.length(), packet_out.shared(), copies_, 1,
                         priority);
                    return;
                }
                self.outcome = outcome;
                deparsed_ = true;
            }
        }
        exited = false;
        self.update(packet);
        exited = false;
        packet_out.start();
        self.deparse(packet);
        packet_out.finish(packet_in.rest(), packet_in.rest_length());
        if (stopped()) {
            ISW_TRACE("dropped: an assertion failed");
            return;
        }
        if constexpr (Derived::kRequests) {
            if (requests.recirculate != 0) {
                ISW_TRACE("recirculated");
                pass_again(self, packet, requests.recirculate, kInstanceRecirculated, packet_out.data(),
                           packet_out.length());
                return;
            }
            packet_out.truncate(requests.length);
        }
        ISW_TRACE("packet of " + std::to_string(packet_out.length()) + " bytes sent to port " +
                  std::to_string(port));
        emit(ctx, port, packet_out.data(), packet_out.length(), packet_out.shared(), copies_, 0, priority);
    }
};

}  // namespace isw

#endif  // INAGG_SWITCH_V1MODEL_HPP
