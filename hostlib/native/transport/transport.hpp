// SPDX-License-Identifier: Apache-2.0
//
// Runs an engine on UDP sockets, in threads of its own: the packet threads. All public methods may be called
// from any thread.
//
// One mutex guards the engine and what is shared of it. A packet thread has sockets of its own, which get the
// results of its runs of chunks. It holds the mutex for the engine's bookkeeping, a few times for each batch
// of messages, and not while it makes or checks lanes, or is in the kernel.
#ifndef INAGG_TRANSPORT_HPP
#define INAGG_TRANSPORT_HPP

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
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

// Of a packet thread, or the sum over all.
struct PacketCounts {
    std::uint64_t send_calls = 0;
    std::uint64_t receive_calls = 0;
    std::uint64_t messages_sent = 0;  // each of one packet or several
    std::uint64_t messages_received = 0;
    std::uint64_t send_refusals = 0;       // EAGAIN and ENOBUFS, after which it tries again
    std::uint64_t network_errors = 0;      // ICMP errors and unreachable routes
    std::uint64_t multicast_received = 0;  // datagrams at the job's multicast address
    double processor = 0;                  // seconds that the thread ran
    double processor_wait = 0;             // seconds that it was runnable but had no processor
    bool segmentation = true;              // several datagrams a message (UDP_SEGMENT)

    // Reads the processor times of a thread of this process. They stay unchanged if the kernel does not
    // provide them, or if `thread` is 0.
    void read_processor_times(pid_t thread);
    PacketCounts& operator+=(const PacketCounts& other);
};

struct TransportStats : PacketCounts {
    EngineStats engine;
    unsigned packet_threads = 1;
    std::uint64_t unicast_in_a_row = 0;  // awaited results at this worker's own address since one of those
    std::uint64_t receive_buffer = 0;
    std::uint64_t receive_buffer_wanted = 0;
    std::array<double, ACTIVITIES> spent{};  // seconds, by Activity; idle time is not counted
    double peak_rate = 0;                    // of results while not idle: bytes of frames a second
};

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

// The sockets of a packet thread. It sends with the first and receives with both; `results` is bound to the
// job's multicast address and connected.
struct Ends {
    UdpSocket socket;
    std::optional<UdpSocket> results;
};

class Transport {
  public:
    // `ends`: of each packet thread; those of several are steered. `peers`: without destinations if the
    // sockets are connected, else they are prepared. `spin`: seconds to poll them before a thread sleeps;
    // pays off if every worker has its own core. Throws std::invalid_argument, std::system_error.
    Transport(const EngineConfig& config, std::vector<Ends> ends, Peers peers = {}, double spin = 0);
    ~Transport();
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    UdpAddress local_address() const;
    // Whether this is a forked child's copy: it has no packet threads.
    bool forked() const { return threads_.front()->thread.forked(); }

    // Throws std::invalid_argument, GroupFailed.
    Ticket submit(const Request& request);
    // The floats of a Request that was not filled are in memory. Throws std::invalid_argument, GroupFailed.
    void filled(Ticket ticket);

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

    // A change of way, as Engine's. freeze() returns when no packet thread sends or receives any more, with
    // the next chunks; after a forgotten go_on() they stay so until close(). go_on() takes new sockets, at
    // most as many as at first; packet threads without one rest. All but kept() throw GroupFailed; fill() and
    // go_on() throw std::invalid_argument if it is not frozen. kept() is for a chunk that some rank still
    // lacks: results of others overwrite it. If the own server does not serve the job, go_on() throws and
    // leaves it frozen, without its old sockets.
    std::vector<std::uint32_t> freeze();
    std::vector<std::byte> kept(std::uint32_t chunk) const;
    bool fill(std::span<const std::byte> result);
    void go_on(const EngineConfig& config, std::vector<Ends> ends, Peers peers);

    // Breaks the group. After it returns the packet threads touch no data.
    void fail(const std::string& reason);
    std::optional<Failure> failure() const;
    TransportStats stats() const;
    // Ends the threads, and closes their descriptors.
    void close();

  private:
    // What is neither const nor guarded by mutex_ is for this thread only, and for go_on() while it is
    // parked.
    struct PacketThread {
        PacketThread(unsigned number_, Ends ends, std::size_t memory, std::size_t most_held)
            : number(number_),
              socket(std::move(ends.socket)),
              results(std::move(ends.results)),
              packets(memory),
              receiving(most_held),
              departures(number_) {}

        const unsigned number;
        UdpSocket socket;  // of a thread that rests: that of an earlier way, which gets nothing (take_all)
        std::optional<UdpSocket> results;
        Wakeup wakeup;                   // closed with mutex_ held
        bool parked = false;             // while the engine is frozen, or it rests; guarded by mutex_
        bool asleep = false;             // until there is something to send, or receive; guarded by mutex_
        PacketCounts published;          // guarded by mutex_
        std::vector<std::byte> packets;  // room for one batch
        SendBatch sending;
        ReceiveBatch receiving;
        Departures departures;
        Arrivals arrivals;
        PacketCounts counts;
        std::size_t received = 0;  // datagrams in the last call of receive()
        struct {
            bool own = false;
            bool results = false;
        } readable;             // the sockets that may have datagrams
        bool too_long = false;  // the last send returned EMSGSIZE, perhaps after a forged ICMP error
        OwnedThread thread{"inagg"};
    };
    struct Shared {
        bool closing = false;

        Ticket last_ticket = 0;
        std::set<Ticket> unfinished;
        std::set<Ticket> watched;  // those of `unfinished` that next_done() will return
        std::deque<Ticket> done;   // watched, and not yet returned
        std::optional<Failure> failure;
        TransportStats stats;
    };
    enum class Blocked { no, until_writable, for_a_moment };
    using Lock = std::unique_lock<std::mutex>;  // of mutex_
    class Unlocked;

    static double seconds_now();
    static std::vector<std::unique_ptr<PacketThread>> made_of(std::vector<Ends> ends,
                                                              const EngineConfig& config);
    EngineConfig bounded_config();
    bool all_parked() const;
    void park(PacketThread& self, Lock& lock);
    void require_frozen() const;
    void attach_own_server();
    void leave_own_server();
    void loop(PacketThread& self);
    void ended(PacketThread& self);
    Blocked send(PacketThread& self, Lock& lock, double now);
    Sent send_row(PacketThread& self, std::span<const Outgoing> datagrams);
    Blocked judge_send_error(PacketThread& self, int error);
    void wait_for_events(PacketThread& self, Lock& lock, Blocked blocked);
    int poll(std::span<pollfd> waited, double seconds) const;
    void gather(const PacketThread& self, Lock& lock) const;
    void receive(PacketThread& self, Lock& lock);
    void receive_mail(PacketThread& self, Lock& lock);
    std::size_t receive_from(PacketThread& self, const UdpSocket& socket, bool& readable, Lock& lock);
    std::size_t take(PacketThread& self, double now, Lock& lock);
    bool trusts(const sockaddr_in& source) const;
    void account(double now);
    void publish();
    void wake(const PacketThread* self);
    template <typename Call>
    void tell_engine(Call call);
    void check_alive() const;
    void check_ticket(Ticket ticket) const;
    template <typename Get>
    auto wait_for(std::condition_variable& news, std::unique_lock<std::mutex>& lock,
                  std::optional<double> timeout, Get get) -> decltype(get());

    // go_on() changes these while all packet threads are parked.
    EngineConfig config_;
    Peers peers_;
    std::vector<bool> within_process_;  // by destination: it is the own server
    UdpAddress local_address_;
    const double spin_;
    std::vector<std::unique_ptr<PacketThread>> threads_;
    // What an own server sends; used by the first packet thread, which is the only one then.
    Mailbox mailbox_;
    std::shared_ptr<const void> mail_memory_;
    Mail mail_;

    // Guards what follows, and `progress` of every Staging. Any thread takes it, for moments only.
    mutable std::mutex mutex_;
    Shared shared_;
    Engine engine_;
    unsigned beside_ = 0;  // packet threads that work on lanes of the engine's, without the mutex
    struct {
        Activity activity = Activity::idle;
        double since = 0;
        double measured = 0;     // seconds, towards the next measurement of the rate
        double frame_bytes = 0;  // received before it
    } account_;
    std::condition_variable changed_;     // shared_.unfinished has shrunk, or there is a failure
    std::condition_variable done_;        // shared_.done has grown, or there is a failure
    std::condition_variable progressed_;  // a staged collective has progressed, or there is a failure
    std::condition_variable parked_;      // a packet thread is parked, or there is a failure
    std::condition_variable resumed_;     // parked threads may go on, or the transport is closing
};

}  // namespace inagg

#endif
