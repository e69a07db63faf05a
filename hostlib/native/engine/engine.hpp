// SPDX-License-Identifier: Apache-2.0
//
// One worker's side of the protocol (protocol.md, 3.2 to 4 and 6), sans-IO: it is given datagrams and the
// time, and returns datagrams to send, completed collectives and its next deadline. It reads no clock, opens
// no socket, starts no thread, and belongs to one thread at a time. Times are seconds, of any one clock.
//
// How it works. Chunk c uses slot c mod S; a slot sends its chunks one after another, each when the last
// one's result is in and, for lanes, their exponent is known. So all that ever happens is: a result arrives,
// its slot moves on by S chunks, and those chunks that waited for what it told are tried (try_start). A chunk
// that can be sent is ready; the window lets so many of those out; a packet is built when it leaves. What was
// sent is in flight, in the order of sending, until its result arrives or it is taken for lost: because
// something sent later has been answered (loss_deadline), or after a silence (probe_deadline).
#ifndef INAGG_ENGINE_HPP
#define INAGG_ENGINE_HPP

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/collective.hpp"
#include "engine/rtt.hpp"
#include "engine/slot.hpp"
#include "engine/window.hpp"
#include "wire/wire.hpp"

namespace inagg {

struct EngineConfig {
    std::uint16_t job = 0;
    unsigned rank = 0;
    unsigned workers = 0;
    std::uint32_t epoch = 0;
    std::uint32_t slots = 0;  // S
    unsigned words = 0;
    RetransmissionPolicy policy;
    // Of a job: 0 (protocol.md, 7). Tests start elsewhere to cross the wrap of chunk numbers.
    std::uint32_t first_chunk = 0;
    // Most chunks in flight, beyond what S says; 0: S is all.
    std::uint32_t window_limit = 0;

    std::uint32_t window_bound() const;

    // Throws std::invalid_argument.
    void validate() const;
    // Throws std::invalid_argument when the request cannot be run under this configuration.
    void validate(const Request& request) const;
    void validate(const Staging& staging) const;
};

enum class FailureCode { checksum, kind_mismatch, give_up, failed, closed };

const char* name(FailureCode code);

// The end of a group. `message` names all that is known: job, rank, collective, chunk.
struct Failure {
    FailureCode code;
    std::string message;
    std::optional<Ticket> collective;
    std::optional<std::uint32_t> chunk;
};

// What an engine's time goes into.
enum class Activity {
    idle,       // there is no collective
    device,     // nothing can be sent before a device has packed it
    beginning,  // the oldest collective: not all ranks are known to have begun it
    window,     // there is more to send than the window lets out
    answers,    // all that can be sent is in flight
};
constexpr std::size_t ACTIVITIES = 5;

// Bytes are of UDP payload.
struct EngineStats {
    std::uint64_t packets_sent = 0;
    std::uint64_t bytes_sent = 0;
    std::uint64_t packets_received = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t retransmits = 0;  // of these, so many after a silence:
    std::uint64_t probes = 0;
    std::uint64_t duplicates_received = 0;
    std::uint64_t discarded = 0;
    std::uint64_t corrupt = 0;  // results of outstanding chunks that were not used
    std::uint64_t chunks_completed = 0;
    std::uint64_t collectives_completed = 0;
    std::uint64_t special_blocks = 0;
    std::uint64_t in_flight = 0;
    std::uint64_t window = 0;        // chunks
    std::uint64_t window_limit = 0;  // what it may grow to
    std::uint64_t rtt_samples = 0;
    double least_rtt = 0;  // lately; 0 before the first
    double waited = 0;     // for other ranks to begin a collective, in all
    double silent = 0;     // before probes, in collectives that all ranks had begun
    double srtt = 0;
    double rttvar = 0;
    double rto = 0;
};

class Engine {
  public:
    // Throws std::invalid_argument.
    explicit Engine(const EngineConfig& config);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Queues a collective that the configuration has validated; must not be called after a failure.
    Ticket submit(const Request& request, double now);

    // Of a staged collective: what its Staging has been told by scanned() and packed().
    void scanned(Ticket ticket, double now);
    void packed(Ticket ticket, std::size_t blocks, double now);
    // Tells each Staging how far its collective is; true if that is news. After a failure once, and then no
    // more. The memory must live until then, or until a Staging has been told that its collective is done.
    bool report_progress();

    // A datagram from the aggregator's address.
    void receive(std::span<const std::byte> datagram, double now);

    // Fires the timers that are due.
    void advance(double now);

    // Writes the datagrams to send next into `memory`, one behind the other, as many as fit there and into
    // `out`; returns how many. Room for one is needed. Those of staged blocks stand in their Staging.
    std::size_t to_send(std::span<std::byte> memory, std::span<std::span<const std::byte>> out);
    // The first `count` of those have left.
    void sent(std::size_t count, double now);
    bool anything_to_send() const {
        return !lost_.empty() || (!ready_.empty() && may_leave(ready_.front(), 0));
    }

    // When advance() has something to do; nothing while nothing is outstanding.
    std::optional<double> deadline() const;

    // The next collective that is done, in order of completion.
    std::optional<Ticket> next_completion();

    // Breaks the group; the first failure stays. From then on nothing is sent, and no data is touched.
    void fail(FailureCode code, const std::string& reason);
    const std::optional<Failure>& failure() const { return failure_; }

    EngineStats stats() const;
    Activity activity() const;

  private:
    std::uint32_t index_of(std::uint32_t chunk) const { return chunk & (config_.slots - 1); }
    Slot& slot_of(std::uint32_t chunk) { return slots_[index_of(chunk)]; }

    void expect_answers(double now);
    Collective* find_ticket(Ticket ticket);
    Collective* next_in_line();
    void place_collectives();
    void start_chunks(Collective& collective, std::uint32_t first, std::uint32_t count);
    Collective* find(std::uint32_t chunk);
    void try_start(std::uint32_t chunk, Collective& guess);
    Kind kind_of(const Slot& slot) const;
    std::size_t bytes_of(const Slot& slot) const { return datagram_bytes(kind_of(slot), config_.words); }
    void build(Slot& slot, std::span<std::byte> datagram);
    void announce(Slot& slot);
    static void announce_block(Slot& slot, Collective& collective, std::size_t block);
    void announce_next(Slot& slot, std::size_t block);
    bool in_window(std::uint32_t index, unsigned before) const;
    bool overtakes_packing(std::uint32_t chunk) const;
    bool may_leave(std::uint32_t index, unsigned before) const {
        return in_window(index, before) && (staged_.empty() || !overtakes_packing(slots_[index].chunk));
    }
    SlotList& list_of(Slot::State state);
    void move(Slot& slot, Slot::State state);

    bool for_us(const Header& header, std::size_t bytes) const;
    // Why a result is not to be used.
    struct Fault {
        FailureCode code;
        std::string reason;
    };
    std::optional<Fault> fault_in(const Slot& slot, const Header& header,
                                  std::span<const std::byte> words) const;
    void refuse(Slot& slot, const Fault& fault);
    void measure(const Slot& slot, double now);
    void move_on(Slot& slot, const Header& header);
    void learn_exponent(Collective& collective, std::size_t block, const Header& header);
    void learn_next(Collective& collective, std::size_t block, const Header& header);
    void close(Collective& collective);
    void complete(Ticket ticket);
    void drop_settled();

    std::optional<double> loss_deadline() const;
    std::optional<double> probe_deadline() const;
    Slot* oldest(std::optional<Slot::State> state);

    void fail_chunk(FailureCode code, const Slot& slot, const std::string& reason);
    std::string who() const;

    EngineConfig config_;
    std::uint32_t rank_marks_ = 0;        // of all ranks (protocol.md, 4)
    std::deque<Collective> collectives_;  // unsettled ones, in order; settled ones behind an unsettled one
    std::size_t placed_ = 0;              // the first so many of them know their base
    std::uint32_t next_base_;
    bool next_base_known_ = true;
    Ticket last_ticket_ = 0;
    std::deque<Ticket> completions_;
    std::vector<Collective*> staged_;  // not settled

    std::vector<Slot> slots_;
    SlotList ready_;                   // the oldest chunk first
    SlotList lost_;                    // in the order in which that was noticed
    SlotList in_flight_;               // in the order of sending
    unsigned waiting_ = 0;             // slots in any of the three
    unsigned outstanding_ = 0;         // slots that are in flight or lost
    unsigned fresh_ = 0;               // slots that are in flight and were sent once: what the window counts
    std::uint32_t oldest_unfinished_;  // chunk

    RttEstimator rtt_;
    LeastRtt least_rtt_;
    CongestionWindow window_;
    std::uint64_t sendings_ = 0;
    // What was sent before the last sending that is known to have been answered, and is not itself answered
    // soon, is lost.
    struct Overtaken {
        std::uint64_t by = 0;  // sending
        double rtt = 0;        // of that one
    } overtaken_;
    // The same of an answer that may be to an earlier sending of the same chunk.
    struct OvertakenMaybe {
        std::uint64_t by = 0;
        double since = 0;  // certainly, by then
    } overtaken_maybe_;
    // A round ends with the answer to something that was sent after it began.
    struct Round {
        std::uint64_t ends_behind = 0;  // sending
        double least_rtt = 0;           // 0: none measured
        bool limited = false;
        bool lost = false;
    } round_;
    double quiet_since_ = 0;  // the last time that anything was received, or something became outstanding
    double probed_at_ = 0;    // the same, or the last probe
    unsigned probes_ = 0;     // since a chunk was answered that was sent once

    std::optional<Failure> failure_;
    EngineStats stats_;
};

}  // namespace inagg

#endif
