// SPDX-License-Identifier: Apache-2.0
#include "transport/owned_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <exception>

namespace inagg {

void OwnedThread::start(const std::function<void()>& body, const std::function<void()>& ended) {
    thread_ = std::thread([this, body, ended] { run(body, ended); });
}

void OwnedThread::run(const std::function<void()>& body, const std::function<void()>& ended) {
    pthread_setname_np(pthread_self(), name_.c_str());
    id_ = gettid();
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    try {
        body();
    } catch (const std::exception& error) {
        const std::lock_guard lock(failure_mutex_);
        failure_ = error.what();
    }
    ended();
    id_ = 0;
}

void OwnedThread::end(const std::function<void()>& stop, const std::function<void()>& joined) {
    if (forked()) {
        if (thread_.joinable()) {
            thread_.detach();
        }
        return;
    }
    const std::lock_guard lock(ending_mutex_);
    if (!thread_.joinable()) {
        return;
    }
    stop();
    thread_.join();
    joined();
}

std::optional<std::string> OwnedThread::failure() const {
    // A forked child may have got the mutex locked.
    if (forked()) {
        return std::nullopt;
    }
    const std::lock_guard lock(failure_mutex_);
    return failure_;
}

}  // namespace inagg
