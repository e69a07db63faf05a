// SPDX-License-Identifier: Apache-2.0
//
// An aggregation server: sums for many jobs on one UDP socket, in a thread of its own. All public methods may
// be called from any thread. If its socket or memory fails, the thread ends and failure() has the reason: its
// owner tells the ranks of its jobs.
//
// A worker of the same process is attached: its packets come by deliver(), and what is for it goes to its
// mailbox. Its thread adds the packets itself, and sends what they complete, if nobody else is adding at that
// moment; else it leaves them in the inbox, where whoever is adding finds them. So it does not wait for the
// server's thread, which need not wake up for them.
#ifndef INAGG_SERVER_HPP
#define INAGG_SERVER_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/served_job.hpp"
#include "transport/own_server.hpp"
#include "transport/owned_thread.hpp"
#include "transport/udp_socket.hpp"
#include "transport/wakeup.hpp"

namespace inagg {

struct ServerStats {
    std::size_t memory = 0;        // bytes that the jobs take
    std::uint64_t unknown = 0;     // datagrams of no job that it serves, or from none of its workers
    std::uint64_t send_drops = 0;  // datagrams that the kernel would not take
    std::map<std::uint16_t, OutcomeCounts> jobs;
    std::map<std::uint16_t, ChunkCounts> chunks;  // by job
};

// The share of a job that a server has in one way of its chunks.
struct ServedPart {
    ServedJobConfig config;
    // Of the members, by rank: where a worker's packets come from, or those of a server below.
    std::map<unsigned, UdpAddress> members;
    // The switch of a relayed job, or the server above.
    std::optional<UdpAddress> beyond;

    // Throws std::invalid_argument.
    void validate() const;
};

class Server : public OwnServer {
  public:
    // `memory`: the most bytes that jobs may take. Throws std::system_error.
    Server(UdpSocket socket, std::size_t memory);
    ~Server() override;

    UdpAddress local_address() const override { return local_address_; }
    // Whether this is a forked child's copy: it has no thread.
    bool forked() const { return thread_.forked(); }
    // Why the thread has ended though nobody has closed the server; nothing if it has not.
    std::optional<std::string> failure() const { return thread_.failure(); }

    // Admits a job's packets. `parts`: of one job, each of another way. It replaces an older job of the same
    // number; the same job again changes nothing. Throws std::invalid_argument, and std::length_error if
    // there is not enough memory. This and the next three throw std::runtime_error once the thread has ended.
    void serve(std::span<const ServedPart> parts);
    // Forgets a job. Nothing happens if it does not serve it.
    void drop(std::uint16_t job, std::uint32_t epoch);
    ServerStats stats();
    // What it has summed for a job; nothing if it does not serve it.
    std::optional<ChunkCounts> chunks(std::uint16_t job, std::uint32_t epoch);
    // See OwnServer. Once the thread has ended, deliver() does nothing.
    std::shared_ptr<const void> attach(std::uint16_t job, std::uint32_t epoch, unsigned rank,
                                       Mailbox& mailbox) override;
    void detach(const Mailbox& mailbox) override;
    void deliver(std::span<const Outgoing> datagrams) override;
    // Ends the thread, and closes the socket.
    void close();

  private:
    // A part of a job that it serves.
    struct Part {
        explicit Part(const ServedPart& part);

        ServedJob sums;
        // Of the members, by rank, none of others; and behind them of what is beyond, if there is anything.
        std::vector<sockaddr_in> addresses;
        std::vector<unsigned> receivers;  // of results for all, by address

        const ServedJobConfig& config() const { return sums.config(); }
        unsigned beyond() const { return config().job.workers; }
    };
    struct Served {
        std::vector<Part> parts;
        std::vector<std::size_t> of_way;  // the part of each way; of one that has none the first

        // The worker that is attached, and its mailbox.
        std::optional<unsigned> own_rank = std::nullopt;
        Mailbox* mailbox = nullptr;

        const JobShape& job() const { return parts.front().config().job; }
        std::size_t memory() const;
        ChunkCounts chunks() const;
        Part& part_of(std::uint32_t chunk);
    };

    void loop();
    void ended();
    std::string why_ended() const;
    void wait();
    void receive();
    // Where datagrams come from: a socket's address, or the worker that is attached (none).
    struct Source {
        const sockaddr_in* address = nullptr;
        bool congested = false;
    };
    void take(std::span<const std::byte> message, std::size_t datagram_bytes, Source source);
    bool take(Served& served, Part& part, std::span<const std::byte> datagram, unsigned rank, Source source);
    bool take_if_free(std::span<const Outgoing> datagrams);
    void take_inbox();
    void take_inbox_if_free();
    void with_sums(const std::function<void()>& action);
    std::shared_ptr<Served> find(std::uint16_t job, std::uint32_t epoch) const;
    void send_replies(Served& served, Part& part);
    void send_to(Served& served, Part& part, std::span<const Outgoing> datagrams, unsigned destination,
                 bool to_all);
    void send(Part& part, std::span<const Outgoing> datagrams);
    bool wait_until_writable() const;
    // Runs `action` in the thread, and waits until it has.
    void call(const std::function<void()>& action);

    const std::size_t memory_;
    const UdpAddress local_address_;
    Wakeup wakeup_;

    // Used by the thread only, but for sending.
    UdpSocket socket_;
    ReceiveBatch receiving_;
    bool readable_ = false;

    // Lock order: sums_mutex_, then inbox_mutex_ or a mailbox's. A worker's thread only tries this one.
    std::mutex sums_mutex_;  // guards what follows, and sending with socket_
    std::map<std::uint16_t, std::shared_ptr<Served>> jobs_;
    ServerStats stats_;
    SendBatch sending_;
    std::vector<Outgoing> copies_;
    Mail taken_;          // from the inbox
    bool ended_ = false;  // the thread, and sending with it

    std::mutex inbox_mutex_;  // guards what follows
    Mail inbox_;
    bool inbox_closed_ = false;

    std::mutex mutex_;  // guards what follows
    std::vector<std::packaged_task<void()>> calls_;
    bool closing_ = false;  // or the thread has ended
    OwnedThread thread_{"inagg-server"};
};

}  // namespace inagg

#endif
