// SPDX-License-Identifier: Apache-2.0
//
// Runs a program from native code, without sockets and without Python, so that a benchmark measures only the
// program.
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
    double seconds;  // wall-clock time of all passes
    uint64_t sent;   // packets that the program emitted
};

// What to input: the (port, frame) pairs in order, `passes` times. Passes are numbered from `first_pass`; the
// number is also the time, in microseconds, that the program sees. With `counter_offset`, frame i of pass p
// first gets the number p * run + i % run, 4 bytes big-endian, at that offset; the caller makes sure that all
// frames are long enough.
struct BenchLoad {
    std::vector<std::pair<uint32_t, std::string>> frames;
    uint64_t first_pass;
    uint64_t passes;
    std::optional<size_t> counter_offset;
    size_t run;
};

// Runs a load through the program, on all of its threads at once, each of which has the frames that are
// steered to it (steering.hpp), in order. A thread's lock is held for its part of a pass.
BenchResult run_bench(const isw_api* api, void* program, uint32_t threads, const BenchLoad& load);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_BENCH_HPP
