// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_SWITCH_PORTS_EPOLL_HPP
#define INAGG_SWITCH_PORTS_EPOLL_HPP

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <system_error>

namespace inagg::ports {

// The descriptors that a PacketLoop waits for, each with a token that its events carry. Closing a descriptor
// removes it.
class Epoll {
  public:
    // Throws std::system_error.
    Epoll() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
        if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "epoll");
    }
    ~Epoll() { close(); }
    Epoll(const Epoll&) = delete;
    Epoll& operator=(const Epoll&) = delete;

    // Throws std::system_error.
    void add(int fd, uint64_t token, uint32_t events) {
        if (control(EPOLL_CTL_ADD, fd, token, events) < 0) {
            throw std::system_error(errno, std::generic_category(), "epoll_ctl");
        }
    }
    void change(int fd, uint64_t token, uint32_t events) { control(EPOLL_CTL_MOD, fd, token, events); }
    // Returns the number of events; -1 if a signal came. `milliseconds`: -1 waits without an end.
    int wait(std::span<epoll_event> events, int milliseconds) const {
        return epoll_wait(fd_, events.data(), static_cast<int>(events.size()), milliseconds);
    }
    void close() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }

  private:
    int control(int operation, int fd, uint64_t token, uint32_t events) const {
        epoll_event event{};
        event.events = events;
        event.data.u64 = token;
        return epoll_ctl(fd_, operation, fd, &event);
    }

    int fd_;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_EPOLL_HPP
