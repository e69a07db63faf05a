// SPDX-License-Identifier: Apache-2.0
#include "engine/recovery.hpp"

#include <algorithm>
#include <utility>

namespace inagg {
namespace {

// How much later than its successors a result may come, as a share of their RTT.
constexpr double REORDERING = 0.25;
// After how many RTTs an answer to a later query makes a chunk that was sent once doubtful.
constexpr double PATIENCE = 2;
// Answers over which the peak of their RTTs decays. In a tree member 0's come from several switches.
constexpr double PEAK_MEMORY = 16;
// Queries of each line that are remembered, if S is not more. Answers to older ones say nothing.
constexpr unsigned LEAST_ASKED = 64;
// How often probes back off without an answer: a probe is short, and mostly comes more than an RTT after the
// last. But so many probes in a row may mean an RTT that is much longer than it was. Then they back off on,
// or the answers would only come when their queries have been forgotten.
constexpr unsigned MOST_BACKOFFS = 9;
constexpr unsigned PROBES_LOST = LEAST_ASKED / 2;
// So many queries in a row get lost on no network that still carries sums: of links that lose a fifth of the
// packets each way, once in 200,000 times.
constexpr unsigned SILENT_QUERIES = 12;
// Groups in which the chunks of a sum leave to one server, at least.
constexpr std::size_t GROUPS = 8;
// After which to ask again about a held chunk.
constexpr double HELD_RTTS = 6;

// 0: there are fewer, or none. Then more packets meet at one than the window shows.
unsigned servers_of_ranks(const EngineConfig& config) {
    return config.ways_apart && config.ways.count() >= config.job.workers ? config.ways.count() : 0;
}

unsigned remembered(const EngineConfig& config) {
    return std::max(config.job.slots, LEAST_ASKED * config.lines());
}

}  // namespace

Recovery::Recovery(const EngineConfig& config)
    : config_(config),
      in_flight_(config.queues()),
      asked_(remembered(config)),
      rtt_(config.policy),
      window_(config.window_bound(), servers_of_ranks(config)),
      lines_(config.lines()) {}

void Recovery::begin(double now) { quiet_since_ = now; }

void Recovery::sent(SlotList& ready, unsigned count, bool timed, double now) {
    if (outstanding_ == 0) {
        probe_timer_from_ = now;
    }
    outstanding_ += count;
    for (Slot* slot = ready.front();; slot = SlotList::next(*slot)) {
        // What does not cross the network does not measure it.
        slot->sent(++sendings_, timed && !config_.at_home(slot->chunk()), now);
        ++in_flight_with(*slot);
        if (--count == 0) {
            fresh_.take_front(ready, *slot);
            return;
        }
    }
}

void Recovery::sent_urgent(Slot& slot, std::uint32_t query, double now) {
    urgent_.remove(slot);
    slot.sent(++sendings_, false, now);
    if (slot.state() == Slot::State::asked) {
        ++queries_;
        auto& unanswered = line_of(slot).unanswered;
        if (unanswered.queries++ == 0) {
            unanswered.since = now;
        }
        asked_[query % asked_.size()] = {query, slot.chunk(), sendings_, now};
    } else {
        ++retransmits_;
    }
    repeated_.push_back(slot);
}

void Recovery::heard(double now) { quiet_since_ = progress_at_ = probe_timer_from_ = now; }

void Recovery::finished(const Slot& first, const Slot& last, unsigned count, unsigned congested, double now) {
    round_trip_.results += count;
    round_trip_.congested += congested;
    probes_in_a_row_ = held_in_a_row_ = 0;
    measure(last, count, now);
    take_out(first, last, count);
    outstanding_ -= count;
}

bool Recovery::answered(Slot& slot, std::uint32_t query_number, bool again, double now) {
    Query& found = asked_[query_number % asked_.size()];
    if (found.number != query_number || found.chunk != slot.chunk() || !slot.awaits_answer(found.sending)) {
        return false;
    }
    const Query query = std::exchange(found, Query{});
    if (again) {
        lossy_until_ = sendings_ + LOSS_MEMORY;
        progress_at_ = probe_timer_from_ = now;
        probes_in_a_row_ = held_in_a_row_ = 0;
        round_trip_.lost |= !config_.at_home(slot.chunk());
    } else {
        ++held_in_a_row_;
    }
    measure_answer(slot, query, sendings_ < lossy_until_, now);
    take_out(slot, slot, 1);
    slot.answered(again ? Slot::State::again : Slot::State::held);
    (again ? urgent_ : held_).push_back(slot);
    return true;
}

// Each queue has a share of the window. To several destinations chunks leave in groups: of 2^n in a row, as
// many as half of the share holds. Otherwise each result would let out one chunk, and messages would have one
// packet. Half of it, so that the results of one group show what is lost of another. A small sum has small
// groups: its first result comes when the groups of all ranks have passed one link.
bool Recovery::window_open(const Slot& slot, unsigned before) const {
    const unsigned ahead = in_flight_with(slot) + before;
    if (!config_.ways_apart) {
        return ahead < std::max(window_.chunks() / config_.packet_threads, 1U);
    }
    const unsigned servers = config_.ways.count();
    const unsigned share =
        std::max({window_.chunks() / servers, std::min(2U, config_.window_bound() / servers), 1U});
    const std::size_t most = std::min<std::size_t>(share / 2, slot.collective().blocks() / servers / GROUPS);
    return ahead + config_.ways.left_of_group(slot.chunk(), static_cast<unsigned>(most)) <= share;
}

void Recovery::clear() {
    urgent_ = fresh_ = repeated_ = held_ = SlotList{};
    silent_slot_ = nullptr;
    outstanding_ = 0;
    std::ranges::fill(in_flight_, 0);
}

void Recovery::change_way(double now) {
    clear();
    in_flight_.assign(config_.queues(), 0);
    asked_.assign(remembered(config_), Query{});
    lossy_until_ = sendings_ + LOSS_MEMORY;
    rtt_ = RttEstimator(config_.policy);
    least_rtt_ = {};
    window_ = CongestionWindow(config_.window_bound(), servers_of_ranks(config_));
    // All of the way is there, as the ranks have been told, so its silence counts.
    Line line;
    line.unanswered.known = true;
    lines_.assign(config_.lines(), line);
    round_trip_ = RoundTrip{.began_behind = sendings_};
    probes_in_a_row_ = held_in_a_row_ = 0;
    quiet_since_ = progress_at_ = probe_timer_from_ = now;
}

// All slots are in the list of the first.
void Recovery::take_out(const Slot& first, const Slot& last, unsigned count) {
    if (first.urgent()) {
        urgent_.remove_range(first, last);
    } else if (first.state() == Slot::State::held) {
        held_.remove_range(first, last);
    } else if (first.sent_once()) {
        fresh_.remove_range(first, last);
        if (in_flight_.size() == 1) {
            in_flight_.front() -= count;
            return;
        }
        for (const Slot* slot = &last; count > 0; --count, slot = SlotList::previous(*slot)) {
            --in_flight_with(*slot);
        }
    } else {
        repeated_.remove_range(first, last);
    }
}

void Recovery::doubt(Slot& slot) {
    take_out(slot, slot, 1);
    slot.doubt();
    urgent_.push_back(slot);
}

// `last`: of `count` results in a row, which may have come several ways: the last one of each says what the
// others of that way say. The result of a chunk that was asked about or sent again may have left before that,
// so it says nothing about earlier sendings.
void Recovery::measure(const Slot& last, unsigned count, double now) {
    const double rtt = now - last.sent_at();
    if (last.timed()) {
        rtt_.measure(rtt, count);
        least_rtt_.measure(rtt, now);
    }
    const Slot* slot = &last;
    const Line* after = nullptr;
    for (unsigned left = lines_.size() == 1 ? 1 : count; left > 0; --left) {
        Line& line = line_of(*slot);
        if (&line != after && slot->timed()) {
            line.measure(rtt);
        }
        if (&line != after && slot->sent_once() && slot->sending() > line.result.sending) {
            line.result = {slot->sending(), rtt};
        }
        after = &line;
        slot = SlotList::previous(*slot);
    }
    if (!config_.at_home(last.chunk())) {
        end_round_trip(last.sending());
    }
}

// An answer names its query, so it is always an RTT. In a tree it may be that to the leaf alone, so it is not
// what empty queues take. `shows_losses`: it makes earlier sendings doubtful.
void Recovery::measure_answer(const Slot& slot, const Query& query, bool shows_losses, double now) {
    Line& line = line_of(slot);
    const double rtt = now - query.sent_at;
    const bool crosses = !config_.at_home(slot.chunk());
    if (crosses) {
        rtt_.measure(rtt);
        line.measure(rtt);
    }
    line.answer.rtt = std::max(rtt, line.answer.rtt + (rtt - line.answer.rtt) / PEAK_MEMORY);
    line.answer.sending = std::max(line.answer.sending, query.sending);
    if (shows_losses) {
        line.loss = line.answer.sending;
        if (crosses) {
            end_round_trip(query.sending);
        }
    }
}

// If the answered packet left in this one.
void Recovery::end_round_trip(std::uint64_t sending) {
    if (sending <= round_trip_.began_behind) {
        return;
    }
    // The longest queue counts.
    double least_rtt = 0;
    for (Line& each : lines_) {
        least_rtt = std::max(least_rtt, std::exchange(each.least_rtt, 0));
    }
    if (least_rtt > 0 && least_rtt_.value() > 0) {
        const double congested =
            round_trip_.results > 0 ? static_cast<double>(round_trip_.congested) / round_trip_.results : 0;
        window_.end_round_trip(least_rtt, least_rtt_.value(), round_trip_.limited, round_trip_.lost,
                               congested);
    }
    round_trip_ = RoundTrip{.began_behind = sendings_};
}

void Recovery::advance(bool all_began, double now) {
    const auto due = [now](const std::optional<double>& deadline) { return deadline && *deadline <= now; };
    while (due(fresh_deadline())) {
        doubt(*fresh_.front());
    }
    while (due(repeated_deadline())) {
        doubt(*repeated_.front());
    }
    while (due(held_deadline())) {
        doubt(*held_.front());
    }
    if (due(probe_deadline())) {
        silent_slot_ = find_silent(now);
        for (Slot* slot : probed()) {
            doubt(*slot);
            ++probes_;
        }
        silent_ += all_began ? now - probe_timer_from_ : 0;
        probe_timer_from_ = now;
        ++probes_in_a_row_;
    }
}

// When the chunk that was sent longest ago, and once, is doubtful. The result of a later one shows that some
// packet of this one is lost. The answer to a later query shows only that this one has passed or is lost; it
// may wait for another worker.
std::optional<double> Recovery::fresh_deadline() const {
    if (fresh_.empty()) {
        return std::nullopt;
    }
    const Slot& slot = *fresh_.front();
    const Line& line = line_of(slot);
    if (slot.sending() < line.result.sending) {
        return slot.sent_at() + (1 + REORDERING) * line.result.rtt;
    }
    if (slot.sending() < line.loss) {
        return slot.sent_at() + PATIENCE * std::max(line.answer.rtt, line.result.rtt);
    }
    return std::nullopt;
}

// The same of the query, or the contribution sent again, that left longest ago.
std::optional<double> Recovery::repeated_deadline() const {
    if (repeated_.empty()) {
        return std::nullopt;
    }
    const Slot& slot = *repeated_.front();
    const Line& line = line_of(slot);
    if (slot.sending() < std::max(line.answer.sending, line.result.sending)) {
        return slot.sent_at() + (1 + REORDERING) * (line.answer.rtt > 0 ? line.answer.rtt : line.result.rtt);
    }
    return std::nullopt;
}

// When to ask again about the chunk that the switch has held longest: others may have completed it since. If
// nothing has moved since, they have not.
std::optional<double> Recovery::held_deadline() const {
    if (held_.empty() || progress_at_ <= held_.front()->sent_at()) {
        return std::nullopt;
    }
    const Slot& slot = *held_.front();
    // The others' packets take an RTT of the network also to a server at home.
    const double least = config_.at_home(slot.chunk()) ? rtt_.srtt() : 0;
    return slot.sent_at() + HELD_RTTS * std::max(line_of(slot).answer.rtt, least);
}

// When silence has lasted so long that the switch is to be asked about one chunk. One is enough: if more is
// lost, the answer shows it; and if a rank is late, there is nothing to repair.
std::optional<double> Recovery::probe_deadline() const {
    if (outstanding_ == 0 || !urgent_.empty()) {
        return std::nullopt;
    }
    const unsigned most =
        held_in_a_row_ + MOST_BACKOFFS + std::max(probes_in_a_row_, PROBES_LOST) - PROBES_LOST;
    return probe_timer_from_ + rtt_.timeout(std::min(probes_in_a_row_, most));
}

// In turns the oldest chunk that is not known to be held, and the oldest of all: a held one may be complete,
// and its result lost. After a long silence that of each line: an outage loses packets of all lines, and an
// answer shows what is lost of its own.
std::vector<Slot*> Recovery::probed() const {
    const bool each_line = probes_in_a_row_ >= MOST_BACKOFFS;
    std::vector<Slot*> oldest(each_line ? lines_.size() : 1);
    const auto consider = [&](const SlotList& list) {
        for (Slot* slot = list.front(); slot != nullptr; slot = SlotList::next(*slot)) {
            Slot*& known = oldest[each_line ? config_.line_of(slot->chunk()) : 0];
            if (known == nullptr || chunk_age(known->chunk(), slot->chunk()) > 0) {
                known = slot;
            }
        }
    };
    consider(fresh_);
    consider(repeated_);
    if (probes_in_a_row_ % 2 == 1 ||
        std::ranges::all_of(oldest, [](Slot* slot) { return slot == nullptr; })) {
        consider(held_);
    }
    std::erase(oldest, nullptr);
    return oldest;
}

const Slot* Recovery::find_silent(double now) const {
    const Slot* oldest = nullptr;
    for (const SlotList* list : {&fresh_, &repeated_, &held_}) {
        for (const Slot* slot = list->front(); slot != nullptr; slot = SlotList::next(*slot)) {
            const auto& [known, queries, since] = line_of(*slot).unanswered;
            const bool silent = known && queries >= SILENT_QUERIES && now - since >= config_.policy.silent;
            if (silent && (oldest == nullptr || chunk_age(oldest->chunk(), slot->chunk()) > 0)) {
                oldest = slot;
            }
        }
    }
    return oldest;
}

double Recovery::deadline() const {
    double earliest = give_up_deadline();
    for (const std::optional<double>& deadline :
         {fresh_deadline(), repeated_deadline(), held_deadline(), probe_deadline()}) {
        earliest = std::min(earliest, deadline.value_or(earliest));
    }
    return earliest;
}

void Recovery::report(EngineStats& stats) const {
    stats.retransmits = retransmits_;
    stats.queries = queries_;
    stats.probes = probes_;
    stats.silent = silent_;
    if (silent_slot_ != nullptr) {
        stats.silent_chunk = silent_slot_->chunk();
    }
    stats.in_flight = outstanding_;
    stats.window = window_.chunks();
    stats.window_limit = config_.window_bound();
    stats.rtt_samples = rtt_.samples();
    stats.least_rtt = least_rtt_.value();
    stats.srtt = rtt_.srtt();
    stats.rttvar = rtt_.rttvar();
    stats.rto = rtt_.rto();
}

}  // namespace inagg
