// SPDX-License-Identifier: Apache-2.0
//
// Writes the same few bytes to a stream socket at an interval, from its own thread. This sign of life does
// not depend on the program, whose threads may hold Python's GIL for any time.
#ifndef INAGG_PULSE_HPP
#define INAGG_PULSE_HPP

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace inagg {

class Pulse {
  public:
    // The caller owns the socket, and closes it after the pulse. `interval`: seconds.
    // Throws std::invalid_argument, std::system_error.
    Pulse(int socket, std::string beat, double interval);
    ~Pulse();
    Pulse(const Pulse&) = delete;
    Pulse& operator=(const Pulse&) = delete;

    // After it returns nothing is written. Any thread may call it, any number of times.
    void close();

  private:
    void run();
    bool send();

    const int socket_;
    const std::string beat_;
    const std::chrono::duration<double> interval_;
    const pid_t process_ = ::getpid();

    std::size_t sent_ = 0;  // bytes of the current beat; used by the thread only

    std::mutex mutex_;  // guards closing_
    std::condition_variable changed_;
    bool closing_ = false;
    std::mutex joining_;  // guards the joining of thread_
    std::thread thread_;
};

}  // namespace inagg

#endif
