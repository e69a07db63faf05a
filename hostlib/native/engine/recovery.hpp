// SPDX-License-Identifier: Apache-2.0
//
// What results, and their absence, tell about the network (protocol.md, 6.1 and 6.2): which packets are lost,
// how long to wait, and how many chunks may be in flight. It holds the slots whose packets have left. Like
// the engine it reads no clock: times are seconds, of any one clock.
//
// A packet is taken for lost when a packet sent later has been answered (loss_deadline, after RFC 8985), when
// nothing has come for the RTO (probe_deadline), or when its result was not usable (refused).
#ifndef INAGG_RECOVERY_HPP
#define INAGG_RECOVERY_HPP

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/rtt.hpp"
#include "engine/slot.hpp"
#include "engine/stats.hpp"
#include "engine/window.hpp"

namespace inagg {

class Recovery {
  public:
    // `window_limit` in chunks. `roots`: the switches that sum the job's chunks in turns (protocol.md, 5.5),
    // a power of two. Chunks of different roots go different ways, so their order says nothing.
    Recovery(const RetransmissionPolicy& policy, unsigned window_limit, unsigned roots);

    // Silence counts from here: the first chunk is about to become ready.
    void begin(double now);
    // The packets of the first `count` ready slots have left; the slots leave the list. `timed`: all ranks
    // are at the slots' collective, so the delay of the results measures the network.
    void sent(SlotList& ready, unsigned count, bool timed, double now);
    // A lost slot's packet has left again.
    void resent(Slot& slot, double now);
    // Any result of this job has come, a duplicate too.
    void heard(double now);
    // The results of a run of `count` slots are in: either one slot, or slots in flight of which each
    // follows() the one before. The slots are out of Recovery's lists, and their chunks finished by the
    // caller.
    void answered(const Slot& first, const Slot& last, unsigned count, double now);
    // A slot's result was not usable: its packet is to be sent again at once.
    void refused(Slot& slot);
    // A ready packet had to wait for the window.
    void window_limited() { round_trip_.limited = true; }
    // Forgets all slots.
    void clear();

    // Takes for lost what is due. `all_began`: no rank is known to be missing from the oldest collective, so
    // a silence is the network's.
    void advance(bool all_began, double now);
    // Nothing has come for the policy's give-up time.
    bool expired(double now) const { return now >= give_up_deadline(); }
    // When the next of advance() and expired() is due.
    double deadline() const;

    // The lost slots, in the order in which they were lost. Their packets leave before all others.
    const SlotList& lost() const { return lost_; }
    // Whether the window permits another chunk besides `more` and those that were sent once.
    bool window_open(unsigned more) const { return fresh_ + more < window_.chunks(); }
    // Whether any result is awaited.
    bool outstanding() const { return outstanding_ > 0; }

    double quiet_since() const { return quiet_since_; }
    double least_rtt() const { return least_rtt_.value(); }
    void report(EngineStats& stats) const;

  private:
    void lose(Slot& slot);
    void take_out(const Slot& first, const Slot& last, unsigned count);
    void measure(const Slot& slot, unsigned count, double now);
    std::optional<double> loss_deadline() const;
    std::optional<double> probe_deadline() const;
    double give_up_deadline() const { return quiet_since_ + give_up_; }
    Slot& oldest_in_flight() const;
    struct Way;
    Way& way_of(const Slot& slot) { return ways_[slot.chunk() % ways_.size()]; }
    const Way& way_of(const Slot& slot) const { return ways_[slot.chunk() % ways_.size()]; }

    double give_up_;
    unsigned window_limit_;

    SlotList lost_;
    SlotList in_flight_;        // in the order of sending
    unsigned outstanding_ = 0;  // slots in either list
    unsigned fresh_ = 0;        // slots in flight that were sent once
    std::uint64_t sendings_ = 0;

    RttEstimator rtt_;
    LeastRtt least_rtt_;
    CongestionWindow window_;

    // What is known of the way to a root and back.
    struct Way {
        // The last sending that has certainly been answered. Earlier ones that are not answered within a
        // little more than its RTT are lost.
        struct Overtaken {
            std::uint64_t by = 0;  // sending
            double rtt = 0;        // of that sending
        } overtaken;
        // The same after an answer to a chunk sent more than once: it may answer an earlier sending.
        struct PerhapsOvertaken {
            std::uint64_t by = 0;
            double lost_at = 0;
        } perhaps_overtaken;
        double least_rtt = 0;  // of the round trip; 0: none measured
    };
    std::vector<Way> ways_;
    // The window changes once a round trip, which ends with the answer to something sent after it began.
    struct RoundTrip {
        std::uint64_t began_behind = 0;  // sending
        bool limited = false;
        bool lost = false;
    } round_trip_;

    double quiet_since_ = 0;       // the last time that anything was heard
    double probe_timer_from_ = 0;  // the same, or the last probe, or when the first packet left
    unsigned probes_in_a_row_ = 0;

    std::uint64_t retransmits_ = 0;
    std::uint64_t probes_ = 0;
    double silent_ = 0;
};

}  // namespace inagg

#endif
