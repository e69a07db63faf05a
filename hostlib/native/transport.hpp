// SPDX-License-Identifier: Apache-2.0
//
// Runs an engine on a UDP socket, in a thread of its own. All public methods may be called from any thread.
//
// The thread owns the engine and the socket; nobody else touches them while it runs. What other threads and
// it tell one another stands in Shared, under one mutex that the thread takes once a round (not once a
// packet).
#ifndef INAGG_TRANSPORT_HPP
#define INAGG_TRANSPORT_HPP

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine.hpp"
#include "udp_socket.hpp"

namespace inagg {

struct TransportStats {
    EngineStats engine;
    std::uint64_t send_calls = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t send_refusals = 0;   // EAGAIN, ENOBUFS: tried again
    std::uint64_t network_errors = 0;  // ICMP errors and unreachable routes
    std::uint64_t receive_buffer = 0;
    std::uint64_t receive_buffer_wanted = 0;
};

class GroupFailed : public std::runtime_error {
  public:
    explicit GroupFailed(Failure failure)
        : std::runtime_error(failure.message), failure_(std::move(failure)) {}
    const Failure& failure() const { return failure_; }

  private:
    Failure failure_;
};

class Transport {
  public:
    // The socket is connected. Throws std::invalid_argument, std::system_error.
    Transport(const EngineConfig& config, UdpSocket socket);
    ~Transport();
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    UdpAddress local_address() const { return local_address_; }

    // Throws std::invalid_argument, GroupFailed.
    Ticket submit(const Request& request);
    // False after the timeout (seconds; none waits for ever). Throws std::invalid_argument, GroupFailed.
    bool wait(Ticket ticket, std::optional<double> timeout);
    // The next ticket that is done, but those that wait() returned. Throws GroupFailed when there is none
    // left.
    std::optional<Ticket> next_done(std::optional<double> timeout);

    // Breaks the group; on return the thread touches no data any more.
    void fail(const std::string& reason);
    std::optional<Failure> failure() const;
    TransportStats stats() const;
    void close();

  private:
    struct Shared {
        std::vector<Request> submitted;  // not yet in the engine, in order
        std::optional<std::string> fail_reason;
        bool closing = false;

        Ticket last_ticket = 0;
        std::set<Ticket> unfinished;
        std::deque<Ticket> done;  // not yet reported
        std::optional<Failure> failure;
        TransportStats stats;
    };
    enum class Blocked { no, until_writable, for_a_moment };

    void run();
    void loop();
    bool take_orders(double now);
    Blocked send(double now);
    Blocked judge_send_error(int error);
    void wait_for_events(Blocked blocked);
    void gather() const;
    bool receive();
    void publish();
    void wake();
    void check_alive() const;
    bool wait_until_changed(std::unique_lock<std::mutex>& lock,
                            const std::optional<std::chrono::steady_clock::time_point>& end);

    const EngineConfig config_;
    const UdpAddress local_address_;
    const Descriptor wakeup_;  // an eventfd
    const pid_t process_ = ::getpid();

    // Of the thread alone.
    UdpSocket socket_;
    Engine engine_;
    ReceiveBatch batch_;
    TransportStats stats_;

    // Lock order: closing_mutex_ before mutex_.
    mutable std::mutex mutex_;         // guards shared_; held for moments only, by any thread
    std::condition_variable changed_;  // shared_.done or shared_.failure has grown
    Shared shared_;
    std::mutex closing_mutex_;  // guards the joining of thread_; held by close() while it waits
    std::thread thread_;
};

}  // namespace inagg

#endif
