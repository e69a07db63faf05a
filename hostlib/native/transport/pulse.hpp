// SPDX-License-Identifier: Apache-2.0
//
// Writes the same few bytes to a stream socket at an interval; of a socket that listens, to every connection,
// which it accepts. This sign of life does not depend on the program, whose threads may hold Python's GIL for
// any time. All pulses of a process share a thread, which ends with the last of them.
#ifndef INAGG_PULSE_HPP
#define INAGG_PULSE_HPP

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace inagg {

class Pulse {
  public:
    // The caller owns the socket, and closes it after the pulse. One that listens must not block; the pulse
    // owns its connections. `interval`: seconds. Throws std::invalid_argument, std::system_error.
    Pulse(int socket, std::string beat, double interval);
    ~Pulse();
    Pulse(const Pulse&) = delete;
    Pulse& operator=(const Pulse&) = delete;

    // After it returns nothing is written. Any thread may call it, any number of times.
    void close();

    // How late the last late beat of the process was, in seconds: by so much its threads did not run. 0 if
    // that ended more than `within` seconds ago, or the pulse is closed.
    double pause(double within);

  private:
    class Thread;
    static std::shared_ptr<Thread> thread_of_this_process();

    const pid_t process_ = ::getpid();
    std::mutex mutex_;                // guards thread_; before the thread's own
    std::shared_ptr<Thread> thread_;  // none: closed
    std::uint64_t id_ = 0;
};

}  // namespace inagg

#endif
