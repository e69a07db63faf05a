// SPDX-License-Identifier: Apache-2.0
#include "server/server.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "wire/require.hpp"

namespace inagg {
namespace {

constexpr std::size_t SEND_BUFFER = std::size_t{4} << 20;
// How often a send that finds no buffer is tried, with pauses of a millisecond. Then the datagrams are lost,
// and their workers ask for them.
constexpr int SEND_TRIES = 20;
// How long a queue that moves may stay full.
constexpr int LONGEST_BLOCK_MS = 100;

// Whether the socket may receive later: after no error, or after one that passes.
bool passes(int error) {
    return error == 0 || error == EAGAIN || error == EINTR || error == ENOBUFS || error == ENOMEM ||
           from_network(error);
}

}  // namespace

Server::Server(UdpSocket socket, std::size_t memory)
    : memory_(memory), local_address_(socket.local_address()), socket_(std::move(socket)) {
    socket_.prepare();
    socket_.reserve_send_buffer(SEND_BUFFER);
    thread_.start([this] { loop(); }, [this] { ended(); });
}

Server::~Server() { close(); }

void Server::serve(const ServedJobConfig& config, std::span<const UdpAddress> workers,
                   const std::optional<UdpAddress>& relay) {
    config.validate();
    require(config.relayed == relay.has_value(), "a relay is of relayed jobs");
    require(workers.size() == config.job.workers, "there are " + std::to_string(workers.size()) +
                                                      " addresses for " + std::to_string(config.job.workers) +
                                                      " workers");
    std::vector<sockaddr_in> addresses;
    std::ranges::transform(workers, std::back_inserter(addresses), to_sockaddr);
    std::vector<unsigned> receivers(config.job.workers);
    std::iota(receivers.begin(), receivers.end(), 0U);
    if (relay) {
        receivers = {config.job.workers};
        addresses.push_back(to_sockaddr(*relay));
    }
    if (config.home) {
        receivers.push_back(*config.home);
    }
    call([&] {
        const auto known = jobs_.find(config.job.number);
        if (known != jobs_.end() && known->second.sums.config().job.epoch == config.job.epoch) {
            return;
        }
        const std::size_t freed = known == jobs_.end() ? 0 : known->second.sums.config().memory();
        const std::size_t left = memory_ - (stats_.memory - freed);
        if (config.memory() > left) {
            throw std::length_error("job " + std::to_string(config.job.number) + " needs " +
                                    std::to_string(config.memory()) + " bytes, and " + std::to_string(left) +
                                    " of " + std::to_string(memory_) + " are free");
        }
        ServedJob sums(config);
        jobs_.erase(config.job.number);
        jobs_.emplace(config.job.number, Served{std::move(sums), std::move(addresses), std::move(receivers)});
        stats_.memory = stats_.memory - freed + config.memory();
        std::size_t packets = 0;
        for (const auto& [_, served] : jobs_) {
            const ServedJobConfig& other = served.sums.config();
            packets += other.job.workers * (other.memory() / 2 + other.ways().most_slots() * PACKET_OVERHEAD);
        }
        socket_.reserve_receive_buffer(packets);
    });
}

void Server::drop(std::uint16_t job, std::uint32_t epoch) {
    call([&] {
        const auto known = jobs_.find(job);
        if (known != jobs_.end() && known->second.sums.config().job.epoch == epoch) {
            stats_.memory -= known->second.sums.config().memory();
            jobs_.erase(known);
        }
    });
}

ServerStats Server::stats() {
    ServerStats stats;
    call([&] {
        stats = stats_;
        for (const auto& [job, served] : jobs_) {
            stats.jobs[job] = served.sums.counts();
            stats.chunks[job] = served.sums.chunks();
        }
    });
    return stats;
}

std::optional<ChunkCounts> Server::chunks(std::uint16_t job, std::uint32_t epoch) {
    std::optional<ChunkCounts> found;
    call([&] {
        const auto known = jobs_.find(job);
        if (known != jobs_.end() && known->second.sums.config().job.epoch == epoch) {
            found = known->second.sums.chunks();
        }
    });
    return found;
}

void Server::call(const std::function<void()>& action) {
    // A forked child may have got the mutex locked.
    if (forked()) {
        throw std::runtime_error("the server is the parent process's");
    }
    std::packaged_task<void()> task(action);
    std::future<void> done = task.get_future();
    {
        const std::lock_guard lock(mutex_);
        if (closing_) {
            throw std::runtime_error(why_ended());
        }
        calls_.push_back(std::move(task));
        wakeup_.wake();
    }
    try {
        done.get();
    } catch (const std::future_error&) {
        throw std::runtime_error(why_ended());
    }
}

std::string Server::why_ended() const {
    const std::optional<std::string> reason = failure();
    return reason ? "the server's thread has ended: " + *reason : "the server has been closed";
}

void Server::close() {
    const auto stop = [this] {
        const std::lock_guard lock(mutex_);
        closing_ = true;
        wakeup_.wake();
    };
    thread_.end(stop, [this] { socket_.close(); });
}

// -- The thread

// Calls that wait fail: their promises break.
void Server::ended() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    calls_.clear();
}

void Server::loop() {
    while (true) {
        std::vector<std::packaged_task<void()>> calls;
        bool closing;
        {
            const std::lock_guard lock(mutex_);
            calls.swap(calls_);
            closing = closing_;
        }
        for (std::packaged_task<void()>& call : calls) {
            call();
        }
        if (closing) {
            return;
        }
        if (!readable_) {
            wait();
        }
        receive();
    }
}

void Server::wait() {
    std::array<pollfd, 2> waited{pollfd{wakeup_.fd(), POLLIN, 0}, pollfd{socket_.fd(), POLLIN, 0}};
    if (poll(waited.data(), waited.size(), -1) <= 0) {
        return;
    }
    if ((waited[1].revents & POLLNVAL) != 0) {
        throw std::system_error(EBADF, std::generic_category(), "cannot receive");
    }
    if (waited[0].revents != 0) {
        wakeup_.take();
    }
    if ((waited[1].revents & POLLERR) != 0) {
        socket_.take_errors();
    }
    readable_ = (waited[1].revents & POLLIN) != 0;
}

void Server::receive() {
    if (!readable_) {
        return;
    }
    const Received received = receiving_.receive(socket_);
    if (!passes(received.error)) {
        throw std::system_error(received.error, std::generic_category(), "cannot receive");
    }
    readable_ = received.messages == ReceiveBatch::MESSAGES;
    receiving_.for_each(received.messages, [&](const ReceivedMessage& message) { take(message); });
}

// False: the source is none of this job's.
bool Server::Served::take(std::span<const std::byte> datagram, unsigned rank, const sockaddr_in& source,
                          bool congested) {
    if (relayed() && same(addresses.back(), source)) {
        sums.receive_relayed(datagram, congested);
        return true;
    }
    if (rank >= sums.config().job.workers || !same(addresses[rank], source)) {
        return false;
    }
    sums.receive(datagram, rank, congested);
    return true;
}

// A message has datagrams of one source.
void Server::take(const ReceivedMessage& received) {
    std::span<const std::byte> message = received.bytes;
    Served* served = nullptr;
    do {
        const auto datagram = message.first(std::min(received.datagram_bytes, message.size()));
        message = message.subspan(datagram.size());
        const std::optional<Header> header = decode(datagram);
        if (header && (served == nullptr || served->sums.config().job.number != header->job)) {
            if (served != nullptr) {
                send_replies(*served);
            }
            const auto found = jobs_.find(header->job);
            served = found == jobs_.end() ? nullptr : &found->second;
        }
        if (!header || served == nullptr ||
            !served->take(datagram, header->rank, received.source, received.congested)) {
            ++stats_.unknown;
        }
    } while (!message.empty());
    if (served != nullptr) {
        send_replies(*served);
    }
}

// Results for all go to one receiver after another, so that those of neighbouring slots are one message.
void Server::send_replies(Served& served) {
    std::span<const Outgoing> replies = served.sums.replies();
    while (!replies.empty()) {
        const bool to_all = replies.front().destination == ServedJob::ALL;
        const auto end = std::ranges::find_if(
            replies, [&](const Outgoing& reply) { return (reply.destination == ServedJob::ALL) != to_all; });
        const auto count = static_cast<std::size_t>(end - replies.begin());
        if (to_all) {
            for (const unsigned to : served.receivers) {
                copies_.assign(replies.begin(), end);
                for (Outgoing& copy : copies_) {
                    copy.destination = to;
                }
                send(served, copies_);
            }
        } else {
            send(served, replies.first(count));
        }
        replies = replies.subspan(count);
    }
    served.sums.clear_replies();
}

void Server::send(Served& served, std::span<const Outgoing> datagrams) {
    for (int tries = 0; !datagrams.empty() && tries < SEND_TRIES;) {
        const Sent sent = sending_.send(socket_, datagrams, served.addresses);
        datagrams = datagrams.subspan(sent.datagrams);
        if (sent.error == EAGAIN) {
            tries += wait_until_writable() ? 0 : 1;
        } else if (sent.error == ENOBUFS || sent.error == ENOMEM) {
            ++tries;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } else if (sent.error != 0) {
            ++tries;  // perhaps an ICMP error about another packet, which is reported once
            socket_.take_errors();
        }
    }
    stats_.send_drops += datagrams.size();
}

bool Server::wait_until_writable() const {
    pollfd waited{socket_.fd(), POLLOUT, 0};
    return poll(&waited, 1, LONGEST_BLOCK_MS) > 0;
}

}  // namespace inagg
