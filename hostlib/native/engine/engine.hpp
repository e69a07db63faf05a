// SPDX-License-Identifier: Apache-2.0
//
// One worker's side of the protocol (protocol.md, 3.2 to 4 and 6), sans-I/O: datagrams and the time go in;
// datagrams, completed collectives and the next deadline come out. It reads no clock, opens no socket, starts
// no thread, and belongs to one thread at a time, but for make(), read() and check(). Times are seconds, of
// any one clock.
//
// Several packet threads. Nearly all of the time goes into lanes. So packets leave in steps, choose(), make()
// and sent(), and results arrive in steps, read(), claim(), check() and finish(). Those that work on
// datagrams, make(), read() and check(), run while other threads use the engine. A slot is busy from choose()
// to sent() and from claim() to finish(), and other threads leave it alone. Each packet thread sends the
// chunks of its own runs; results it takes of any.
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

#include "engine/cache_line.hpp"
#include "engine/collective.hpp"
#include "engine/collective_queue.hpp"
#include "engine/config.hpp"
#include "engine/contribution.hpp"
#include "engine/failure.hpp"
#include "engine/kept_results.hpp"
#include "engine/recovery.hpp"
#include "engine/slot.hpp"
#include "engine/stats.hpp"
#include "wire/wire.hpp"

namespace inagg {

// Datagrams that a packet thread sends next, from choose() to sent().
class Departures {
  public:
    explicit Departures(unsigned packet_thread) : packet_thread_(packet_thread) {}
    // Once they are made.
    std::span<const Outgoing> datagrams() const { return datagrams_; }

  private:
    friend class Engine;
    struct Packet {
        Slot* slot;
        std::span<std::byte> datagram;
        bool made = false;
        std::uint32_t query = 0;  // its number; 0: the packet is a contribution
        // Whose exponent make() is to find and announce, and of which block; null: it is announced already.
        Collective* announced = nullptr;
        std::size_t block = 0;

        void announces(Collective& collective, std::size_t of_block) {
            announced = &collective;
            block = of_block;
        }
    };

    unsigned packet_thread_;
    std::vector<Packet> packets_;
    std::vector<Outgoing> datagrams_;
};

// Datagrams that a packet thread has received, from read() to finish(). The message must stay until then.
class Arrivals {
  public:
    bool empty() const { return datagrams_.empty() && discarded_ == 0; }

  private:
    friend class Engine;
    struct Datagram {
        Header header;
        bool congested;
        bool faulty = false;
        bool taken = false;
        std::span<const std::byte> words;
        MessageMemory* memory;  // as read() has it
        Slot* slot = nullptr;   // of a result that has been claimed

        std::span<const std::byte> whole() const {
            return {words.data() - HEADER_BYTES, HEADER_BYTES + words.size()};
        }
    };
    std::vector<Datagram> datagrams_;
    std::size_t discarded_ = 0;
};

class Engine {
  public:
    // Throws std::invalid_argument.
    explicit Engine(const EngineConfig& config);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Queues a collective that the configuration has validated. The caller numbers its collectives 1, 2, 3...
    // Must not be called after a failure.
    void submit(Ticket ticket, const Request& request, double now);

    // The floats of a Request that was not filled are in memory, or the exponents of a Staging.
    void filled(Ticket ticket, double now);
    // A staged collective: the device has packed the lanes of the first `blocks`.
    void packed(Ticket ticket, std::size_t blocks, double now);
    // Writes to each Staging how far its collective is; true if that is news. After a failure it does so once
    // more, and then never again. A Staging must live until then, or until it says that its collective is
    // done.
    bool report_progress();

    // Adds a message from the aggregator's address to `arrivals`: datagrams of `datagram_bytes`, of which the
    // last may be shorter. `congested`: they met a queue on their way (RFC 3168). `memory`: what the message
    // lies in, if results may stay there: not only until finish(), but as long as they hold on to it.
    void read(std::span<const std::byte> message, std::size_t datagram_bytes, bool congested,
              Arrivals& arrivals, MessageMemory* memory = nullptr) const;
    // Takes answers, and the slots of results, unless another thread has them: such a result is lost.
    void claim(Arrivals& arrivals, double now);
    // Compares the results with what was sent, and takes the lanes of most.
    void check(Arrivals& arrivals) const;
    // Moves on. `arrivals` is empty afterwards. Returns the number of awaited results.
    std::size_t finish(Arrivals& arrivals, double now);
    // All four.
    void receive(std::span<const std::byte> message, std::size_t datagram_bytes, double now,
                 bool congested = false);

    // Fires the timers that are due.
    void advance(double now);

    // Chooses the datagrams that a packet thread sends next: at most so many, and as many as fit into
    // `memory`, one behind the other. It has room for one at least. Datagrams of staged blocks stand in their
    // Staging instead. All are of one strand (config.hpp). If the ways are apart, each datagram's destination
    // is its way, and new chunks of one way are together.
    void choose(std::span<std::byte> memory, std::size_t most, Departures& departures);
    // Makes them.
    void make(Departures& departures) const;
    // The first `count` of them have left, and the others are forgotten.
    void sent(Departures& departures, std::size_t count, double now);
    bool anything_to_send(unsigned packet_thread) const;

    // When advance() has something to do; nothing while no result is awaited.
    std::optional<double> deadline() const;

    // A change of way (protocol.md, 6.4). freeze() ends sending and receiving. When each packet thread is
    // past sent() and finish(), the ranks exchange next_chunks(), by slot the chunk that each is to complete
    // next, and who is one behind takes the result that another rank has kept(). go_on() sends what is
    // outstanding again, on the way that `config` says. Its slots, words, workers and rank are those of
    // before. Throws std::invalid_argument.
    void freeze() { frozen_ = true; }
    bool frozen() const { return frozen_; }
    std::vector<std::uint32_t> next_chunks() const;
    // Of the slot of a chunk, the last result; empty before the first, or if the engine keeps none.
    std::span<const std::byte> kept(std::uint32_t chunk) const;
    // False: this rank does not lack it, or it is no right result.
    bool fill(std::span<const std::byte> datagram, double now);
    void go_on(const EngineConfig& config, double now);
    // What go_on() requires. Throws std::invalid_argument.
    void require_same_job(const EngineConfig& config) const;

    // The next collective that is done, in order of completion.
    std::optional<Ticket> next_completion();

    // Breaks the group. The first failure stays. From then on the engine sends nothing and touches no data.
    void fail(FailureCode code, const std::string& reason);
    const std::optional<Failure>& failure() const { return failure_; }

    EngineStats stats() const;
    unsigned window() const { return recovery_.window(); }
    Activity activity() const;

  private:
    Slot& slot_of(std::uint32_t chunk) { return slots_[chunk & (config_.job.slots - 1)]; }
    const Slot& slot_of(std::uint32_t chunk) const { return slots_[chunk & (config_.job.slots - 1)]; }

    // Starting chunks.
    bool anything_unfinished() const { return recovery_.outstanding() || anything_ready(); }
    bool anything_ready() const {
        return !std::ranges::all_of(leaving_, &SlotList::empty) ||
               !std::ranges::all_of(ready_, &SlotList::empty);
    }
    void expect_results(double now);
    void place_collectives();
    void start_chunks(Collective& collective, std::uint32_t first, std::uint32_t count);
    void try_start(std::uint32_t chunk, Collective& guess);
    SlotList& ready_with(const Slot& slot) { return ready_[config_.queue_of(slot.chunk())]; }

    // Sending.
    bool in_window(const Slot& slot, unsigned before) const;
    bool window_limits() const;
    bool overtakes_packing(std::uint32_t chunk) const;
    bool may_leave(const Slot& slot, unsigned before) const {
        return in_window(slot, before) && (staged_.empty() || !overtakes_packing(slot.chunk()));
    }
    bool urgent_to(const Slot& slot, unsigned packet_thread) const {
        return config_.packet_thread_of(slot.chunk()) == packet_thread && !slot.busy();
    }
    void withdraw(unsigned packet_thread);
    void add(Slot& slot, std::span<std::byte> datagram, Departures& departures);
    void plan_announcement(Departures::Packet& packet);
    void plan_next(Departures::Packet& packet, std::size_t block);

    // Receiving.
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

    alignas(CACHE_LINES_APART) CollectiveQueue collectives_;
    std::vector<Collective*> staged_;  // not settled
    std::deque<Ticket> completions_;

    std::vector<Slot> slots_;
    std::vector<SlotList> ready_;    // by queue, the oldest chunk first
    std::vector<SlotList> leaving_;  // by packet thread: ready, and let out by the window
    std::uint32_t oldest_chunk_;     // that is not finished
    Recovery recovery_;              // the slots whose packets have left

    // Slots whose results have come one after the other and are not yet accounted for.
    struct Result {
        Slot* slot = nullptr;
        Announcement announced;
        bool congested = false;
    };
    std::vector<Result> run_;

    bool frozen_ = false;
    std::optional<KeptResults> kept_;

    std::optional<Failure> failure_;
    EngineStats stats_;  // without those of recovery_
};

}  // namespace inagg

#endif
