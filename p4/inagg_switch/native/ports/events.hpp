// SPDX-License-Identifier: Apache-2.0
//
// What the switch's thread has for others: something to log (an interface went away, an offload is on), and
// packets for the controller. The thread itself never waits for them.
#ifndef INAGG_SWITCH_PORTS_EVENTS_HPP
#define INAGG_SWITCH_PORTS_EVENTS_HPP

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

namespace inagg::ports {

struct Event {
    bool warning;
    uint32_t port;
    std::string message;
};

// What does not fit any more is lost.
template <class T>
class WaitingQueue {
  public:
    // Whether it fitted.
    bool push(T item) {
        {
            const std::lock_guard guard(mutex_);
            if (closed_ || items_.size() >= kLimit) return false;
            items_.push_back(std::move(item));
        }
        ready_.notify_one();
        return true;
    }

    // The next item; nothing once the queue is closed and empty. Blocks.
    std::optional<T> pop() {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return closed_ || !items_.empty(); });
        if (items_.empty()) return std::nullopt;
        T item = std::move(items_.front());
        items_.pop_front();
        return item;
    }

    void close() {
        {
            const std::lock_guard guard(mutex_);
            closed_ = true;
        }
        ready_.notify_all();
    }

  private:
    static constexpr size_t kLimit = 1000;  // an interface that flaps must not fill the memory

    std::mutex mutex_;  // innermost: nothing else is locked while it is held
    std::condition_variable ready_;
    std::deque<T> items_;
    bool closed_ = false;
};

using EventQueue = WaitingQueue<Event>;

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_EVENTS_HPP
