// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_CONFIG_HPP
#define INAGG_CONFIG_HPP

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
    // The way whose chunks the server in this worker's own process sums: there they go past the switch (5.7),
    // and do not measure the network.
    std::optional<unsigned> home;
    RetransmissionPolicy policy;
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
    // The thread of a switch that has a chunk. Messages are for one thread.
    unsigned thread_of(std::uint32_t chunk) const { return chunk / p4::RUN_CHUNKS & (threads - 1); }
    // Lines of chunks, of which no packet overtakes another: those that go the same way, through one thread.
    unsigned lines() const { return ways.count() * threads; }
    unsigned line_of(std::uint32_t chunk) const { return ways.of(chunk) * threads + thread_of(chunk); }

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
