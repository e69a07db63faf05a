// SPDX-License-Identifier: Apache-2.0
#include "engine/config.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "wire/require.hpp"

namespace inagg {
namespace {

// Chunk numbers of what is queued must stay comparable (RFC 1982): well below 2^31.
constexpr std::size_t MAX_BLOCKS = std::size_t{1} << 28;
constexpr std::uint32_t MAX_SLOTS = std::uint32_t{1} << 20;
constexpr unsigned MAX_MEMBERS = 64;  // of a switch
constexpr unsigned MAX_WAYS = 128;
constexpr unsigned MAX_THREADS = 64;

}  // namespace

void RetransmissionPolicy::validate() const {
    require(std::isfinite(rto_max) && rto_min > 0 && rto_min <= rto_initial && rto_initial <= rto_max,
            "retransmission policy: 0 < rto_min_s <= rto_initial_s <= rto_max_s must hold, got " +
                std::to_string(rto_min) + ", " + std::to_string(rto_initial) + ", " +
                std::to_string(rto_max));
    require(std::isfinite(give_up) && give_up > 0,
            "retransmission policy: give_up_s must be positive, got " + std::to_string(give_up));
    require(silent > 0, "retransmission policy: silent_s must be positive, got " + std::to_string(silent));
}

void EngineConfig::validate() const {
    job.validate(MAX_SLOTS);
    require_workers(job.workers);
    require(rank < job.workers, "rank is " + std::to_string(rank) + " of " + std::to_string(job.workers) +
                                    " workers; ranks start at 0");
    require(member < MAX_MEMBERS, "member is " + std::to_string(member) + "; a switch has members 0 to " +
                                      std::to_string(MAX_MEMBERS - 1));
    require(1 <= ways.count() && ways.count() <= std::min(job.slots, MAX_WAYS),
            "there are " + std::to_string(ways.count()) + " roots or servers; there must be 1 to " +
                std::to_string(MAX_WAYS) + ", and no more than the " + std::to_string(job.slots) + " slots");
    require(std::has_single_bit(threads) && threads <= MAX_THREADS,
            "threads is " + std::to_string(threads) + "; it must be a power of two, at most " +
                std::to_string(MAX_THREADS));
    require(std::has_single_bit(packet_threads) &&
                (packet_threads == 1 || packet_threads * p4::RUN_CHUNKS <= job.slots),
            "packet_threads is " + std::to_string(packet_threads) +
                "; it must be a power of two, and there must be " + std::to_string(p4::RUN_CHUNKS) +
                " slots for each, of which there are " + std::to_string(job.slots));
    require(packet_threads == 1 || (!ways_apart && !home), "with servers a worker has one packet thread");
    require(!home || *home < ways.count(),
            "home is one of the ways, of which there are " + std::to_string(ways.count()));
    policy.validate();
}

std::uint32_t EngineConfig::window_bound() const {
    return window_limit == 0 ? job.slots : std::min(job.slots, window_limit);
}

std::string EngineConfig::who() const {
    return "job " + std::to_string(job.number) + ", rank " + std::to_string(rank);
}

void EngineConfig::validate(const Request& request) const {
    const LaneFormat format(request.lane_bits, job.workers);
    require(request.elements() / format.block_elements(job.words) < MAX_BLOCKS,
            "a collective of " + std::to_string(request.elements()) + " elements has too many blocks");
    if (const auto* staging = std::get_if<Staging*>(&request.data)) {
        validate(**staging);
        return;
    }
    const auto& floats = std::get<HostFloats>(request.data);
    require(reinterpret_cast<std::uintptr_t>(floats.memory.data()) % bytes_of(floats.type) == 0,
            "the array is not aligned for its floats");
    require(floats.residual.empty() || floats.type == FloatType::float32,
            "only an array of float32 has a residual");
    require(floats.residual.empty() || floats.residual.size() == floats.elements(),
            "the residual has " + std::to_string(floats.residual.size()) + " elements, the array " +
                std::to_string(floats.elements()));
}

void EngineConfig::validate(const Staging& staging) const {
    require(staging.format().workers() == job.workers && staging.words() == job.words,
            "the Staging is for " + std::to_string(staging.format().workers()) + " workers and packets of " +
                std::to_string(staging.words()) + " words; the job has " + std::to_string(job.workers) +
                " workers and " + std::to_string(job.words) + " words");
    staging.require_new();
}

}  // namespace inagg
