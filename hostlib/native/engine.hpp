// SPDX-License-Identifier: Apache-2.0
//
// One worker's side of the protocol (protocol.md, 3.2 to 4 and 6), sans-IO: it is given datagrams and the
// time, and returns datagrams to send, completed collectives and its next deadline. It reads no clock, opens
// no socket, starts no thread, and belongs to one thread at a time. Times are seconds, of any one clock.
//
// How it works. Chunk c uses slot c mod S; a slot sends its chunks one after another, each when the last
// one's result is in and, for lanes, their exponent is known. So all that ever happens is: a result arrives,
// its slot moves on by S chunks, and those chunks that waited for what it told are tried (try_start). A slot
// is idle, in the send queue, or in a timer list; each list is in order of time, so that only heads have to
// be looked at.
#ifndef INAGG_ENGINE_HPP
#define INAGG_ENGINE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective.hpp"
#include "rtt.hpp"
#include "slot.hpp"
#include "wire.hpp"

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

    // Throws std::invalid_argument.
    void validate() const;
    // Throws std::invalid_argument when the request cannot be run under this configuration.
    void validate(const Request& request) const;
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

// Bytes are of UDP payload.
struct EngineStats {
    std::uint64_t packets_sent = 0;
    std::uint64_t bytes_sent = 0;
    std::uint64_t packets_received = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t retransmits = 0;
    std::uint64_t duplicates_received = 0;
    std::uint64_t discarded = 0;
    std::uint64_t chunks_completed = 0;
    std::uint64_t collectives_completed = 0;
    std::uint64_t special_blocks = 0;
    std::uint64_t in_flight = 0;
    std::uint64_t rtt_samples = 0;
    double srtt = 0;
    double rttvar = 0;
    double rto = 0;
};

class Engine {
  public:
    // Throws std::invalid_argument.
    explicit Engine(const EngineConfig& config);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Queues a collective. Throws std::invalid_argument; must not be called after a failure.
    Ticket submit(const Request& request, double now);

    // A datagram from the aggregator's address.
    void receive(std::span<const std::byte> datagram, double now);

    // Fires the timers that are due.
    void advance(double now);

    // The first datagrams of the send queue, as many as fit `out`; returns how many. They stay valid until
    // the next call of anything but to_send() and sent().
    std::size_t to_send(std::span<std::span<const std::byte>> out) const;
    // The first `count` of those have left.
    void sent(std::size_t count, double now);
    bool anything_to_send() const { return !send_queue_.empty(); }

    // When advance() has something to do; nothing while nothing is outstanding.
    std::optional<double> deadline() const;

    // The next collective that is done, in order of completion.
    std::optional<Ticket> next_completion();

    // Breaks the group; the first failure stays. From then on nothing is sent, and no data is touched.
    void fail(FailureCode code, const std::string& reason);
    const std::optional<Failure>& failure() const { return failure_; }

    EngineStats stats() const;

  private:
    struct AlignedDelete {
        void operator()(std::byte* memory) const;
    };
    static constexpr std::size_t MAX_BACKOFF = 30;

    std::uint32_t index_of(std::uint32_t chunk) const { return chunk & (config_.slots - 1); }
    Slot& slot_of(std::uint32_t chunk) { return slots_[index_of(chunk)]; }
    std::span<std::byte> header_of(const Slot& slot);
    std::span<std::byte> words_of(const Slot& slot);

    void place_collectives();
    void start_chunks(std::uint32_t first, std::uint32_t count);
    Collective* find(std::uint32_t chunk);
    void try_start(std::uint32_t chunk);
    void build(Slot& slot, Collective& collective, Assignment assignment);
    void enqueue(Slot& slot);
    void start_timer(Slot& slot, std::size_t backoff);
    void unlist(Slot& slot);
    void queue_again(Slot& slot);

    bool for_us(const Header& header, std::size_t bytes) const;
    bool check_header(const Slot& slot, const Header& header);
    bool take_words(const Slot& slot, const Header& header, std::span<const std::byte> words);
    void end_longer_waits();
    void measure_rtt(const Slot& slot, double now);
    void move_on(Slot& slot, const Header& header);
    void learn_exponent(Collective& collective, std::size_t block, const Header& header);
    void complete(Ticket ticket);
    void drop_finished();

    void fail_chunk(FailureCode code, const Slot& slot, const std::string& reason);
    const Slot* oldest_outstanding() const;
    double expiry(const Slot& slot) const;
    std::string who() const;

    EngineConfig config_;
    std::size_t datagram_stride_;
    std::unique_ptr<std::byte, AlignedDelete> datagrams_;  // one a slot

    std::deque<Collective> collectives_;  // unfinished ones, in order; finished ones behind an unfinished one
    std::size_t placed_ = 0;              // the first so many of them know their base
    std::uint32_t next_base_;
    bool next_base_known_ = true;
    Ticket last_ticket_ = 0;
    std::deque<Ticket> completions_;

    std::vector<Slot> slots_;
    SlotList send_queue_;
    std::array<SlotList, MAX_BACKOFF + 1> waiting_;  // by back-off, each in the order of sending
    std::uint64_t backoffs_ = 0;                     // bit k: waiting_[k] is not empty
    RttEstimator rtt_;
    double unmeasured_since_ = 0;  // the last time that an RTT was measured, or something became outstanding
    double quiet_since_ = 0;  // the last time that anything was received, or something became outstanding

    std::optional<Failure> failure_;
    EngineStats stats_;
};

}  // namespace inagg

#endif
