// SPDX-License-Identifier: Apache-2.0
//
// The engine's sense of time (protocol.md, 6.1 and 6.2): RTT, window, what is lost, and when to give up.
#include <algorithm>

#include "engine/engine.hpp"

namespace inagg {
namespace {

// How much later than its successors a result may come, as a share of their RTT.
constexpr double REORDERING = 0.25;

}  // namespace

const char* name(FailureCode code) {
    switch (code) {
        case FailureCode::checksum:
            return "checksum";
        case FailureCode::kind_mismatch:
            return "kind_mismatch";
        case FailureCode::give_up:
            return "give_up";
        case FailureCode::closed:
            return "closed";
        case FailureCode::failed:
            break;
    }
    return "failed";
}

// What the answer to a slot's packet tells about the network.
void Engine::measure(const Slot& slot, double now) {
    const double rtt = now - slot.sent_at;
    // The first result of a collective comes when the last rank has begun it.
    if (!slot.collective->begun() && slot.collective->announced() == 0) {
        const double waited = now - slot.collective->first_sent.value_or(now) - least_rtt_.value();
        stats_.waited += std::max(waited, 0.0);
    }
    // Of a chunk sent again it is not known which sending was answered (Karn): the back-off lasts until that
    // of another chunk is.
    probes_ = slot.resent ? probes_ : 0;
    // One that was sent before all ranks were there has waited for them.
    if (!slot.resent && slot.clocked) {
        rtt_.measure(rtt);
        least_rtt_.measure(rtt, now);
        round_.least_rtt = round_.least_rtt == 0 ? rtt : std::min(round_.least_rtt, rtt);
    }
    if (!slot.resent && slot.order > overtaken_.by) {
        overtaken_ = {slot.order, rtt};
    } else if (slot.resent && slot.order > overtaken_maybe_.by) {
        // It may have been the first sending that was answered, late, and the answers to what was sent
        // between the two come now.
        overtaken_maybe_ = {slot.order, now + rtt_.srtt() + 4 * rtt_.rttvar()};
    }
    if (slot.order > round_.ends_behind) {
        if (round_.least_rtt > 0) {
            window_.end_round(round_.least_rtt, least_rtt_.value(), round_.limited, round_.lost);
        }
        round_ = Round{.ends_behind = sendings_};
    }
}

void Engine::advance(double now) {
    if (waiting_ == 0) {
        return;
    }
    if (now >= quiet_since_ + config_.policy.give_up) {
        fail(FailureCode::give_up, "nothing was received for " + std::to_string(now - quiet_since_) +
                                       " s; is the switch up, and do all ranks take part?");
        return;
    }
    while (const std::optional<double> deadline = loss_deadline()) {
        if (*deadline > now) {
            break;
        }
        move(slots_[in_flight_.front()], Slot::State::lost);
        round_.lost = true;
    }
    if (const std::optional<double> deadline = probe_deadline(); deadline && *deadline <= now) {
        move(*oldest(Slot::State::in_flight), Slot::State::lost);
        ++stats_.probes;
        if (activity() != Activity::beginning) {
            stats_.silent += now - probed_at_;
        }
        ++probes_;
        probed_at_ = now;
    }
}

// When the chunk sent longest ago is to be taken for lost: once something sent after it has been answered,
// and it has had that answer's RTT and some more (RFC 8985).
std::optional<double> Engine::loss_deadline() const {
    if (in_flight_.empty()) {
        return std::nullopt;
    }
    const Slot& slot = slots_[in_flight_.front()];
    if (slot.order < overtaken_.by) {
        return slot.sent_at + (1 + REORDERING) * overtaken_.rtt;
    }
    if (slot.order < overtaken_maybe_.by) {
        return overtaken_maybe_.since;
    }
    return std::nullopt;
}

// When silence has lasted so long that a chunk is to be sent again, to provoke an answer. One is enough: if
// others are lost, the answer shows it; and if a rank is late, there is nothing to repair.
std::optional<double> Engine::probe_deadline() const {
    if (in_flight_.empty() || !lost_.empty()) {
        return std::nullopt;
    }
    return probed_at_ + rtt_.timeout(probes_);
}

std::optional<double> Engine::deadline() const {
    if (waiting_ == 0) {
        return std::nullopt;
    }
    double earliest = quiet_since_ + config_.policy.give_up;
    for (const std::optional<double>& deadline : {loss_deadline(), probe_deadline()}) {
        earliest = std::min(earliest, deadline.value_or(earliest));
    }
    return earliest;
}

// The slot that is furthest behind, of those in a state; of those in any but idle, if none is given.
Slot* Engine::oldest(std::optional<Slot::State> state) {
    Slot* oldest = nullptr;
    for (Slot& slot : slots_) {
        const bool counts = state ? slot.state == *state : slot.state != Slot::State::idle;
        if (counts && (oldest == nullptr || chunk_age(oldest->chunk, slot.chunk) > 0)) {
            oldest = &slot;
        }
    }
    return oldest;
}

std::string Engine::who() const {
    return "job " + std::to_string(config_.job) + ", rank " + std::to_string(config_.rank);
}

void Engine::fail(FailureCode code, const std::string& reason) {
    if (failure_) {
        return;
    }
    if (const Slot* slot = oldest(std::nullopt)) {
        fail_chunk(code, *slot, reason);
    } else {
        failure_ = Failure{code, who() + ": " + reason, std::nullopt, std::nullopt};
    }
}

void Engine::fail_chunk(FailureCode code, const Slot& slot, const std::string& reason) {
    const Ticket ticket = slot.collective->ticket();
    failure_ = Failure{code,
                       who() + ", collective " + std::to_string(ticket) + ", chunk " +
                           std::to_string(slot.chunk) + ": " + reason,
                       ticket, slot.chunk};
    ready_ = lost_ = in_flight_ = SlotList{};
    waiting_ = outstanding_ = 0;
}

}  // namespace inagg
