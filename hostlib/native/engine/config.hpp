// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_CONFIG_HPP
#define INAGG_CONFIG_HPP

#include <cstdint>
#include <string>

#include "engine/collective.hpp"
#include "engine/rtt.hpp"
#include "wire/job.hpp"

namespace inagg {

struct EngineConfig {
    JobShape job;
    unsigned rank = 0;
    unsigned member = 0;      // of the switch that it sends to; in a star its rank
    unsigned ways = 1;        // that its chunks go in turns, to the roots of a tree or to servers
    bool ways_apart = false;  // each has an address to which the worker sends
    RetransmissionPolicy policy;
    // The most chunks in flight; 0: S.
    std::uint32_t window_limit = 0;

    // Which of the ways a chunk goes (protocol.md, 5.5 and 5.6).
    unsigned way_of(std::uint32_t chunk) const { return (chunk & (job.slots - 1)) % ways; }

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
