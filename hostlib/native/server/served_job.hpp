// SPDX-License-Identifier: Apache-2.0
//
// The aggregator of one job in host memory, sans-I/O (protocol.md, 5.2, 5.6 and 5.7): packets of its members
// go in, or what a switch has made of them; results and answers come out, or, below another server, partial
// sums. It keeps two versions of the slots that are its share, each as the datagram that its result will be:
// results are sent from there, those of neighbouring slots as one message.
#ifndef INAGG_SERVED_JOB_HPP
#define INAGG_SERVED_JOB_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "wire/job.hpp"
#include "wire/wire.hpp"

namespace inagg {

struct ServedJobConfig {
    JobShape job;
    unsigned servers = 1;
    unsigned index = 0;    // the way of its chunks
    bool relayed = false;  // a switch combines contributions, and passes queries on
    // The bits of the ranks whose processes send to it, as workers or as servers below it; 0: of all workers.
    std::uint64_t members = 0;
    // The rank as which it sends partial sums to the server above; nothing: it is the root of its chunks.
    std::optional<unsigned> rank_above;
    // The rank in this server's process: its packets come past the switch. Of relayed jobs.
    std::optional<unsigned> home;

    // Throws std::invalid_argument.
    void validate() const;
    Ways ways() const { return {job.slots, servers}; }
    std::uint64_t all_members() const;
    // Bytes of memory that the job takes here (contract/inagg_contract/sizes.py).
    std::size_t memory() const;
};

// What became of a packet (protocol.md, 5.1 and 5.2). One that completes a chunk counts twice.
enum class Outcome : std::uint8_t {
    malformed,
    not_admitted,
    wrong_epoch,
    started,
    added,
    completed,
    result_resent,
    duplicate_pending,
    ahead,
    stale,
    overlapping,
    query_again,
    query_held,
    // Of a server below another.
    partial_sent,
    partial_resent,
    query_passed,
    result_kept,
    answer_passed,
    result_duplicate,
    result_unexpected,
};
inline constexpr std::array OUTCOME_NAMES{
    "malformed",        "not_admitted",      "wrong_epoch",    "started",      "added",       "completed",
    "result_resent",    "duplicate_pending", "ahead",          "stale",        "overlapping", "query_again",
    "query_held",       "partial_sent",      "partial_resent", "query_passed", "result_kept", "answer_passed",
    "result_duplicate", "result_unexpected",
};
using OutcomeCounts = std::array<std::uint64_t, OUTCOME_NAMES.size()>;

// Where a completed DATA chunk was summed. switches: one packet brought the sums of all workers, or of all
// but the one at home. both: some packet brought several workers'. servers: each packet brought one's.
enum class SummedIn : std::uint8_t { switches, both, servers };
inline constexpr std::array SUMMED_IN_NAMES{"switches", "both", "servers"};
using ChunkCounts = std::array<std::uint64_t, SUMMED_IN_NAMES.size()>;

class ServedJob {
  public:
    // Destinations: every member, in a relayed job the switch and the worker at home; the server above. The
    // others are ranks.
    static constexpr unsigned ALL = ~0U, ABOVE = ALL - 1;

    // Throws std::invalid_argument.
    explicit ServedJob(const ServedJobConfig& config);

    // Takes a datagram that has come from a member's address, in a relayed job from that at home; from the
    // switch; or from the server above. What is to leave is in replies() then. `congested`: it met a queue on
    // its way (RFC 3168).
    void receive(std::span<const std::byte> datagram, unsigned member, bool congested = false);
    void receive_relayed(std::span<const std::byte> datagram, bool congested = false);
    void receive_from_above(std::span<const std::byte> datagram, bool congested = false);

    // The datagrams to send now, in this order. They stand in this object's memory until the next receive()
    // of any datagram that follows clear_replies(). Those to ALL stay as they are until all members have
    // contributed to the chunk of the slot that follows theirs, and so have used them.
    std::span<const Outgoing> replies() const { return replies_; }
    void clear_replies();

    const OutcomeCounts& counts() const { return counts_; }
    // The completed DATA chunks.
    const ChunkCounts& chunks() const { return chunks_; }
    const ServedJobConfig& config() const { return config_; }

    // One version of a slot.
    struct Version {
        std::uint64_t members = 0;  // whose contributions are in; none: it has never been used
        std::uint32_t chunk = 0;
        std::uint32_t checksum = 0;
        Announcement announced = {};
        bool has_words = false;
        bool combined = false;  // some packet has brought contributions of several workers
        bool whole = false;     // it has brought those of all who use the switch
        bool final = false;     // it has the sum of the whole job
    };
    // The version that a chunk uses, and its words, if it has any; for tests. Throws std::invalid_argument if
    // the chunk is another server's.
    const Version& version(std::uint32_t chunk) const;
    std::span<const std::byte> words(std::uint32_t chunk) const;

  private:
    // A packet on its way up: whose contributions it has, or who asks; and with whose contributions the
    // asker's waits in a slot of the switch, 0 if in none.
    struct Packet {
        Header header;
        bool congested;
        std::uint64_t members;
        std::uint64_t waits_with = 0;
        std::span<const std::byte> words = {};
    };
    std::optional<Header> read(std::span<const std::byte> datagram, std::size_t extra) const;
    Outcome take(const Packet& packet);
    Outcome contribute(const Packet& packet, std::size_t place);
    Outcome answer(const Packet& query, const Version& version);
    Outcome take_from_above(std::span<const std::byte> datagram, const Header& header, bool congested);
    void keep(std::size_t place, const Header& result, std::span<const std::byte> words);
    void resend(std::size_t place, const Packet& packet);
    bool may_start(const Version& version, std::uint32_t chunk) const;
    void add(Version& version, const Header& header, std::span<const std::byte> words,
             std::span<std::byte> sums);
    void complete(std::size_t place, const Packet& packet);
    static void note_congestion(Version& version);
    bool is_partial(const Version& version) const { return version.members == all_ && !version.final; }
    // Whether it is the member on whose behalf this server asks the server above.
    bool asks_above(std::uint64_t member) const {
        return config_.rank_above && member == (all_ & (~all_ + 1));
    }
    std::span<const std::byte> in_place(std::size_t place, Kind kind, std::uint8_t rank);
    void write_header(const Version& version, Kind kind, std::uint8_t rank, std::span<std::byte> out) const;
    std::uint8_t rank_in_result(const Header& answered) const {
        return static_cast<std::uint8_t>(config_.home.value_or(answered.rank));
    }
    // Of a server below another: the rank of what it sends there.
    std::uint8_t rank_above() const { return static_cast<std::uint8_t>(config_.rank_above.value_or(0)); }
    void pass_on(Header header, unsigned destination);
    void count(Outcome outcome) { ++counts_[static_cast<std::size_t>(outcome)]; }
    bool is_own(std::uint32_t chunk) const { return ways_.of(chunk) == config_.index; }
    void send_to_all(std::size_t place, const Header& answered);
    void send_above(std::size_t place, const Header& answered);
    std::size_t place_of(std::uint32_t chunk) const;
    std::span<std::byte> datagram_at(std::size_t place) {
        return std::span(memory_).subspan(place * stride_, stride_);
    }

    ServedJobConfig config_;
    Ways ways_;
    std::size_t share_;   // slots here
    std::size_t stride_;  // bytes of a DATA packet
    std::uint64_t all_;   // the bits of all members
    std::uint64_t away_;  // of those who use the switch
    std::vector<Version> versions_;
    std::vector<std::byte> memory_;
    std::vector<Outgoing> replies_;
    std::deque<std::vector<std::byte>> apart_;  // the replies that stand in no version
    OutcomeCounts counts_{};
    ChunkCounts chunks_{};
};

}  // namespace inagg

#endif
