// SPDX-License-Identifier: Apache-2.0
//
// Runs an engine on a UDP socket, in a thread of its own. All public methods may be called from any thread.
//
// The thread owns the engine and the socket; nobody else touches them while it runs. What other threads and
// it tell one another stands in Shared, under one mutex that the thread takes once a round (not once a
// packet).
#ifndef INAGG_TRANSPORT_HPP
#define INAGG_TRANSPORT_HPP

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.hpp"
#include "transport/udp_socket.hpp"

namespace inagg {

struct TransportStats {
    EngineStats engine;
    std::uint64_t send_calls = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t send_refusals = 0;   // EAGAIN, ENOBUFS: tried again
    std::uint64_t network_errors = 0;  // ICMP errors and unreachable routes
    bool segmentation = true;          // several datagrams a message (UDP_SEGMENT)
    std::uint64_t receive_buffer = 0;
    std::uint64_t receive_buffer_wanted = 0;
    std::array<double, ACTIVITIES> spent{};  // seconds, by Activity; idle ones are not counted
    double peak_rate = 0;                    // of results, while it was not idle: bytes of frames a second
    double processor = 0;                    // seconds that the thread ran
    double processor_wait = 0;               // and that it could have, but waited for a processor
};

// Of a thread of this process; they stay as they are if the kernel does not tell, or if `thread` is 0.
void read_processor_times(pid_t thread, TransportStats& stats);

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
    // The socket is connected. `spin`: seconds to poll the socket before sleeping when there is nothing to
    // do; worth it where every worker has a core of its own. Throws std::invalid_argument, std::system_error.
    Transport(const EngineConfig& config, UdpSocket socket, double spin = 0);
    ~Transport();
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    UdpAddress local_address() const { return local_address_; }
    // Whether this is the copy of a forked child, which has everything but the threads.
    bool forked() const { return ::getpid() != process_; }

    // Throws std::invalid_argument, GroupFailed.
    Ticket submit(const Request& request);

    // What Staging's own methods of these names are told, at once; the engine hears of it. Throw
    // std::invalid_argument, GroupFailed.
    void scanned(Staging& staging, std::span<const std::int64_t> special_blocks,
                 std::span<const float> elements);
    void packed(Staging& staging, std::size_t blocks);
    // Waits until more blocks than given are known or summed, or the collective is done; nothing after the
    // timeout. Throws std::invalid_argument, GroupFailed.
    std::optional<Progress> progress(const Staging& staging, std::size_t known, std::size_t summed,
                                     std::optional<double> timeout);
    // Once done. Throws std::invalid_argument.
    const SpecialSums& special_sums(const Staging& staging) const;

    // False after the timeout (seconds; none waits for ever). Throws std::invalid_argument, GroupFailed.
    bool wait(Ticket ticket, std::optional<double> timeout);
    // Has next_done() tell of this ticket. Throws std::invalid_argument.
    void watch(Ticket ticket);
    // The next watched ticket that is done. Throws GroupFailed when there is none left.
    std::optional<Ticket> next_done(std::optional<double> timeout);

    // Breaks the group; on return the thread touches no data any more.
    void fail(const std::string& reason);
    std::optional<Failure> failure() const;
    TransportStats stats() const;
    // Ends the thread, and closes its descriptors.
    void close();

  private:
    using Order = std::function<void(Engine&, double now)>;
    struct Shared {
        std::vector<Order> orders;  // that the engine has not had yet; it has them until it fails
        bool closing = false;

        Ticket last_ticket = 0;
        std::set<Ticket> unfinished;
        std::set<Ticket> watched;  // of these
        std::deque<Ticket> done;   // watched, and not yet told
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
    int poll(std::span<pollfd> waited, double seconds) const;
    void gather() const;
    bool receive();
    void account(double now);
    void publish();
    void order(Order order);
    void wake();
    void check_alive() const;
    void check_ticket(Ticket ticket) const;
    template <typename Get>
    auto wait_for(std::condition_variable& news, std::unique_lock<std::mutex>& lock,
                  std::optional<double> timeout, Get get) -> decltype(get());

    const EngineConfig config_;
    const double spin_;
    const UdpAddress local_address_;
    Descriptor wakeup_;  // an eventfd; closed with mutex_ held
    const pid_t process_ = ::getpid();

    // Of the thread alone.
    TransportStats stats_;
    UdpSocket socket_;
    Engine engine_;
    std::vector<std::byte> packets_;  // room for one batch
    SendBatch sending_;
    ReceiveBatch receiving_;
    std::size_t received_ = 0;  // datagrams in the last batch
    bool too_long_ = false;     // so, says the last send, or a forged ICMP error did
    struct {
        Activity activity = Activity::idle;  // since:
        double since = 0;
        double measured = 0;     // seconds, towards the next measurement of the rate
        double frame_bytes = 0;  // received before it
    } account_;

    // Lock order: closing_mutex_ before mutex_.
    // Guards shared_, and `progress` of every Staging; held for moments only, by any thread.
    mutable std::mutex mutex_;
    std::condition_variable changed_;     // shared_.unfinished has shrunk, or there is a failure
    std::condition_variable told_;        // shared_.done has grown, or there is a failure
    std::condition_variable progressed_;  // a staged collective has, or there is a failure
    Shared shared_;
    std::mutex closing_mutex_;  // guards the joining of thread_; held by close() while it waits
    std::thread thread_;
    std::atomic<pid_t> thread_id_ = 0;  // 0: it does not run
};

}  // namespace inagg

#endif
