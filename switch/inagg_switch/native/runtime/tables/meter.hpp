// SPDX-License-Identifier: Apache-2.0
//
// Meters as BMv2 has them (src/bm_sim/meters.cpp): two-rate three-colour markers, colour blind (RFC 2698).
#ifndef INAGG_SWITCH_METER_HPP
#define INAGG_SWITCH_METER_HPP

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "program.h"

namespace isw {

enum Colour : std::uint32_t { kGreen = 0, kYellow = 1, kRed = 2 };

class Meter {
  public:
    // Returns the Colour. `now_us`: microseconds since the program's first packet. `input`: 1, or the
    // packet's length in bytes.
    std::uint32_t execute(std::uint64_t input, std::uint64_t now_us) {
        if (config_.is_set == 0) return kGreen;
        if (!take(peak_, config_.pir, config_.pburst, input, now_us)) return kRed;
        return take(committed_, config_.cir, config_.cburst, input, now_us) ? kGreen : kYellow;
    }
    int write(const isw_meter* config) {
        if (config == nullptr || config->is_set == 0) {
            config_ = isw_meter{};
            return 0;
        }
        if (config->cir > config->pir) return -EINVAL;
        config_ = *config;
        committed_ = Bucket{config->cburst, 0};
        peak_ = Bucket{config->pburst, 0};
        return 0;
    }
    const isw_meter& config() const { return config_; }

  private:
    struct Bucket {
        std::uint64_t tokens = 0;
        std::uint64_t made = 0;  // tokens generated between the program's first packet and the last one
    };
    static bool take(Bucket& bucket, std::uint64_t rate, std::uint64_t burst, std::uint64_t input,
                     std::uint64_t now_us) {
        // In doubles, like BMv2, which stores rates per microsecond. Beyond 64 bits the bucket is always
        // full.
        const double sum = static_cast<double>(now_us) * (static_cast<double>(rate) / 1000000.0);
        if (sum >= 0x1p64) {
            bucket.tokens = burst;
        } else {
            const auto made = static_cast<std::uint64_t>(sum);
            const std::uint64_t added = made > bucket.made ? made - bucket.made : 0;
            bucket.made = made;
            bucket.tokens = added > burst || bucket.tokens > burst - added ? burst : bucket.tokens + added;
        }
        if (bucket.tokens < input) return false;
        bucket.tokens -= input;
        return true;
    }

    isw_meter config_{};
    Bucket committed_;
    Bucket peak_;
};

// v1model's `meter`: an array of meters.
class Meters {
  public:
    Meters(std::uint64_t size, bool counts_bytes) : counts_bytes_(counts_bytes), cells_(size) {}

    // Writes the Colour to `colour`, unless the index is outside the array.
    template <class T>
    void execute(std::uint32_t index, T& colour, std::uint32_t length, std::uint64_t now_us) {
        if (index >= cells_.size()) return;
        colour = static_cast<T>(cells_[index].execute(counts_bytes_ ? length : 1, now_us));
    }
    int read(std::uint64_t index, isw_meter* config) const {
        if (index >= cells_.size()) return -ENOENT;
        *config = cells_[index].config();
        return 0;
    }
    int write(std::uint64_t index, const isw_meter* config) {
        return index >= cells_.size() ? -ENOENT : cells_[index].write(config);
    }

  private:
    bool counts_bytes_;
    std::vector<Meter> cells_;
};

}  // namespace isw

#endif  // INAGG_SWITCH_METER_HPP
