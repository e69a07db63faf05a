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
    Ways ways;                // that its chunks go, to the roots of a tree or to servers
    bool ways_apart = false;  // it sends to each of them; else to one switch, which knows the way
    RetransmissionPolicy policy;
    // The most chunks in flight; 0: S.
    std::uint32_t window_limit = 0;

    unsigned destinations() const { return ways_apart ? ways.count() : 1; }
    unsigned destination_of(std::uint32_t chunk) const { return ways_apart ? ways.of(chunk) : 0; }

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
