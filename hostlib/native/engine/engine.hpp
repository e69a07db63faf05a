// SPDX-License-Identifier: Apache-2.0
//
// One worker's side of the protocol (protocol.md, 3.2 to 4 and 6), sans-I/O: datagrams and the time go in;
// datagrams, completed collectives and the next deadline come out. It reads no clock, opens no socket, starts
// no thread, and belongs to one thread at a time. Times are seconds, of any one clock.
//
// How it works. Chunk c uses slot c mod S. A slot sends its chunks one after another: each when the result of
// the one before is in and, for lanes, their exponent is known. So there is one event: a result arrives. Its
// slot moves on by S chunks, and the chunks that may have waited for what the result says are tried
// (try_start). A chunk that can be sent is ready. The window lets ready chunks out, the oldest first; a
// packet is made when it leaves. From then on Recovery decides when to ask the switch about it; the answer
// says whether to send it again.
#ifndef INAGG_ENGINE_HPP
#define INAGG_ENGINE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/collective.hpp"
#include "engine/collective_queue.hpp"
#include "engine/config.hpp"
#include "engine/contribution.hpp"
#include "engine/failure.hpp"
#include "engine/recovery.hpp"
#include "engine/slot.hpp"
#include "engine/stats.hpp"
#include "wire/wire.hpp"

namespace inagg {

class Engine {
  public:
    // Throws std::invalid_argument.
    explicit Engine(const EngineConfig& config);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Queues a collective that the configuration has validated. The caller numbers its collectives 1, 2, 3...
    // Must not be called after a failure.
    void submit(Ticket ticket, const Request& request, double now);

    // Staged collectives: the device has scanned all elements, or packed the lanes of the first `blocks`.
    void scanned(Ticket ticket, double now);
    void packed(Ticket ticket, std::size_t blocks, double now);
    // Writes to each Staging how far its collective is; true if that is news. After a failure it does so once
    // more, and then never again. A Staging must live until then, or until it says that its collective is
    // done.
    bool report_progress();

    // Takes a message from the aggregator's address: datagrams of `datagram_bytes`, of which the last may be
    // shorter. `congested`: they met a queue on their way (RFC 3168).
    void receive(std::span<const std::byte> message, std::size_t datagram_bytes, double now,
                 bool congested = false);

    // Fires the timers that are due.
    void advance(double now);

    // Makes the datagrams to send next, in `memory`, one behind the other; as many as fit there and into
    // `out`. Returns their number. `memory` has room for one at least. Datagrams of staged blocks stand in
    // their Staging instead. All are for one thread of a switch. If the ways are apart, each datagram's
    // destination is its way, and new chunks of one way are together.
    std::size_t to_send(std::span<std::byte> memory, std::span<Outgoing> out);
    // The first `count` of those have left.
    void sent(std::size_t count, double now);
    bool anything_to_send() const {
        const auto open = [this](const SlotList& ready) {
            return !ready.empty() && may_leave(*ready.front(), 0);
        };
        return !recovery_.urgent().empty() || !leaving_.empty() || std::ranges::any_of(ready_, open);
    }

    // When advance() has something to do; nothing while no result is awaited.
    std::optional<double> deadline() const;

    // The next collective that is done, in order of completion.
    std::optional<Ticket> next_completion();

    // Breaks the group. The first failure stays. From then on the engine sends nothing and touches no data.
    void fail(FailureCode code, const std::string& reason);
    const std::optional<Failure>& failure() const { return failure_; }

    EngineStats stats() const;
    Activity activity() const;

  private:
    Slot& slot_of(std::uint32_t chunk) { return slots_[chunk & (config_.job.slots - 1)]; }
    const Slot& slot_of(std::uint32_t chunk) const { return slots_[chunk & (config_.job.slots - 1)]; }

    // Starting chunks.
    bool anything_unfinished() const { return recovery_.outstanding() || anything_ready(); }
    bool anything_ready() const {
        return !leaving_.empty() || !std::ranges::all_of(ready_, &SlotList::empty);
    }
    void expect_results(double now);
    void place_collectives();
    void start_chunks(Collective& collective, std::uint32_t first, std::uint32_t count);
    void try_start(std::uint32_t chunk, Collective& guess);
    SlotList& ready_to(const Slot& slot) { return ready_[config_.destination_of(slot.chunk())]; }

    // Sending.
    bool in_window(const Slot& slot, unsigned before) const;
    bool window_limits() const;
    bool overtakes_packing(std::uint32_t chunk) const;
    bool may_leave(const Slot& slot, unsigned before) const {
        return in_window(slot, before) && (staged_.empty() || !overtakes_packing(slot.chunk()));
    }
    void release(std::size_t most, std::size_t bytes);
    void withdraw();
    void announce(Slot& slot);
    static void announce_block(Slot& slot, Collective& collective, std::size_t block);
    void announce_next(Slot& slot, std::size_t block);

    // Receiving.
    bool take(std::span<const std::byte> datagram, double now, bool congested);
    void hear(const Header& answer, double now);
    void refuse(Slot& slot, const Fault& fault);
    void finish_run(double now);
    void finish_chunk(Slot& slot, const Announcement& announced);
    void learn_exponent(Collective& collective, std::size_t block, const Announcement& announced);
    void learn_next(Collective& collective, std::size_t block, const Announcement& announced);
    void close(Collective& collective);
    void complete(Ticket ticket);

    void fail_chunk(FailureCode code, const Slot& slot, const std::string& reason);
    const Slot* oldest_unfinished() const;

    EngineConfig config_;
    ContributionCodec codec_;

    CollectiveQueue collectives_;
    std::vector<Collective*> staged_;  // not settled
    std::deque<Ticket> completions_;

    std::vector<Slot> slots_;
    std::vector<SlotList> ready_;  // by destination, the oldest chunk first
    SlotList leaving_;             // ready, and let out by the window, between to_send() and sent()
    std::uint32_t oldest_chunk_;   // that is not finished
    Recovery recovery_;            // the slots whose packets have left

    // Slots whose results have come one after the other and are not yet accounted for.
    struct Result {
        Slot* slot = nullptr;
        Announcement announced;
        bool congested = false;
    };
    std::vector<Result> run_;

    std::optional<Failure> failure_;
    EngineStats stats_;  // without those of recovery_
};

}  // namespace inagg

#endif
