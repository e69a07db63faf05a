// SPDX-License-Identifier: Apache-2.0
//
// A thread that belongs to one object, from start() to end().
#ifndef INAGG_OWNED_THREAD_HPP
#define INAGG_OWNED_THREAD_HPP

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace inagg {

// All public methods but start() may be called from any thread. The owner calls end() before any member that
// the body uses is destroyed, and before this is: a running thread that is destroyed ends the process.
class OwnedThread {
  public:
    // `name`: as the kernel shows it, at most 15 bytes.
    explicit OwnedThread(std::string name) : name_(std::move(name)) {}
    OwnedThread(const OwnedThread&) = delete;
    OwnedThread& operator=(const OwnedThread&) = delete;

    // Runs `body` and then `ended` in the thread, which takes no signals: those belong to the program's
    // threads. If `body` throws, failure() has the reason when `ended` runs. `ended` must not throw. Called
    // once. Throws std::system_error.
    void start(const std::function<void()>& body, const std::function<void()>& ended);

    // Calls `stop`, after which `body` must return; waits for the thread; calls `joined`. The next caller
    // waits for that, and changes nothing. A forked child has no thread to end.
    void end(const std::function<void()>& stop, const std::function<void()>& joined);

    // Whether this is a forked child's copy.
    bool forked() const { return ::getpid() != process_; }
    // Of the kernel; 0: not running.
    pid_t id() const { return id_; }
    // The text of the exception that ended `body`; nothing if it runs, or has returned, and in a forked
    // child.
    std::optional<std::string> failure() const;

  private:
    void run(const std::function<void()>& body, const std::function<void()>& ended);

    const std::string name_;
    const pid_t process_ = ::getpid();
    std::atomic<pid_t> id_ = 0;
    // Lock order: ending_mutex_, then the owner's locks, then failure_mutex_.
    mutable std::mutex failure_mutex_;  // guards failure_
    std::optional<std::string> failure_;
    std::mutex ending_mutex_;  // guards the joining of thread_; held by end() while it waits
    std::thread thread_;
};

}  // namespace inagg

#endif
