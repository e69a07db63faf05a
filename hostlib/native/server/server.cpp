// SPDX-License-Identifier: Apache-2.0
#include "server/server.hpp"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <functional>
#include <iterator>
#include <ranges>
#include <set>
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

template <std::size_t N>
void add_up(std::array<std::uint64_t, N>& sums, const std::array<std::uint64_t, N>& added) {
    std::ranges::transform(sums, added, sums.begin(), std::plus{});
}

// The memory of datagrams of one size that stand one behind the other; nothing if they do not.
std::span<const std::byte> one_row(std::span<const Outgoing> datagrams) {
    const std::span<const std::byte> first = datagrams.front().datagram;
    const std::byte* end = first.data();
    for (const Outgoing& one : datagrams) {
        if (one.datagram.data() != end || one.datagram.size() != first.size()) {
            return {};
        }
        end += first.size();
    }
    return {first.data(), datagrams.size() * first.size()};
}

}  // namespace

Server::Server(UdpSocket socket, std::size_t memory)
    : memory_(memory), local_address_(socket.local_address()), socket_(std::move(socket)) {
    socket_.prepare();
    socket_.reserve_send_buffer(SEND_BUFFER);
    thread_.start([this] { loop(); }, [this] { ended(); });
}

Server::~Server() { close(); }

void ServedPart::validate() const {
    config.validate();
    require((config.relayed || config.rank_above.has_value()) == beyond.has_value(),
            "a relayed job has a switch, a server below another has that above; others have neither");
    std::uint64_t bits = 0;
    for (const auto& [rank, _] : members) {
        require(rank < config.job.workers, "rank " + std::to_string(rank) + " is a member of a job of " +
                                               std::to_string(config.job.workers) + " workers");
        bits |= std::uint64_t{1} << rank;
    }
    require(bits == config.all_members(), "each member has an address, and no other rank");
}

Server::Part::Part(const ServedPart& part) : sums(part.config), addresses(part.config.job.workers) {
    for (const auto& [rank, address] : part.members) {
        addresses[rank] = to_sockaddr(address);
    }
    if (part.beyond) {
        addresses.push_back(to_sockaddr(*part.beyond));
    }
    if (config().relayed) {
        // The one at home first: it uses a result where that stands, and the switch may send it a copy too.
        // With the copy alone it could go on until another chunk takes the place.
        if (config().home) {
            receivers.push_back(*config().home);
        }
        receivers.push_back(beyond());
        return;
    }
    std::ranges::copy(std::views::keys(part.members), std::back_inserter(receivers));
}

std::size_t Server::Served::memory() const {
    std::size_t bytes = 0;
    for (const Part& part : parts) {
        bytes += part.config().memory();
    }
    return bytes;
}

ChunkCounts Server::Served::chunks() const {
    ChunkCounts sums{};
    for (const Part& part : parts) {
        add_up(sums, part.sums.chunks());
    }
    return sums;
}

Server::Part& Server::Served::part_of(std::uint32_t chunk) {
    return parts[of_way[parts.front().config().ways().of(chunk)]];
}

void Server::serve(std::span<const ServedPart> parts) {
    require(!parts.empty(), "a server has a part of its jobs at least");
    const ServedJobConfig& first = parts.front().config;
    std::size_t needed = 0;
    std::vector<std::size_t> of_way(first.servers);
    std::set<unsigned> ways;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const ServedJobConfig& config = parts[i].config;
        parts[i].validate();
        require(config.job.number == first.job.number && config.servers == first.servers,
                "the parts are of one job");
        require(ways.insert(config.index).second, "each part is of another way");
        of_way[config.index] = i;
        needed += config.memory();
    }
    call([&] {
        if (find(first.job.number, first.job.epoch)) {
            return;
        }
        const auto known = jobs_.find(first.job.number);
        const std::size_t freed = known == jobs_.end() ? 0 : known->second->memory();
        const std::size_t left = memory_ - (stats_.memory - freed);
        if (needed > left) {
            throw std::length_error("job " + std::to_string(first.job.number) + " needs " +
                                    std::to_string(needed) + " bytes, and " + std::to_string(left) + " of " +
                                    std::to_string(memory_) + " are free");
        }
        auto made = std::make_shared<Served>(Served{.parts = {}, .of_way = std::move(of_way)});
        std::ranges::transform(parts, std::back_inserter(made->parts),
                               [](const ServedPart& part) { return Part(part); });
        jobs_.insert_or_assign(first.job.number, std::move(made));
        stats_.memory = stats_.memory - freed + needed;
        std::size_t packets = 0;
        for (const auto& [_, served] : jobs_) {
            for (const Part& part : served->parts) {
                const ServedJobConfig& config = part.config();
                packets += static_cast<std::size_t>(std::popcount(config.all_members())) *
                           (config.memory() / 2 + config.ways().most_slots() * PACKET_OVERHEAD);
            }
        }
        socket_.reserve_receive_buffer(packets);
    });
}

// Nothing if it does not serve the job.
std::shared_ptr<Server::Served> Server::find(std::uint16_t job, std::uint32_t epoch) const {
    const auto known = jobs_.find(job);
    return known != jobs_.end() && known->second->job().epoch == epoch ? known->second : nullptr;
}

void Server::drop(std::uint16_t job, std::uint32_t epoch) {
    call([&] {
        if (const std::shared_ptr<Served> served = find(job, epoch)) {
            stats_.memory -= served->memory();
            jobs_.erase(job);
        }
    });
}

ServerStats Server::stats() {
    ServerStats stats;
    call([&] {
        stats = stats_;
        for (const auto& [job, served] : jobs_) {
            stats.chunks[job] = served->chunks();
            for (const Part& part : served->parts) {
                add_up(stats.jobs[job], part.sums.counts());
            }
        }
    });
    return stats;
}

std::optional<ChunkCounts> Server::chunks(std::uint16_t job, std::uint32_t epoch) {
    std::optional<ChunkCounts> found;
    call([&] {
        if (const std::shared_ptr<Served> served = find(job, epoch)) {
            found = served->chunks();
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
    {
        const std::lock_guard lock(sums_mutex_);
        ended_ = true;
    }
    {
        const std::lock_guard lock(inbox_mutex_);
        inbox_closed_ = true;
        inbox_.clear();
    }
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
            with_sums([&] { call(); });
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
    receiving_.for_each(received.messages, [&](const ReceivedMessage& message) {
        with_sums([&] {
            take(message.bytes, message.datagram_bytes,
                 {.address = &message.source, .congested = message.congested});
        });
    });
}

// False: the source is none of this part's.
bool Server::take(Served& served, Part& part, std::span<const std::byte> datagram, unsigned rank,
                  Source source) {
    const auto from = [&](unsigned sender) {
        return source.address != nullptr && sender < part.addresses.size() &&
               same(part.addresses[sender], *source.address);
    };
    if (from(part.beyond())) {
        if (part.config().relayed) {
            part.sums.receive_relayed(datagram, source.congested);
        } else {
            part.sums.receive_from_above(datagram, source.congested);
        }
        return true;
    }
    const bool known = source.address == nullptr ? served.own_rank == rank : from(rank);
    if (known) {
        part.sums.receive(datagram, rank, source.congested);
    }
    return known;
}

// A message has datagrams of one source.
void Server::take(std::span<const std::byte> message, std::size_t datagram_bytes, Source source) {
    Served* served = nullptr;
    Part* part = nullptr;
    do {
        const auto datagram = message.first(std::min(datagram_bytes, message.size()));
        message = message.subspan(datagram.size());
        if (const std::optional<Header> header = decode(datagram)) {
            const auto found = jobs_.find(header->job);
            Part* next = found == jobs_.end() ? nullptr : &found->second->part_of(header->chunk);
            if (part != nullptr && part != next) {
                send_replies(*served, *part);
            }
            part = next;
            served = part == nullptr ? nullptr : found->second.get();
            if (part != nullptr && take(*served, *part, datagram, header->rank, source)) {
                continue;
            }
        }
        ++stats_.unknown;
    } while (!message.empty());
    if (part != nullptr) {
        send_replies(*served, *part);
    }
}

void Server::deliver(std::span<const Outgoing> datagrams) {
    if (!take_if_free(datagrams)) {
        const std::lock_guard lock(inbox_mutex_);
        if (inbox_closed_) {
            return;
        }
        inbox_.copy(datagrams);
    }
    take_inbox_if_free();
}

// Takes datagrams where they are. False: they are not one row, or somebody else is adding.
bool Server::take_if_free(std::span<const Outgoing> datagrams) {
    const std::span<const std::byte> row = one_row(datagrams);
    if (row.empty()) {
        return false;
    }
    const std::unique_lock lock(sums_mutex_, std::try_to_lock);
    if (!lock || ended_) {
        return false;
    }
    take_inbox();
    take(row, datagrams.front().datagram.size(), {});
    return true;
}

// With sums_mutex_ held.
void Server::take_inbox() {
    {
        const std::lock_guard lock(inbox_mutex_);
        std::swap(inbox_, taken_);
    }
    taken_.for_each_row(
        [&](std::span<const std::byte> row, std::size_t datagram_bytes) { take(row, datagram_bytes, {}); });
    taken_.clear();
}

// With the sums to itself. What a worker leaves in the inbox meanwhile is taken afterwards.
void Server::with_sums(const std::function<void()>& action) {
    {
        const std::lock_guard lock(sums_mutex_);
        action();
    }
    take_inbox_if_free();
}

void Server::take_inbox_if_free() {
    while (true) {
        {
            const std::lock_guard lock(inbox_mutex_);
            if (inbox_.empty()) {
                return;
            }
        }
        const std::unique_lock lock(sums_mutex_, std::try_to_lock);
        if (!lock || ended_) {
            return;
        }
        take_inbox();
    }
}

std::shared_ptr<const void> Server::attach(std::uint16_t job, std::uint32_t epoch, unsigned rank,
                                           Mailbox& mailbox) {
    std::shared_ptr<Served> served;
    with_sums([&] {
        served = find(job, epoch);
        require(served != nullptr, "the worker's own server does not serve job " + std::to_string(job));
        served->own_rank = rank;
        served->mailbox = &mailbox;
    });
    return served;
}

void Server::detach(const Mailbox& mailbox) {
    with_sums([&] {
        for (auto& [_, served] : jobs_) {
            if (served->mailbox == &mailbox) {
                served->own_rank.reset();
                served->mailbox = nullptr;
            }
        }
    });
}

void Server::send_replies(Served& served, Part& part) {
    std::span<const Outgoing> replies = part.sums.replies();
    while (!replies.empty()) {
        const unsigned destination = replies.front().destination;
        const auto end = std::ranges::find_if(
            replies, [&](const Outgoing& reply) { return reply.destination != destination; });
        const auto row = replies.first(static_cast<std::size_t>(end - replies.begin()));
        if (destination == ServedJob::ALL) {
            // To one receiver after another, so that results of neighbouring slots are one message.
            for (const unsigned receiver : part.receivers) {
                send_to(served, part, row, receiver, true);
            }
        } else {
            send_to(served, part, row, destination == ServedJob::ABOVE ? part.beyond() : destination, false);
        }
        replies = replies.subspan(row.size());
    }
    part.sums.clear_replies();
}

// A complete result stays in its version until the worker of this process has contributed to the slot's next
// chunk. Then it has used the result. `to_all`: they are such results.
void Server::send_to(Served& served, Part& part, std::span<const Outgoing> datagrams, unsigned destination,
                     bool to_all) {
    if (served.own_rank == destination) {
        served.mailbox->put(datagrams, to_all);
        return;
    }
    copies_.assign(datagrams.begin(), datagrams.end());
    for (Outgoing& copy : copies_) {
        copy.destination = destination;
    }
    send(part, copies_);
}

void Server::send(Part& part, std::span<const Outgoing> datagrams) {
    for (int tries = 0; !datagrams.empty() && tries < SEND_TRIES;) {
        const Sent sent = sending_.send(socket_, datagrams, part.addresses);
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
