// SPDX-License-Identifier: Apache-2.0
//
// Queues from the packet loop's thread to other threads: events to log (an interface went away, a frame was
// dropped) and packets for the controller. The packet loop never waits for a reader.
#ifndef INAGG_SWITCH_PORTS_EVENTS_HPP
#define INAGG_SWITCH_PORTS_EVENTS_HPP

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

namespace inagg::ports {

// Something that happened on a port, to be logged.
struct Event {
    bool warning;
    uint32_t port;
    std::string message;
};

// A bounded first-in, first-out queue between threads. Any thread may call any function.
template <class T>
class WaitingQueue {
  public:
    // Appends the item. Returns false, and drops the item, if the queue is full or closed. Never blocks.
    bool push(T item) {
        {
            const std::lock_guard guard(mutex_);
            if (closed_ || items_.size() >= kLimit) return false;
            items_.push_back(std::move(item));
        }
        ready_.notify_one();
        return true;
    }

    // Waits for the oldest item and removes it. Returns nullopt once the queue is closed and empty.
    std::optional<T> pop() {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return closed_ || !items_.empty(); });
        if (items_.empty()) return std::nullopt;
        T item = std::move(items_.front());
        items_.pop_front();
        return item;
    }

    // Refuses later items and wakes all threads that wait in pop().
    void close() {
        {
            const std::lock_guard guard(mutex_);
            closed_ = true;
        }
        ready_.notify_all();
    }

  private:
    static constexpr size_t kLimit = 1000;  // items; an interface that flaps must not fill the memory

    std::mutex mutex_;  // innermost: nothing else is locked while it is held
    std::condition_variable ready_;
    std::deque<T> items_;
    bool closed_ = false;
};

using EventQueue = WaitingQueue<Event>;

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_EVENTS_HPP
