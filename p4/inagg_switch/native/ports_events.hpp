// SPDX-License-Identifier: Apache-2.0
//
// What the switch's thread has to say (an interface went away, an offload is on), for someone else to log:
// the thread itself never waits for a log.
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

class EventQueue {
  public:
    void push(Event event) {
        {
            const std::lock_guard guard(mutex_);
            if (closed_ || events_.size() >= kLimit) return;
            events_.push_back(std::move(event));
        }
        ready_.notify_one();
    }

    // The next event; nothing once the queue is closed and empty. Blocks.
    std::optional<Event> pop() {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return closed_ || !events_.empty(); });
        if (events_.empty()) return std::nullopt;
        Event event = std::move(events_.front());
        events_.pop_front();
        return event;
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
    std::deque<Event> events_;
    bool closed_ = false;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_EVENTS_HPP
