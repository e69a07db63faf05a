// SPDX-License-Identifier: Apache-2.0
#include "engine/recovery.hpp"

#include <algorithm>
#include <utility>

namespace inagg {
namespace {

// How much later than its successors a result may come, as a share of their RTT.
constexpr double REORDERING = 0.25;

}  // namespace

Recovery::Recovery(const RetransmissionPolicy& policy, unsigned window_limit, unsigned roots)
    : give_up_(policy.give_up),
      window_limit_(window_limit),
      rtt_(policy),
      window_(window_limit),
      ways_(roots) {}

void Recovery::begin(double now) { quiet_since_ = now; }

void Recovery::sent(SlotList& ready, unsigned count, bool timed, double now) {
    if (outstanding_ == 0) {
        probe_timer_from_ = now;
    }
    outstanding_ += count;
    fresh_ += count;
    Slot* last = nullptr;
    for (Slot* slot = ready.front(); count > 0; --count, slot = SlotList::next(*slot)) {
        slot->sent(++sendings_, timed, now);
        last = slot;
    }
    in_flight_.take_front(ready, *last);
}

void Recovery::resent(Slot& slot, double now) {
    lost_.remove(slot);
    ++retransmits_;
    slot.sent(++sendings_, false, now);
    in_flight_.push_back(slot);
}

void Recovery::heard(double now) { quiet_since_ = probe_timer_from_ = now; }

void Recovery::answered(const Slot& first, const Slot& last, unsigned count, double now) {
    measure(last, count, now);
    take_out(first, last, count);
    outstanding_ -= count;
}

void Recovery::refused(Slot& slot) { lose(slot); }

void Recovery::clear() {
    lost_ = in_flight_ = SlotList{};
    outstanding_ = fresh_ = 0;
}

void Recovery::take_out(const Slot& first, const Slot& last, unsigned count) {
    if (first.state() == Slot::State::lost) {
        lost_.remove(first);
        return;
    }
    in_flight_.remove_range(first, last);
    fresh_ -= first.resent() ? 0 : count;
}

void Recovery::lose(Slot& slot) {
    take_out(slot, slot, 1);
    slot.lost();
    lost_.push_back(slot);
}

// `slot`: the last one of a run of `count`.
void Recovery::measure(const Slot& slot, unsigned count, double now) {
    const double rtt = now - slot.sent_at();
    Way& way = way_of(slot);
    if (slot.timed()) {
        rtt_.measure(rtt, count);
        least_rtt_.measure(rtt, now);
        way.least_rtt = way.least_rtt == 0 ? rtt : std::min(way.least_rtt, rtt);
    }
    if (!slot.resent()) {
        // A result of a chunk sent again says nothing about its last sending (Karn), so it does not end the
        // back-off.
        probes_in_a_row_ = 0;
        if (slot.sending() > way.overtaken.by) {
            way.overtaken = {slot.sending(), rtt};
        }
    } else if (slot.sending() > way.perhaps_overtaken.by) {
        // If this answers the first sending, late, then the answers to what was sent between the two are on
        // their way.
        way.perhaps_overtaken = {slot.sending(), now + rtt_.srtt() + 4 * rtt_.rttvar()};
    }
    if (slot.sending() > round_trip_.began_behind) {
        // The longest queue counts.
        double least_rtt = 0;
        for (Way& each : ways_) {
            least_rtt = std::max(least_rtt, std::exchange(each.least_rtt, 0));
        }
        if (least_rtt > 0) {
            window_.end_round_trip(least_rtt, least_rtt_.value(), round_trip_.limited, round_trip_.lost);
        }
        round_trip_ = RoundTrip{.began_behind = sendings_};
    }
}

void Recovery::advance(bool all_began, double now) {
    while (const std::optional<double> deadline = loss_deadline()) {
        if (*deadline > now) {
            break;
        }
        lose(*in_flight_.front());
        round_trip_.lost = true;
    }
    if (const std::optional<double> deadline = probe_deadline(); deadline && *deadline <= now) {
        lose(oldest_in_flight());
        silent_ += all_began ? now - probe_timer_from_ : 0;
        probe_timer_from_ = now;
        ++probes_in_a_row_;
        ++probes_;
    }
}

// When the packet sent longest ago is lost, if a later one has been answered.
std::optional<double> Recovery::loss_deadline() const {
    if (in_flight_.empty()) {
        return std::nullopt;
    }
    const Slot& slot = *in_flight_.front();
    const Way& way = way_of(slot);
    if (slot.sending() < way.overtaken.by) {
        return slot.sent_at() + (1 + REORDERING) * way.overtaken.rtt;
    }
    if (slot.sending() < way.perhaps_overtaken.by) {
        return way.perhaps_overtaken.lost_at;
    }
    return std::nullopt;
}

// When silence has lasted so long that one packet is to be sent again, to provoke an answer. One is enough:
// if others are lost, the answer shows it; and if a rank is late, there is nothing to repair.
std::optional<double> Recovery::probe_deadline() const {
    if (in_flight_.empty() || !lost_.empty()) {
        return std::nullopt;
    }
    return probe_timer_from_ + rtt_.timeout(probes_in_a_row_);
}

double Recovery::deadline() const {
    double earliest = give_up_deadline();
    for (const std::optional<double>& deadline : {loss_deadline(), probe_deadline()}) {
        earliest = std::min(earliest, deadline.value_or(earliest));
    }
    return earliest;
}

Slot& Recovery::oldest_in_flight() const {
    Slot* oldest = in_flight_.front();
    for (Slot* slot = oldest; slot != nullptr; slot = SlotList::next(*slot)) {
        if (chunk_age(oldest->chunk(), slot->chunk()) > 0) {
            oldest = slot;
        }
    }
    return *oldest;
}

void Recovery::report(EngineStats& stats) const {
    stats.retransmits = retransmits_;
    stats.probes = probes_;
    stats.silent = silent_;
    stats.in_flight = outstanding_;
    stats.window = window_.chunks();
    stats.window_limit = window_limit_;
    stats.rtt_samples = rtt_.samples();
    stats.least_rtt = least_rtt_.value();
    stats.srtt = rtt_.srtt();
    stats.rttvar = rtt_.rttvar();
    stats.rto = rtt_.rto();
}

}  // namespace inagg
