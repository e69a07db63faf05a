// SPDX-License-Identifier: Apache-2.0
//
// Drives a compiled program from native code, so that a measurement sees the program and not Python.
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "../../p4/inagg_switch/native/program.h"

namespace {

void count_frame(void* ctx, std::uint32_t, const std::uint8_t*, std::size_t) {
    ++*static_cast<std::uint64_t*>(ctx);
}

}  // namespace

// Runs the frames in order, `rounds` times, one batch of them to a lock. Before every round the 4 bytes at
// `counter_offset` of each frame (not if it is negative) are set to the round's number, big-endian. Returns
// seconds.
extern "C" double isw_bench(const isw_api* api, void* program, const std::uint32_t* ports,
                            std::uint8_t* const* frames, const std::size_t* lengths, std::size_t count,
                            std::uint64_t first_round, std::uint64_t rounds, std::int64_t counter_offset,
                            std::uint64_t* sent) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t round = first_round; round < first_round + rounds; ++round) {
        api->lock(program);
        for (std::size_t i = 0; i < count; ++i) {
            if (counter_offset >= 0) {
                for (int b = 0; b < 4; ++b) {
                    frames[i][counter_offset + b] = static_cast<std::uint8_t>(round >> (24 - 8 * b));
                }
            }
            api->process(program, ports[i], frames[i], lengths[i], round, count_frame, sent);
        }
        api->unlock(program);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
