// SPDX-License-Identifier: Apache-2.0
//
// What results and answers, and their absence, tell about the network (protocol.md, 6.1 and 6.2): which
// chunks to ask the switch about, how long to wait, and how many chunks may be in flight. It holds the slots
// whose packets have left. Like the engine it reads no clock: times are seconds, of any one clock.
//
// A chunk is doubtful when a packet sent later has been answered (fresh_deadline and repeated_deadline, after
// RFC 8985), when nothing has come for the RTO (probe_deadline), when its result was not usable (refused), or
// when the switch has held it for some RTTs (held_deadline). Then the worker asks. It sends the contribution
// again only if the switch does not have it: with many workers most chunks are late because of another
// worker's packet.
#ifndef INAGG_RECOVERY_HPP
#define INAGG_RECOVERY_HPP

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cache_line.hpp"
#include "engine/config.hpp"
#include "engine/rtt.hpp"
#include "engine/slot.hpp"
#include "engine/stats.hpp"
#include "engine/window.hpp"

namespace inagg {

class Recovery {
  public:
    // `config` outlives this. Chunks of different lines say nothing of one another.
    explicit Recovery(const EngineConfig& config);

    // Silence counts from here: the first chunk is about to become ready.
    void begin(double now);
    // The packets of the first `count` ready slots, at least one, have left; the slots leave the list.
    // `timed`: all ranks are at the slots' collective, so the delay of the results measures the network.
    void sent(SlotList& ready, unsigned count, bool timed, double now);
    // The number of a query that is about to leave. They count 1, 2, 3...
    std::uint32_t number_query() { return ++last_query_; }
    // The packet of an urgent slot has left; `query`: its number, if it is one.
    void sent_urgent(Slot& slot, std::uint32_t query, double now);
    // Any result of this job has come, a duplicate too.
    void heard(double now);
    // The results of a run of `count` slots are in: either one slot, or slots in flight of which each
    // follows() the one before. The slots are out of Recovery's lists, and their chunks finished by the
    // caller.
    // `congested`: how many of them met a queue.
    void finished(const Slot& first, const Slot& last, unsigned count, unsigned congested, double now);
    // The switch has answered a query about a slot's chunk: `again`, the contribution is to be sent again, or
    // it waits for others. False: the answer is old.
    bool answered(Slot& slot, std::uint32_t query_number, bool again, double now);
    // Something has come the way that a chunk goes.
    void heard_of(std::uint32_t chunk) {
        lines_[config_.line_of(chunk)].unanswered = {.known = true};
        silent_slot_ = nullptr;
    }
    // A slot's result was not usable: the switch is to be asked for it at once.
    void refused(Slot& slot) { doubt(slot); }
    // A ready packet had to wait for the window.
    void window_limited() { round_trip_.limited = true; }
    // Forgets all slots.
    void clear();
    // The configuration is that of another way: forgets what it knows of the network, too.
    void change_way(double now);

    // Doubts what is due. `all_began`: no rank is known to be missing from the oldest collective, so a
    // silence is the network's.
    void advance(bool all_began, double now);
    // No result has come for the policy's give-up time.
    bool expired(double now) const { return now >= give_up_deadline(); }
    // The oldest chunk whose way has answered before, and has left queries unanswered for the policy's time;
    // null: none. Found with a probe.
    const Slot* silent() const { return silent_slot_; }
    // When the next of advance() and expired() is due.
    double deadline() const;

    // The slots with a packet to leave before all others, in the order in which they came to be so.
    const SlotList& urgent() const { return urgent_; }
    // Whether the window permits a chunk besides `before` others of its queue and those that were sent once.
    bool window_open(const Slot& slot, unsigned before) const;
    // Whether any result is awaited.
    bool outstanding() const { return outstanding_ > 0; }

    // Chunks that may be in flight.
    unsigned window() const { return window_.chunks(); }
    double quiet_since() const { return quiet_since_; }
    double least_rtt() const { return least_rtt_.value(); }
    void report(EngineStats& stats) const;

  private:
    // "Held" makes earlier sendings doubtful only until so many packets have left after the last "again".
    // If nothing gets lost, a late rank makes whole windows wait, and asking about them would be a waste.
    static constexpr unsigned LOSS_MEMORY = 1024;

    void doubt(Slot& slot);
    void take_out(const Slot& first, const Slot& last, unsigned count);
    struct Query;
    void measure(const Slot& last, unsigned count, double now);
    void measure_answer(const Slot& slot, const Query& query, bool shows_losses, double now);
    void end_round_trip(std::uint64_t sending);
    std::optional<double> fresh_deadline() const;
    std::optional<double> repeated_deadline() const;
    std::optional<double> held_deadline() const;
    std::optional<double> probe_deadline() const;
    std::vector<Slot*> probed() const;
    const Slot* find_silent(double now) const;
    double give_up_deadline() const { return quiet_since_ + config_.policy.give_up; }
    unsigned& in_flight_with(const Slot& slot) { return in_flight_[config_.queue_of(slot.chunk())]; }
    unsigned in_flight_with(const Slot& slot) const { return in_flight_[config_.queue_of(slot.chunk())]; }
    struct Line;
    Line& line_of(const Slot& slot) { return lines_[config_.line_of(slot.chunk())]; }
    const Line& line_of(const Slot& slot) const { return lines_[config_.line_of(slot.chunk())]; }

    const EngineConfig& config_;

    SlotList urgent_;
    SlotList fresh_;     // sent once and not doubted, in the order of sending
    SlotList repeated_;  // asked about or sent again, in the order of the last sending
    SlotList held_;      // in the order of the answers
    const Slot* silent_slot_ = nullptr;
    unsigned outstanding_ = 0;         // slots in any of these lists
    std::vector<unsigned> in_flight_;  // slots in fresh_, by queue
    std::uint64_t sendings_ = 0;
    std::uint64_t lossy_until_ = LOSS_MEMORY;  // sending; until then packets are known to get lost

    struct Query {
        std::uint32_t number = 0;  // 0: none
        std::uint32_t chunk = 0;
        std::uint64_t sending = 0;
        double sent_at = 0;
    };
    std::vector<Query> asked_;  // the last ones, each at its number modulo the size; without those answered

    RttEstimator rtt_;
    LeastRtt least_rtt_;
    CongestionWindow window_;

    // What is known of a line of chunks, on the way there and back.
    struct alignas(CACHE_LINES_APART) Line {
        struct Heard {
            std::uint64_t sending = 0;  // the last one that has come back
            double rtt = 0;
        };
        Heard result;            // of chunks that were sent once
        Heard answer;            // of queries; the RTT is a peak that decays
        std::uint64_t loss = 0;  // answer.sending when packets were last known to get lost
        double least_rtt = 0;    // of the round trip; 0: none measured
        struct Unanswered {
            bool known = false;    // something of it has come
            unsigned queries = 0;  // since then
            double since = 0;      // when the first of them left
        } unanswered;
        void measure(double rtt) { least_rtt = least_rtt == 0 ? rtt : std::min(least_rtt, rtt); }
    };
    std::vector<Line> lines_;
    // The window changes once a round trip, which ends with the answer to something sent after it began.
    struct RoundTrip {
        std::uint64_t began_behind = 0;  // sending
        bool limited = false;
        bool lost = false;
        unsigned results = 0;
        unsigned congested = 0;
    } round_trip_;

    double quiet_since_ = 0;       // the last result
    double progress_at_ = 0;       // the same, or the last "again"
    double probe_timer_from_ = 0;  // the same, or the last probe, or when the first packet left
    unsigned probes_in_a_row_ = 0;
    unsigned held_in_a_row_ = 0;  // answers, since when the row began

    std::uint64_t retransmits_ = 0;
    std::uint64_t queries_ = 0;
    std::uint32_t last_query_ = 0;
    std::uint64_t probes_ = 0;
    double silent_ = 0;
};

}  // namespace inagg

#endif
