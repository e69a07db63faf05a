// SPDX-License-Identifier: Apache-2.0
//
// A packet thread. Its loop sends, publishes news, waits and receives.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/transport.hpp"

namespace inagg {
namespace {

// How long to leave a send that found no buffer or no route.
constexpr double MOMENT = 0.001;
constexpr double FOR_EVER = 1e9;
// How long to let results gather before receiving them: a share of the RTT, and the most. See gather().
constexpr double GATHER_SHARE = 1.0 / 16;
constexpr double GATHER_LONGEST = 250e-6;
constexpr std::size_t GATHERED = 16;       // results in the last batch that make gathering unnecessary
constexpr double GATHER_SHORTEST = 50e-6;  // the kernel's timer slack: no sleep is shorter
// Seconds over which a rate is measured. A token bucket can exceed its rate for some milliseconds.
constexpr double RATE_SECONDS = 0.1;
// Bytes of Ethernet, IPv4 and UDP headers.
constexpr double FRAME_HEADERS = 42;
// How often a packet thread tries to get the mutex before it sleeps.
constexpr unsigned TRIES = 500;
// Pieces in which a window leaves. See send().
constexpr std::size_t TRAINS = 4;

void pause_processor() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

// Gives the mutex back for work on lanes, or the kernel.
class Transport::Unlocked {
  public:
    Unlocked(Transport& transport, Lock& lock) : transport_(transport), lock_(lock) {
        ++transport_.beside_;
        lock_.unlock();
    }
    // Others hold it for a few microseconds: to sleep and wake up would take longer.
    ~Unlocked() {
        for (unsigned i = 0; i < TRIES && !lock_.try_lock(); ++i) {
            pause_processor();
        }
        if (!lock_.owns_lock()) {
            lock_.lock();
        }
        --transport_.beside_;
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

  private:
    Transport& transport_;
    Lock& lock_;
};

void Transport::loop(PacketThread& self) {
    // Numerics need subnormals: a thread inherits the floating-point environment of its creator, which may
    // flush them to zero.
    std::fesetenv(FE_DFL_ENV);
    Lock lock(mutex_);
    while (!shared_.closing) {
        if (engine_.frozen()) {
            park(self, lock);
            continue;
        }
        const double now = seconds_now();
        account(now);
        engine_.advance(now);
        wake(&self);
        const Blocked blocked = send(self, lock, now);
        account_.activity = engine_.activity();
        self.published = self.counts;
        publish();
        wake(&self);
        if (engine_.failure() || (!self.readable.own && !self.readable.results)) {
            wait_for_events(self, lock, blocked);
        }
        if (self.number == 0) {
            mailbox_.take(mail_);
        }
        if (!engine_.failure()) {
            receive(self, lock);
        }
        if (self.number == 0) {
            mail_.clear();
        }
    }
}

void Transport::park(PacketThread& self, Lock& lock) {
    self.parked = true;
    self.published = self.counts;
    publish();
    parked_.notify_all();
    resumed_.wait(
        lock, [&] { return (!engine_.frozen() && self.number < config_.packet_threads) || shared_.closing; });
    self.parked = false;
}

// The first failure of the engine stays.
void Transport::ended(PacketThread& self) {
    const std::lock_guard lock(mutex_);
    if (const std::optional<std::string> reason = self.thread.failure()) {
        engine_.fail(FailureCode::failed, *reason);
    }
    engine_.fail(FailureCode::closed, "the transport was closed");
    self.counts.read_processor_times(self.thread.id());
    self.published = self.counts;
    publish();
}

// A token bucket passes a message once it has tokens for all of it, and the results then arrive together too.
// A window leaves in several messages, so that one is in flight while the next is made (TCP sizes its
// segments the same way). To several servers whole groups leave.
Transport::Blocked Transport::send(PacketThread& self, Lock& lock, double now) {
    while (engine_.anything_to_send(self.number)) {
        const std::size_t train =
            config_.ways_apart ? SENT_AT_ONCE : std::clamp<std::size_t>(engine_.window() / TRAINS, 1, BATCH);
        // Sent one at a time, a datagram's error shows whether this host refuses its size.
        engine_.choose(self.packets, self.too_long ? 1 : train, self.departures);
        std::size_t done = 0;
        Sent sent{};
        {
            const Unlocked unlocked(*this, lock);
            engine_.make(self.departures);
            const std::span datagrams = self.departures.datagrams();
            for (; done < datagrams.size() && sent.error == 0; done += sent.datagrams) {
                sent = send_row(self, datagrams.subspan(done));
            }
        }
        engine_.sent(self.departures, done, now);
        if (sent.error != 0) {
            return judge_send_error(self, sent.error);
        }
    }
    return Blocked::no;
}

// Sends the first ones: those for the server in this process, or those for others.
Sent Transport::send_row(PacketThread& self, std::span<const Outgoing> datagrams) {
    const bool within = within_process_[datagrams.front().destination];
    const auto end = std::ranges::find_if(
        datagrams, [&](const Outgoing& one) { return within_process_[one.destination] != within; });
    const auto row = datagrams.first(static_cast<std::size_t>(end - datagrams.begin()));
    Sent sent{.datagrams = row.size(), .messages = 1, .error = 0};
    if (within) {
        peers_.own_server->deliver(row);
    } else {
        ++self.counts.send_calls;
        sent = self.sending.send(self.socket, row, peers_.destinations);
        self.too_long = self.too_long && sent.error != 0;
        self.counts.segmentation = self.sending.segmentation();
    }
    self.counts.messages_sent += sent.messages;
    return sent;
}

// What could not be sent stays in the engine's queue.
Transport::Blocked Transport::judge_send_error(PacketThread& self, int error) {
    self.too_long = error == EMSGSIZE;
    if (self.too_long && self.socket.take_errors().too_long) {
        engine_.fail(FailureCode::failed,
                     "a packet of " + std::to_string(config_.job.words) +
                         " words does not fit the MTU of the way to the aggregator; raise the MTU, or build "
                         "the switch program with fewer WORDS (without a switch: inagg-controller --words)");
        return Blocked::no;
    }
    if (from_network(error)) {
        ++self.counts.network_errors;
        return Blocked::for_a_moment;
    }
    switch (error) {
        case EINTR:
            return Blocked::for_a_moment;
        case EAGAIN:
            ++self.counts.send_refusals;
            return Blocked::until_writable;
        case ENOBUFS:
        case ENOMEM:
            ++self.counts.send_refusals;
            return Blocked::for_a_moment;
        case EPERM:  // a packet filter
        case EACCES:
            ++self.counts.network_errors;
            return Blocked::for_a_moment;
        default:
            engine_.fail(FailureCode::failed,
                         "cannot send to the aggregator: " + std::generic_category().message(error));
            return Blocked::no;
    }
}

void Transport::wait_for_events(PacketThread& self, Lock& lock, Blocked blocked) {
    std::optional<double> end = engine_.deadline();
    const double now = seconds_now();
    if (blocked == Blocked::for_a_moment) {
        end = std::min(end.value_or(now + MOMENT), now + MOMENT);
    }
    const short events = blocked == Blocked::until_writable ? POLLIN | POLLOUT : POLLIN;
    const int results = self.results ? self.results->fd() : -1;  // ppoll() ignores -1
    std::array<pollfd, 3> waited{pollfd{self.wakeup.fd(), POLLIN, 0}, pollfd{self.socket.fd(), events, 0},
                                 pollfd{results, POLLIN, 0}};
    // A broken group only listens to its owner.
    const std::size_t count = engine_.failure() ? 1 : waited.size();
    self.readable = {};
    const double longest = end ? std::max(0.0, *end - now) : FOR_EVER;
    // Who could not send waits for the kernel, whatever there is to send.
    self.asleep = blocked == Blocked::no;
    lock.unlock();
    const bool may_sleep = self.number != 0 || mailbox_.fall_asleep();
    const int ready = poll(std::span(waited).first(count), may_sleep ? longest : 0);
    const bool mail = self.number == 0 && mailbox_.wake_up();
    if (ready > 0) {
        if (waited[0].revents != 0) {
            self.wakeup.take();
        }
        if ((waited[1].revents & POLLERR) != 0) {
            self.counts.network_errors += self.socket.take_errors().count;
        }
        if (self.results && (waited[2].revents & POLLERR) != 0) {
            self.counts.network_errors += self.results->take_errors().count;
        }
    }
    lock.lock();
    self.asleep = false;
    if (ready <= 0) {
        return;
    }
    self.readable = {.own = (waited[1].revents & POLLIN) != 0, .results = (waited[2].revents & POLLIN) != 0};
    const short arrived = waited[1].revents | waited[2].revents;
    if (arrived == POLLIN || (arrived == 0 && mail)) {
        gather(self, lock);
    }
}

// ppoll(), after polling without sleep for spin_ seconds.
int Transport::poll(std::span<pollfd> waited, double seconds) const {
    const timespec none{};
    for (const double end = seconds_now() + std::min(spin_, seconds); seconds_now() < end;) {
        if (const int ready = ppoll(waited.data(), waited.size(), &none, nullptr); ready != 0) {
            return ready;
        }
        sched_yield();
    }
    const double left = std::max(0.0, seconds - spin_);
    const timespec timeout{.tv_sec = static_cast<time_t>(left),
                           .tv_nsec = static_cast<long>((left - std::floor(left)) * 1e9)};
    return ppoll(waited.data(), waited.size(), left < FOR_EVER / 2 ? &timeout : nullptr, nullptr);
}

// On a slow link results come one by one, and waking up for each costs more than the work. A window in flight
// takes an RTT to drain, so a sleep for a small share of the RTT makes batches and delays nothing. Network
// cards moderate interrupts for the same reason.
void Transport::gather(const PacketThread& self, Lock& lock) const {
    if (self.received >= GATHERED) {
        return;
    }
    const EngineStats stats = engine_.stats();
    const double pause = std::min(stats.srtt * GATHER_SHARE, GATHER_LONGEST);
    if (2 * stats.in_flight >= stats.window && pause >= GATHER_SHORTEST) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
        lock.lock();
    }
}

// Receives one batch with each socket that may have one. Answers that are no results come to a worker's own
// address always, so they say nothing about multicast.
void Transport::receive(PacketThread& self, Lock& lock) {
    self.received = 0;
    if (self.number == 0 && !mail_.empty()) {
        receive_mail(self, lock);
    }
    if (self.results && self.readable.results) {
        const std::size_t before = self.received;
        receive_from(self, *self.results, self.readable.results, lock);
        if (self.received > before) {
            self.counts.multicast_received += self.received - before;
            shared_.stats.unicast_in_a_row = 0;
        }
    }
    if (self.readable.own) {
        shared_.stats.unicast_in_a_row += receive_from(self, self.socket, self.readable.own, lock);
    }
}

// Where the kernel does not refuse other sources.
bool Transport::trusts(const sockaddr_in& source) const {
    const auto is_source = [&](const sockaddr_in& peer) { return same(peer, source); };
    return peers_.destinations.empty() || std::ranges::any_of(peers_.destinations, is_source) ||
           std::ranges::any_of(peers_.sources, is_source);
}

void Transport::receive_mail(PacketThread& self, Lock& lock) {
    mail_.for_each_row([&](std::span<const std::byte> row, std::size_t datagram_bytes) {
        engine_.read(row, datagram_bytes, false, self.arrivals);
        self.received += row.size() / datagram_bytes;
        ++self.counts.messages_received;
    });
    take(self, seconds_now(), lock);
}

// Receives a batch. Returns the number of awaited results. `readable`: whether there may be more.
std::size_t Transport::receive_from(PacketThread& self, const UdpSocket& socket, bool& readable, Lock& lock) {
    Received received{};
    double now = 0;
    {
        const Unlocked unlocked(*this, lock);
        received = self.receiving.receive(socket);
        now = seconds_now();
        self.receiving.for_each(received.messages, [&](const ReceivedMessage& message) {
            const auto& [bytes, datagram_bytes, source, congested, memory] = message;
            if (trusts(source)) {
                engine_.read(bytes, datagram_bytes, congested, self.arrivals, memory);
                self.received +=
                    std::max<std::size_t>((bytes.size() + datagram_bytes - 1) / datagram_bytes, 1);
            }
        });
    }
    ++self.counts.receive_calls;
    self.counts.messages_received += received.messages;
    readable = received.messages == ReceiveBatch::MESSAGES;
    if (from_network(received.error)) {
        ++self.counts.network_errors;
    } else if (received.error != 0 && received.error != EAGAIN && received.error != EINTR) {
        engine_.fail(FailureCode::failed, "cannot receive from the aggregator: " +
                                              std::generic_category().message(received.error));
    }
    return take(self, now, lock);
}

// Takes what arrived at `now`. Returns the number of awaited results.
std::size_t Transport::take(PacketThread& self, double now, Lock& lock) {
    if (self.arrivals.empty()) {
        return 0;
    }
    engine_.claim(self.arrivals, now);
    {
        const Unlocked unlocked(*this, lock);
        engine_.check(self.arrivals);
    }
    return engine_.finish(self.arrivals, now);
}

// Charges the time since the last iteration to the engine's activity at its end (Linux's tcp_info does the
// same).
void Transport::account(double now) {
    const double seconds = now - std::exchange(account_.since, now);
    if (account_.activity == Activity::idle) {
        return;
    }
    shared_.stats.spent[static_cast<std::size_t>(account_.activity)] += seconds;
    account_.measured += seconds;
    if (account_.measured >= RATE_SECONDS) {
        const EngineStats stats = engine_.stats();
        const double bytes = static_cast<double>(stats.bytes_received) +
                             FRAME_HEADERS * static_cast<double>(stats.packets_received);
        const double received = bytes - std::exchange(account_.frame_bytes, bytes);
        shared_.stats.peak_rate = std::max(shared_.stats.peak_rate, received / account_.measured);
        account_.measured = 0;
    }
}

// With mutex_ held. A failure is news once no thread works on data.
void Transport::publish() {
    if (engine_.failure() && beside_ > 0) {
        return;
    }
    bool changed = false;
    bool done = false;
    bool progressed = engine_.report_progress();
    while (const std::optional<Ticket> ticket = engine_.next_completion()) {
        shared_.unfinished.erase(*ticket);
        changed = true;
        if (shared_.watched.erase(*ticket) > 0) {
            shared_.done.push_back(*ticket);
            done = true;
        }
    }
    if (engine_.failure() && !shared_.failure) {
        shared_.failure = engine_.failure();
        changed = done = progressed = true;
        parked_.notify_all();
    }
    shared_.stats.engine = engine_.stats();
    if (changed) {
        changed_.notify_all();
    }
    if (done) {
        done_.notify_all();
    }
    if (progressed) {
        progressed_.notify_all();
    }
}

}  // namespace inagg
