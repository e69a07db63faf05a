// SPDX-License-Identifier: Apache-2.0
#include "ports/bench.hpp"

#include <arpa/inet.h>

#include <chrono>
#include <cstring>

namespace inagg::ports {
namespace {

void count_packet(void* sent, uint32_t, const uint8_t*, size_t, size_t, size_t, int, uint32_t) {
    ++*static_cast<uint64_t*>(sent);
}

}  // namespace

BenchResult run_bench(const isw_api* api, void* program, std::vector<std::pair<uint32_t, std::string>> frames,
                      uint64_t first_pass, uint64_t passes, std::optional<size_t> counter_offset,
                      size_t run) {
    BenchResult result{0, 0};
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t pass = first_pass; pass < first_pass + passes; ++pass) {
        api->lock(program);
        for (size_t i = 0; i < frames.size(); ++i) {
            auto& [port, frame] = frames[i];
            const uint32_t number = htonl(static_cast<uint32_t>(pass * run + i % run));
            if (counter_offset) std::memcpy(frame.data() + *counter_offset, &number, sizeof number);
            api->process(program, port, reinterpret_cast<const uint8_t*>(frame.data()), frame.size(), pass,
                         nullptr, count_packet, nullptr, &result.sent);
        }
        api->unlock(program);
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result;
}

}  // namespace inagg::ports
