// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_CONFIG_HPP
#define INAGG_CONFIG_HPP

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/collective.hpp"
#include "engine/rtt.hpp"
#include "wire/job.hpp"
#include "wire/wire.hpp"

namespace inagg {

struct EngineConfig {
    JobShape job;
    unsigned rank = 0;
    unsigned member = 0;      // of the switch that it sends to; in a star its rank
    Ways ways;                // that its chunks go, to the roots of a tree or to servers
    bool ways_apart = false;  // it sends to each of them; else to one switch, which knows the way
    // Of the switches: each has runs of RUN_CHUNKS chunks, and they overtake one another. A power of two.
    unsigned threads = 1;
    // Of this worker, in runs as well: each sends and receives the chunks of some. A power of two.
    unsigned packet_threads = 1;
    // The way whose chunks the server in this worker's own process sums: there they go past the switch (5.7),
    // and do not measure the network.
    std::optional<unsigned> home;
    RetransmissionPolicy policy;
    // Whether to keep the last result of each slot, for a change of way (6.4).
    bool keeps_results = false;
    // A silent way is reported in the stats. Otherwise it is a failure.
    bool outlasts_silence = false;
    // The most chunks in flight; 0: S.
    std::uint32_t window_limit = 0;

    // Of its packets: each way, or the switch and then the server at home.
    unsigned destinations() const { return ways_apart ? ways.count() : home ? 2 : 1; }
    unsigned destination_of(std::uint32_t chunk) const {
        return ways_apart ? ways.of(chunk) : at_home(chunk) ? 1 : 0;
    }
    // As which it sends a chunk: a server knows it by its rank.
    std::uint8_t sender_of(std::uint32_t chunk) const {
        return static_cast<std::uint8_t>(at_home(chunk) ? rank : member);
    }
    bool at_home(std::uint32_t chunk) const { return home && ways.of(chunk) == *home; }
    unsigned packet_thread_of(std::uint32_t chunk) const {
        return chunk / p4::RUN_CHUNKS & (packet_threads - 1);
    }
    // Chunks of different strands are in different threads, of a switch or of this worker. Messages are of
    // one strand.
    unsigned strands() const { return std::max(threads, packet_threads); }
    unsigned strand_of(std::uint32_t chunk) const { return chunk / p4::RUN_CHUNKS & (strands() - 1); }
    // Lines of chunks, of which no packet overtakes another: those of one strand that go the same way.
    unsigned lines() const { return ways.count() * strands(); }
    unsigned line_of(std::uint32_t chunk) const { return ways.of(chunk) * strands() + strand_of(chunk); }
    // Queues of chunks, each with a share of the window: of one packet thread, to one destination.
    unsigned queues() const { return destinations() * packet_threads; }
    unsigned queue_of(std::uint32_t chunk) const {
        return destination_of(chunk) * packet_threads + packet_thread_of(chunk);
    }

    // The most chunks in flight, S taken into account.
    std::uint32_t window_bound() const;

    // "job J, rank R", for messages.
    std::string who() const;

    // Throws std::invalid_argument.
    void validate() const;
    // Throws std::invalid_argument when the request cannot be run under this configuration.
    void validate(const Request& request) const;
    void validate(const Staging& staging) const;
};

}  // namespace inagg

#endif
