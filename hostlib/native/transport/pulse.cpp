// SPDX-License-Identifier: Apache-2.0
#include "transport/pulse.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/owned_thread.hpp"

namespace inagg {
namespace {

using Clock = std::chrono::steady_clock;

// The connections that a listener has accepted. Closed at the end.
class Accepted {
  public:
    Accepted() = default;
    Accepted(Accepted&&) = default;
    Accepted& operator=(Accepted&&) = delete;
    ~Accepted() {
        for (const int connection : connections_) {
            ::close(connection);
        }
    }

    void accept_from(int listener) {
        int connection;
        while ((connection = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            connections_.push_back(connection);
        }
    }

    // A connection that has ended stays: its owner may look at it until the pulse ends.
    void write(const std::string& bytes) const {
        for (const int connection : connections_) {
            [[maybe_unused]] const ssize_t count =
                ::send(connection, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }

  private:
    std::vector<int> connections_;
};

struct Beat {
    int socket;
    std::string bytes;
    Clock::duration interval;
    Clock::time_point next;
    bool listens;
    std::size_t sent = 0;  // bytes of the current beat
    Accepted accepted = {};

    // False when the connection has ended. A full send buffer is no error: the peer has unread beats then.
    bool send() {
        if (listens) {
            accepted.accept_from(socket);
            accepted.write(bytes);
            return true;
        }
        const ssize_t count =
            ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0) {
            return errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
        }
        sent = (sent + static_cast<std::size_t>(count)) % bytes.size();
        return true;
    }
};

constexpr auto LEAST_PAUSE = std::chrono::seconds(1);

bool listens(int socket) {
    int value = 0;
    socklen_t length = sizeof(value);
    return ::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &value, &length) == 0 && value != 0;
}

}  // namespace

class Pulse::Thread {
  public:
    Thread() {
        // A process that has no memory to accept a connection ends: without beats it would look stopped.
        thread_.start([this]() noexcept { run(); }, [] {});
    }

    ~Thread() {
        const auto stop = [this] {
            {
                const std::lock_guard lock(mutex_);
                closing_ = true;
            }
            changed_.notify_all();
        };
        thread_.end(stop, [] {});
    }

    Thread(const Thread&) = delete;
    Thread& operator=(const Thread&) = delete;

    bool forked() const { return thread_.forked(); }

    std::uint64_t add(Beat beat) {
        const std::lock_guard lock(mutex_);
        beats_.emplace(++last_, std::move(beat));
        changed_.notify_all();
        return last_;
    }

    void remove(std::uint64_t id) {
        const std::lock_guard lock(mutex_);  // the thread holds it while it sends, which never blocks
        beats_.erase(id);
    }

    double pause(double within) {
        const std::lock_guard lock(mutex_);
        const Clock::time_point now = Clock::now();
        look_for_pause(now);
        const bool recent = now - resumed_ <= std::chrono::duration<double>(within);
        return recent ? std::chrono::duration<double>(pause_).count() : 0;
    }

  private:
    void look_for_pause(Clock::time_point now) {
        if (now - due_ >= LEAST_PAUSE) {
            pause_ = now - due_;
            resumed_ = now;
        }
    }

    void run() {
        std::unique_lock lock(mutex_);
        while (!closing_) {
            const Clock::time_point now = Clock::now();
            look_for_pause(now);
            auto next = now + std::chrono::hours(1);
            for (auto each = beats_.begin(); each != beats_.end();) {
                Beat& beat = each->second;
                if (beat.next <= now) {
                    beat.next = now + beat.interval;
                    if (!beat.send()) {
                        each = beats_.erase(each);
                        continue;
                    }
                }
                next = std::min(next, beat.next);
                ++each;
            }
            due_ = next;
            changed_.wait_until(lock, next);
        }
    }

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    std::map<std::uint64_t, Beat> beats_;
    std::uint64_t last_ = 0;
    Clock::time_point due_ = Clock::now();  // of the next beat
    Clock::duration pause_{};               // until resumed_
    Clock::time_point resumed_{};
    bool closing_ = false;
    OwnedThread thread_{"inagg-pulse"};
};

std::shared_ptr<Pulse::Thread> Pulse::thread_of_this_process() {
    static std::mutex mutex;  // guards `current`
    static std::weak_ptr<Thread> current;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Thread> thread = current.lock();
    if (!thread || thread->forked()) {
        // A forked child never frees its copy: the thread is not in that process, and its locks may be held.
        thread = std::shared_ptr<Thread>(new Thread, [](Thread* ended) {
            if (!ended->forked()) {
                delete ended;
            }
        });
        current = thread;
    }
    return thread;
}

Pulse::Pulse(int socket, std::string beat, double interval) {
    if (beat.empty() || !(interval > 0 && interval < 1e9)) {
        throw std::invalid_argument("a pulse needs bytes to write and a positive interval");
    }
    const auto each = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(interval));
    thread_ = thread_of_this_process();
    id_ = thread_->add({socket, std::move(beat), each, Clock::now() + each, listens(socket)});
}

Pulse::~Pulse() { close(); }

double Pulse::pause(double within) {
    if (::getpid() != process_) {
        return 0;
    }
    const std::lock_guard lock(mutex_);
    return thread_ ? thread_->pause(within) : 0;
}

void Pulse::close() {
    if (::getpid() != process_) {
        return;
    }
    std::shared_ptr<Thread> thread;
    {
        const std::lock_guard lock(mutex_);
        thread = std::move(thread_);
        thread_.reset();
    }
    if (thread) {
        thread->remove(id_);
    }
}

}  // namespace inagg
