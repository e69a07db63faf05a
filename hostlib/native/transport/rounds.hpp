// SPDX-License-Identifier: Apache-2.0
//
// What sums for a worker in rounds that all ranks do together, without a switch or a server
// (protocol.md, 5.8). A round is three all-reduces of integers, which the caller does:
//
//   offer()           by slot: what this rank has; the bits of all ranks are ORed. A slot is agreed if no
//   rank
//                     misses it
//   contributions()   of the agreed slots: `peaks`, of which each rank takes the maximum, and `sums`, which
//   wrap
//                     around at 32 bits
//   finish()          takes what came of both: results for the worker
//
// A rank is in a round when its part of these calls has begun, and a round ends when all ranks are in it. So
// no rank may begin one that others never join, nor join rounds all the time in which no slot is agreed.
// After each round, the ranks that have the oldest chunk that some rank has offered, and that was not agreed,
// join the next round at once. The others lack this chunk or an older one. Each of them sends it some time
// (protocol.md, 6.2: the oldest unfinished chunk may always be sent), and joins when it has sent anything.
#ifndef INAGG_ROUNDS_HPP
#define INAGG_ROUNDS_HPP

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "transport/own_server.hpp"
#include "wire/job.hpp"
#include "wire/wire.hpp"

namespace inagg {

// Of the agreed slots in ascending order. peaks: the exponent of each and its check, and then the age of the
// oldest chunk that was not agreed. sums: the checksum of each, and its words, if some rank's contribution
// has words.
struct RoundParts {
    std::vector<std::int64_t> peaks;
    std::vector<std::int32_t> sums;
};

// One rank's slots, without I/O. It belongs to one thread at a time.
class RoundSlots {
  public:
    // next_chunks: by slot, the chunk that all ranks sum next. Throws std::invalid_argument.
    RoundSlots(const JobShape& job, std::span<const std::uint32_t> next_chunks);

    const JobShape& job() const { return job_; }
    // Takes a datagram of the worker's. Others are ignored.
    void receive(std::span<const std::byte> datagram);
    // What the worker is to get. Its memory changes with the next call of another method.
    std::span<const Outgoing> replies() const { return replies_; }
    void clear_replies();

    // Whether this rank is to join a round.
    bool wants_round() const { return waiting_ > 0 && (joins_at_once_ || news_); }
    std::vector<std::int32_t> offer();
    // `agreed`: the bits of all ranks. Throws std::invalid_argument.
    RoundParts contributions(std::span<const std::int32_t> agreed) const;
    void finish(std::span<const std::int32_t> agreed, std::span<const std::int64_t> peaks,
                std::span<const std::int32_t> sums);

  private:
    enum class State : std::uint8_t { unused, waiting, final };
    struct Slot {
        State state = State::unused;
        std::int64_t age = 0;  // of its next chunk, and of the waiting one: older chunks have lower ages
        Header header{};
        std::vector<std::byte> datagram;  // the contribution, then the result
    };

    Slot& slot_of(std::uint32_t chunk) { return slots_[chunk & (job_.slots - 1)]; }
    void answer(const Header& query);
    void take(const Header& contribution, std::span<const std::byte> datagram);
    std::optional<std::int64_t> oldest_left(std::span<const std::int32_t> agreed) const;
    void require_agreed(std::span<const std::int32_t> agreed) const;
    std::size_t sums_of(std::int32_t bits) const;
    std::size_t sums_of(std::span<const std::int32_t> agreed) const;

    JobShape job_;
    std::vector<Slot> slots_;
    std::size_t waiting_ = 0;     // slots
    bool news_ = false;           // a contribution has come since the last offer()
    bool joins_at_once_ = false;  // it has the oldest chunk that was not agreed in the last round
    std::vector<Outgoing> replies_;
    std::deque<std::array<std::byte, HEADER_BYTES>> answers_;
};

// The same for a worker's transport, to which it looks like a server in the process. All methods may be
// called from any thread; those of a round belong to one.
class Rounds final : public OwnServer {
  public:
    // Throws std::invalid_argument.
    Rounds(const JobShape& job, std::span<const std::uint32_t> next_chunks) : slots_(job, next_chunks) {}

    // No host's, so nothing that comes from the network counts as from here.
    UdpAddress local_address() const override { return {"0.0.0.0", 0}; }
    std::shared_ptr<const void> attach(std::uint16_t job, std::uint32_t epoch, unsigned rank,
                                       Mailbox& mailbox) override;
    void detach(const Mailbox& mailbox) override;
    void deliver(std::span<const Outgoing> datagrams) override;

    // Waits until this rank is to join a round. False: it is closed.
    bool wait();
    std::vector<std::int32_t> offer();
    RoundParts contributions(std::span<const std::int32_t> agreed) const;
    void finish(std::span<const std::int32_t> agreed, std::span<const std::int64_t> peaks,
                std::span<const std::int32_t> sums);
    // From now on the worker gets nothing.
    void close();

  private:
    void hand_over();

    mutable std::mutex mutex_;  // guards what follows
    RoundSlots slots_;
    Mailbox* mailbox_ = nullptr;
    bool closed_ = false;
    std::condition_variable changed_;  // a contribution has come, or it is closed
};

}  // namespace inagg

#endif
