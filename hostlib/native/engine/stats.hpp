// SPDX-License-Identifier: Apache-2.0
//
// What an engine counts and measures. Times are seconds, bytes are of UDP payload.
#ifndef INAGG_STATS_HPP
#define INAGG_STATS_HPP

#include <cstddef>
#include <cstdint>
#include <optional>

namespace inagg {

// What an engine's time goes into.
enum class Activity {
    idle,       // there is no collective
    device,     // nothing can be sent before a device has packed it
    beginning,  // the oldest collective: not all ranks are known to have begun it
    window,     // there is more to send than the window lets out
    answers,    // all that can be sent is in flight
};
constexpr std::size_t ACTIVITIES = 5;

struct EngineStats {
    std::uint64_t packets_sent = 0;
    std::uint64_t bytes_sent = 0;
    std::uint64_t packets_received = 0;
    std::uint64_t bytes_received = 0;
    std::uint64_t retransmits = 0;  // contributions sent again
    std::uint64_t queries = 0;      // sent to ask what the switch has
    std::uint64_t probes = 0;       // those sent after a silence
    std::uint64_t duplicates_received = 0;
    std::uint64_t discarded = 0;
    std::uint64_t corrupt = 0;    // results of outstanding chunks that were not used
    std::uint64_t congested = 0;  // results that met a queue, or whose contributions did
    std::uint64_t chunks_completed = 0;
    std::uint64_t collectives_completed = 0;
    std::uint64_t special_blocks = 0;
    std::uint64_t wide_blocks = 0;
    std::uint64_t in_flight = 0;     // chunks sent whose result is awaited
    std::uint64_t window = 0;        // chunks
    std::uint64_t window_limit = 0;  // chunks; the window's largest size
    std::uint64_t rtt_samples = 0;
    double least_rtt = 0;                    // of the last seconds; 0 before the first sample
    double waited = 0;                       // total time until other ranks had begun a collective
    double longest_wait = 0;                 // of these times, for a collective with a context
    std::uint32_t longest_wait_context = 0;  // of that collective
    double silent = 0;  // total silence before probes, in collectives that all ranks had begun
    std::optional<std::uint32_t> silent_chunk;  // of a way that has been silent for the policy's time
    double srtt = 0;
    double rttvar = 0;
    double rto = 0;
};

}  // namespace inagg

#endif
