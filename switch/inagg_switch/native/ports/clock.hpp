// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_SWITCH_PORTS_CLOCK_HPP
#define INAGG_SWITCH_PORTS_CLOCK_HPP

#include <chrono>
#include <cstdint>

namespace inagg::ports {

// Microseconds since it was made. Copies show the same time.
class Clock {
  public:
    uint64_t now_us() const {
        const auto elapsed = std::chrono::steady_clock::now() - started_;
        return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count());
    }

  private:
    std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CLOCK_HPP
