// SPDX-License-Identifier: Apache-2.0
#include "transport/pulse.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <stdexcept>
#include <utility>

namespace inagg {

Pulse::Pulse(int socket, std::string beat, double interval)
    : socket_(socket), beat_(std::move(beat)), interval_(interval) {
    if (beat_.empty() || !(interval > 0 && interval < 1e9)) {
        throw std::invalid_argument("a pulse needs bytes to write and a positive interval");
    }
    thread_ = std::thread(&Pulse::run, this);
}

Pulse::~Pulse() {
    close();
    if (thread_.joinable()) {  // a forked child's copy: the thread is not in this process
        thread_.detach();
    }
}

void Pulse::close() {
    if (::getpid() != process_) {
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    changed_.notify_all();
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Pulse::run() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval_, [this] { return closing_; })) {
        lock.unlock();
        if (!send()) {
            return;
        }
        lock.lock();
    }
}

// False when the connection has ended. A full send buffer is no error: the peer has unread beats then.
bool Pulse::send() {
    const ssize_t count =
        ::send(socket_, beat_.data() + sent_, beat_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0) {
        return errno == EAGAIN || errno == ENOBUFS || errno == EINTR;
    }
    sent_ = (sent_ + static_cast<std::size_t>(count)) % beat_.size();
    return true;
}

}  // namespace inagg
