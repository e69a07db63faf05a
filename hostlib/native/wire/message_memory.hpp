// SPDX-License-Identifier: Apache-2.0
//
// Who still needs what was received into a memory: results that another rank may lack stay where they came in
// (engine/kept_results.hpp), because copying each costs a worker 5% of its processor time.
#ifndef INAGG_MESSAGE_MEMORY_HPP
#define INAGG_MESSAGE_MEMORY_HPP

#include <atomic>
#include <cstddef>

namespace inagg {

// The thread that receives into the memory counts holds, and asks is_free() afterwards only. Other threads
// may count releases, also before the holds that they end.
class MessageMemory {
  public:
    void hold(int results) { held_.fetch_add(results, std::memory_order_relaxed); }
    void release(int results) { held_.fetch_sub(results, std::memory_order_release); }
    bool is_free() const { return held_.load(std::memory_order_acquire) == 0; }

  private:
    std::atomic<int> held_{0};
};

}  // namespace inagg

#endif
