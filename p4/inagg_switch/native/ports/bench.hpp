// SPDX-License-Identifier: Apache-2.0
//
// Drives a program from native code, so that a measurement sees the program alone.
#ifndef INAGG_SWITCH_PORTS_BENCH_HPP
#define INAGG_SWITCH_PORTS_BENCH_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program.h"

namespace inagg::ports {

struct BenchResult {
    double seconds;
    uint64_t sent;  // packets that left
};

// Runs the (port, frame) pairs in order, `rounds` times, one round to a lock. Before each round the 4 bytes
// at `counter_offset` of every frame are set to the round's number, big-endian; all frames must be long
// enough.
BenchResult run_bench(const isw_api* api, void* program, std::vector<std::pair<uint32_t, std::string>> frames,
                      uint64_t first_round, uint64_t rounds, std::optional<size_t> counter_offset);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_BENCH_HPP
