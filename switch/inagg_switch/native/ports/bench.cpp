// SPDX-License-Identifier: Apache-2.0
#include "ports/bench.hpp"

#include <arpa/inet.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "ports/steering.hpp"

namespace inagg::ports {
namespace {

void count_packet(void* sent, uint32_t, const uint8_t*, size_t, size_t, size_t, int, uint32_t) {
    ++*static_cast<uint64_t*>(sent);
}

// The frames of one thread.
class alignas(2 * 64) Worker {  // no line of cache with another's, nor its neighbour that is fetched with it
  public:
    Worker(const isw_api* api, void* program, uint32_t threads, uint32_t thread, const BenchLoad& load)
        : api_(api), program_(program), thread_(thread), load_(load), frames_(load.frames) {
        for (uint64_t pass = 0; pass < load.passes; ++pass) {
            for (size_t i = 0; i < frames_.size(); ++i) {
                const std::string& frame = numbered(load.first_pass + pass, i);
                const auto* bytes = reinterpret_cast<const uint8_t*>(frame.data());
                if (thread_of(api->steering, threads, bytes, frame.size()) == thread) {
                    mine_.push_back(static_cast<uint32_t>(i));
                }
            }
            ends_.push_back(mine_.size());
        }
    }

    void run() {
        auto next = mine_.cbegin();
        for (uint64_t pass = 0; pass < load_.passes; ++pass) {
            const uint64_t number = load_.first_pass + pass;
            const auto end = mine_.cbegin() + static_cast<ptrdiff_t>(ends_[pass]);
            api_->lock_thread(program_, thread_);
            for (; next != end; ++next) {
                const std::string& frame = numbered(number, *next);
                api_->process(program_, thread_, frames_[*next].first,
                              reinterpret_cast<const uint8_t*>(frame.data()), frame.size(), number, nullptr,
                              count_packet, nullptr, &sent_);
            }
            api_->unlock_thread(program_, thread_);
        }
    }
    uint64_t sent() const { return sent_; }

  private:
    // Frame i with its number of a pass.
    const std::string& numbered(uint64_t pass, size_t i) {
        std::string& frame = frames_[i].second;
        const uint32_t number = htonl(static_cast<uint32_t>(pass * load_.run + i % load_.run));
        if (load_.counter_offset) std::memcpy(frame.data() + *load_.counter_offset, &number, sizeof number);
        return frame;
    }

    const isw_api* const api_;
    void* const program_;
    const uint32_t thread_;
    const BenchLoad& load_;
    std::vector<std::pair<uint32_t, std::string>> frames_;
    std::vector<uint32_t> mine_;  // places in frames_, pass by pass
    std::vector<size_t> ends_;    // of each pass, in mine_
    uint64_t sent_ = 0;
};

}  // namespace

BenchResult run_bench(const isw_api* api, void* program, uint32_t threads, const BenchLoad& load) {
    std::vector<std::unique_ptr<Worker>> workers;
    for (uint32_t thread = 0; thread < threads; ++thread) {
        workers.push_back(std::make_unique<Worker>(api, program, threads, thread, load));
    }
    // They look rather than sleep: who is woken may begin on the processor of who woke it.
    std::atomic<uint32_t> ready{0};
    const auto wait_for_all = [&ready, threads] {
        ++ready;
        while (ready < threads) {
        }
    };
    std::vector<std::jthread> others;
    for (uint32_t thread = 1; thread < threads; ++thread) {
        others.emplace_back([&wait_for_all, &worker = *workers[thread]] {
            wait_for_all();
            worker.run();
        });
    }
    wait_for_all();
    const auto start = std::chrono::steady_clock::now();
    workers.front()->run();
    others.clear();
    BenchResult result{std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 0};
    for (const auto& worker : workers) result.sent += worker->sent();
    return result;
}

}  // namespace inagg::ports
