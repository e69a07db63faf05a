// SPDX-License-Identifier: Apache-2.0
//
// Wakes a thread that waits in poll().
#ifndef INAGG_WAKEUP_HPP
#define INAGG_WAKEUP_HPP

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "transport/udp_socket.hpp"

namespace inagg {

// An eventfd, readable from wake() until take().
class Wakeup {
  public:
    // Throws std::system_error.
    Wakeup() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (descriptor_.fd() < 0) {
            throw std::system_error(errno, std::generic_category(), "cannot make an eventfd");
        }
    }

    int fd() const { return descriptor_.fd(); }
    void wake() {
        const std::uint64_t one = 1;
        // It fails only if a wakeup is pending already.
        [[maybe_unused]] const ssize_t written = ::write(fd(), &one, sizeof one);
    }
    void take() {
        std::uint64_t wakeups;
        [[maybe_unused]] const ssize_t got = ::read(fd(), &wakeups, sizeof wakeups);
    }
    void close() { descriptor_.close(); }

  private:
    Descriptor descriptor_;
};

}  // namespace inagg

#endif
