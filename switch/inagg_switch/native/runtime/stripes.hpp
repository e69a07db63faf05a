// SPDX-License-Identifier: Apache-2.0
//
// Stripes: parts of a program's registers, each of which one thread at a time may use (@stripe in P4).
#ifndef INAGG_SWITCH_STRIPES_HPP
#define INAGG_SWITCH_STRIPES_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace isw {

// A mutex for each stripe. Stripes whose numbers are equal modulo kCount share one.
class Stripes {
  public:
    static constexpr std::uint32_t kCount = 1024;

    std::mutex& mutex(std::uint32_t stripe) { return places_[stripe % kCount].mutex; }

  private:
    struct alignas(64) Place {
        std::mutex mutex;
    };
    std::array<Place, kCount> places_;
};

// The stripe that a thread is in. It stays there after a packet, because the next one mostly enters the same,
// until it enters another or leaves. It is never in two, so threads cannot wait for each other in a circle.
class StripeLock {
  public:
    // `stripes`: NULL if there is one thread.
    explicit StripeLock(Stripes* stripes) : stripes_(stripes) {}

    void enter(std::uint32_t stripe) {
        current_ = stripe;
        if (stripes_ == nullptr) return;
        std::mutex& wanted = stripes_->mutex(stripe);
        if (held_ == &wanted) return;
        leave();
        wanted.lock();
        held_ = &wanted;
    }
    void leave() {
        if (held_ != nullptr) std::exchange(held_, nullptr)->unlock();
    }
    // Leaves the stripe at the end of its block.
    class Leaving {
      public:
        explicit Leaving(StripeLock& stripe) : stripe_(stripe) {}
        ~Leaving() { stripe_.leave(); }
        Leaving(const Leaving&) = delete;
        Leaving& operator=(const Leaving&) = delete;

      private:
        StripeLock& stripe_;
    };
    // The number of the stripe that was entered last.
    std::uint32_t current() const { return current_; }

  private:
    Stripes* const stripes_;
    std::mutex* held_ = nullptr;
    std::uint32_t current_ = 0;
};

}  // namespace isw

#endif  // INAGG_SWITCH_STRIPES_HPP
