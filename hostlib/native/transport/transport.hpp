// SPDX-License-Identifier: Apache-2.0
//
// Runs an engine on UDP sockets, in its own thread: the packet thread. All public methods may be called from
// any thread.
//
// The packet thread owns the engine and the sockets; no other thread touches them while it runs. Other
// threads exchange commands and news with it through Shared, under one mutex. The packet thread takes that
// twice in each iteration of its loop, not for each packet.
#ifndef INAGG_TRANSPORT_HPP
#define INAGG_TRANSPORT_HPP

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "transport/own_server.hpp"
#include "transport/owned_thread.hpp"
#include "transport/udp_socket.hpp"
#include "transport/wakeup.hpp"

namespace inagg {

struct TransportStats {
    EngineStats engine;
    std::uint64_t send_calls = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t messages_sent = 0;  // each of one packet or several
    std::uint64_t messages_received = 0;
    std::uint64_t send_refusals = 0;   // EAGAIN and ENOBUFS, after which it tries again
    std::uint64_t network_errors = 0;  // ICMP errors and unreachable routes
    // Datagrams received at the job's multicast address; and at this worker's own since the last of those.
    std::uint64_t multicast_received = 0;
    std::uint64_t unicast_in_a_row = 0;
    bool segmentation = true;  // several datagrams a message (UDP_SEGMENT)
    std::uint64_t receive_buffer = 0;
    std::uint64_t receive_buffer_wanted = 0;
    std::array<double, ACTIVITIES> spent{};  // seconds, by Activity; idle time is not counted
    double peak_rate = 0;                    // of results while not idle: bytes of frames a second
    double processor = 0;                    // seconds that the packet thread ran
    double processor_wait = 0;               // seconds that it was runnable but had no processor
};

// Reads the processor times of a thread of this process. They stay unchanged if the kernel does not provide
// them, or if `thread` is 0.
void read_processor_times(pid_t thread, TransportStats& stats);

class GroupFailed : public std::runtime_error {
  public:
    explicit GroupFailed(Failure failure)
        : std::runtime_error(failure.message), failure_(std::move(failure)) {}
    const Failure& failure() const { return failure_; }

  private:
    Failure failure_;
};

// Where a worker's packets go, by Outgoing::destination, and where else results and answers may come from.
// own_server: the server in this process, which may be one of the destinations.
struct Peers {
    std::vector<sockaddr_in> destinations;
    std::vector<sockaddr_in> sources;
    std::shared_ptr<OwnServer> own_server;
};

class Transport {
  public:
    // Sends with `socket`. Receives with it and with `results`, which is bound to the job's multicast address
    // and connected. `peers`: without destinations if `socket` is connected, else it is prepared. `spin`:
    // seconds to poll them before it sleeps; pays off if every worker has its own core. Throws
    // std::invalid_argument, std::system_error.
    Transport(const EngineConfig& config, UdpSocket socket, std::optional<UdpSocket> results = {},
              Peers peers = {}, double spin = 0);
    ~Transport();
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    UdpAddress local_address() const { return local_address_; }
    // Whether this is a forked child's copy: it has no packet thread.
    bool forked() const { return thread_.forked(); }

    // Throws std::invalid_argument, GroupFailed.
    Ticket submit(const Request& request);

    // Call Staging's methods of the same names, and tell the engine. Throw std::invalid_argument,
    // GroupFailed.
    void scanned(Staging& staging, std::span<const std::int64_t> special_blocks,
                 std::span<const float> elements);
    void packed(Staging& staging, std::size_t blocks);
    // Waits until more than `known` or `summed` blocks are, or the collective is done. Nothing after the
    // timeout (seconds; none: no limit). Throws std::invalid_argument, GroupFailed.
    std::optional<Progress> progress(const Staging& staging, std::size_t known, std::size_t summed,
                                     std::optional<double> timeout);
    // Call them when the collective is done. Throw std::invalid_argument.
    const BlockFloats& special_sums(const Staging& staging) const;
    const BlockFloats& outlier_residuals(const Staging& staging) const;

    // False after the timeout. Throws std::invalid_argument, GroupFailed.
    bool wait(Ticket ticket, std::optional<double> timeout);
    // Makes next_done() return this ticket, once. Throws std::invalid_argument.
    void watch(Ticket ticket);
    // The next watched ticket that is done; nothing after the timeout. Throws GroupFailed when none is left.
    std::optional<Ticket> next_done(std::optional<double> timeout);

    // Breaks the group. After it returns the packet thread touches no data.
    void fail(const std::string& reason);
    std::optional<Failure> failure() const;
    TransportStats stats() const;
    // Ends the thread, and closes its descriptors.
    void close();

  private:
    using Command = std::function<void(Engine&, double now)>;
    struct Shared {
        std::vector<Command> commands;  // for the engine; dropped once it has failed
        bool closing = false;

        Ticket last_ticket = 0;
        std::set<Ticket> unfinished;
        std::set<Ticket> watched;  // those of `unfinished` that next_done() will return
        std::deque<Ticket> done;   // watched, and not yet returned
        std::optional<Failure> failure;
        TransportStats stats;
    };
    enum class Blocked { no, until_writable, for_a_moment };

    void leave_own_server();
    void loop();
    void ended();
    bool run_commands(double now);
    Blocked send(double now);
    Blocked judge_send_error(int error);
    void wait_for_events(Blocked blocked);
    int poll(std::span<pollfd> waited, double seconds) const;
    void gather() const;
    void receive();
    bool trusts(const sockaddr_in& source) const;
    Sent send_row(std::span<const Outgoing> datagrams);
    std::size_t receive_from(const UdpSocket& socket);
    void account(double now);
    void publish();
    void post(Command command);
    void check_alive() const;
    void check_ticket(Ticket ticket) const;
    template <typename Get>
    auto wait_for(std::condition_variable& news, std::unique_lock<std::mutex>& lock,
                  std::optional<double> timeout, Get get) -> decltype(get());

    const EngineConfig config_;
    const double spin_;
    const UdpAddress local_address_;
    Wakeup wakeup_;  // closed with mutex_ held

    // Used by the packet thread only.
    TransportStats stats_;
    UdpSocket socket_;
    std::optional<UdpSocket> results_;
    Peers peers_;
    const std::vector<bool> within_process_;  // by destination: it is the own server
    Mailbox mailbox_{wakeup_};                // of the own server's
    std::shared_ptr<const void> mail_memory_;
    Mail mail_;
    Engine engine_;
    std::vector<std::byte> packets_;  // room for one batch
    SendBatch sending_;
    ReceiveBatch receiving_;
    std::size_t received_ = 0;  // datagrams in the last call of receive()
    struct {
        bool own = false;
        bool results = false;
    } readable_;             // the sockets that may have datagrams
    bool too_long_ = false;  // the last send returned EMSGSIZE, perhaps after a forged ICMP error
    struct {
        Activity activity = Activity::idle;
        double since = 0;
        double measured = 0;     // seconds, towards the next measurement of the rate
        double frame_bytes = 0;  // received before it
    } account_;

    // Guards shared_, and `progress` of every Staging. Any thread takes it, for moments only.
    mutable std::mutex mutex_;
    std::condition_variable changed_;     // shared_.unfinished has shrunk, or there is a failure
    std::condition_variable done_;        // shared_.done has grown, or there is a failure
    std::condition_variable progressed_;  // a staged collective has progressed, or there is a failure
    Shared shared_;
    OwnedThread thread_{"inagg"};
};

}  // namespace inagg

#endif
