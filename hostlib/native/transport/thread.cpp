// SPDX-License-Identifier: Apache-2.0
//
// The packet thread. Its loop runs commands, sends, publishes news, waits and receives.
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
// Pieces in which a window leaves. See send().
constexpr std::size_t TRAINS = 4;

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Transport::loop() {
    // Numerics need subnormals: a thread inherits the floating-point environment of its creator, which may
    // flush them to zero.
    std::fesetenv(FE_DFL_ENV);
    while (run_commands(seconds_now())) {
        const double now = seconds_now();
        account(now);
        engine_.advance(now);
        const Blocked blocked = send(now);
        account_.activity = engine_.activity();
        publish();
        if (engine_.failure() || (!readable_.own && !readable_.results)) {
            wait_for_events(blocked);
        }
        mailbox_.take(mail_);
        if (!engine_.failure()) {
            receive();
        }
        mail_.clear();
    }
}

// The first failure of the engine stays.
void Transport::ended() {
    if (const std::optional<std::string> reason = thread_.failure()) {
        engine_.fail(FailureCode::failed, *reason);
    }
    engine_.fail(FailureCode::closed, "the transport was closed");
    read_processor_times(thread_.id(), stats_);
    publish();
}

// Runs the commands of other threads; false when the transport is closing.
bool Transport::run_commands(double now) {
    std::vector<Command> commands;
    {
        const std::lock_guard lock(mutex_);
        if (shared_.closing) {
            return false;
        }
        commands.swap(shared_.commands);
    }
    for (const Command& command : commands) {
        if (!engine_.failure()) {
            command(engine_, now);
        }
    }
    return true;
}

// A token bucket passes a message once it has tokens for all of it, and the results then arrive together too.
// A window leaves in several messages, so that one is in flight while the next is made (TCP sizes its
// segments the same way). To several servers whole groups leave.
Transport::Blocked Transport::send(double now) {
    std::array<Outgoing, SENT_AT_ONCE> datagrams;
    const std::size_t train = config_.ways_apart
                                  ? SENT_AT_ONCE
                                  : std::clamp<std::size_t>(engine_.stats().window / TRAINS, 1, BATCH);
    while (engine_.anything_to_send()) {
        // Sent one at a time, a datagram's error shows whether this host refuses its size.
        const std::size_t most = too_long_ ? 1 : train;
        const std::size_t count = engine_.to_send(packets_, std::span(datagrams).first(most));
        std::size_t done = 0;
        for (Sent sent{}; done < count; done += sent.datagrams) {
            sent = send_row(std::span(datagrams).subspan(done, count - done));
            if (sent.error != 0) {
                engine_.sent(done, now);
                return judge_send_error(sent.error);
            }
        }
        engine_.sent(count, now);
    }
    return Blocked::no;
}

// Sends the first ones: those for the server in this process, or those for others.
Sent Transport::send_row(std::span<const Outgoing> datagrams) {
    const bool within = within_process_[datagrams.front().destination];
    const auto end = std::ranges::find_if(
        datagrams, [&](const Outgoing& one) { return within_process_[one.destination] != within; });
    const auto row = datagrams.first(static_cast<std::size_t>(end - datagrams.begin()));
    Sent sent{.datagrams = row.size(), .messages = 1, .error = 0};
    if (within) {
        peers_.own_server->deliver(row);
    } else {
        ++stats_.send_calls;
        sent = sending_.send(socket_, row, peers_.destinations);
        too_long_ = too_long_ && sent.error != 0;
    }
    stats_.messages_sent += sent.messages;
    return sent;
}

// What could not be sent stays in the engine's queue.
Transport::Blocked Transport::judge_send_error(int error) {
    too_long_ = error == EMSGSIZE;
    if (too_long_ && socket_.take_errors().too_long) {
        engine_.fail(FailureCode::failed,
                     "a packet of " + std::to_string(config_.job.words) +
                         " words does not fit the MTU of the way to the aggregator; raise the MTU, or build "
                         "the switch program with fewer WORDS (without a switch: inagg-controller --words)");
        return Blocked::no;
    }
    if (from_network(error)) {
        ++stats_.network_errors;
        return Blocked::for_a_moment;
    }
    switch (error) {
        case EINTR:
            return Blocked::for_a_moment;
        case EAGAIN:
            ++stats_.send_refusals;
            return Blocked::until_writable;
        case ENOBUFS:
        case ENOMEM:
            ++stats_.send_refusals;
            return Blocked::for_a_moment;
        case EPERM:  // a packet filter
        case EACCES:
            ++stats_.network_errors;
            return Blocked::for_a_moment;
        default:
            engine_.fail(FailureCode::failed,
                         "cannot send to the aggregator: " + std::generic_category().message(error));
            return Blocked::no;
    }
}

void Transport::wait_for_events(Blocked blocked) {
    std::optional<double> end = engine_.deadline();
    const double now = seconds_now();
    if (blocked == Blocked::for_a_moment) {
        end = std::min(end.value_or(now + MOMENT), now + MOMENT);
    }
    const short events = blocked == Blocked::until_writable ? POLLIN | POLLOUT : POLLIN;
    const int results = results_ ? results_->fd() : -1;  // ppoll() ignores -1
    std::array<pollfd, 3> waited{pollfd{wakeup_.fd(), POLLIN, 0}, pollfd{socket_.fd(), events, 0},
                                 pollfd{results, POLLIN, 0}};
    // A broken group only listens to commands.
    const std::size_t count = engine_.failure() ? 1 : waited.size();
    readable_ = {};
    const double longest = end ? std::max(0.0, *end - now) : FOR_EVER;
    const int ready = poll(std::span(waited).first(count), mailbox_.fall_asleep() ? longest : 0);
    const bool mail = mailbox_.wake_up();
    if (ready <= 0) {
        return;
    }
    if (waited[0].revents != 0) {
        wakeup_.take();
    }
    if ((waited[1].revents & POLLERR) != 0) {
        stats_.network_errors += socket_.take_errors().count;
    }
    if (results_ && (waited[2].revents & POLLERR) != 0) {
        stats_.network_errors += results_->take_errors().count;
    }
    readable_ = {.own = (waited[1].revents & POLLIN) != 0, .results = (waited[2].revents & POLLIN) != 0};
    const short arrived = waited[1].revents | waited[2].revents;
    if (arrived == POLLIN || (arrived == 0 && mail)) {
        gather();
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
void Transport::gather() const {
    if (received_ >= GATHERED) {
        return;
    }
    const EngineStats stats = engine_.stats();
    const double pause = std::min(stats.srtt * GATHER_SHARE, GATHER_LONGEST);
    if (2 * stats.in_flight >= stats.window && pause >= GATHER_SHORTEST) {
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
}

// Receives one batch with each socket that may have one. Answers that are no results come to a worker's own
// address always, so they say nothing about multicast.
void Transport::receive() {
    received_ = 0;
    mail_.for_each_row([&](std::span<const std::byte> row, std::size_t datagram_bytes) {
        engine_.receive(row, datagram_bytes, seconds_now(), false);
        received_ += row.size() / datagram_bytes;
        ++stats_.messages_received;
    });
    if (results_ && readable_.results) {
        const std::size_t before = received_;
        readable_.results = receive_from(*results_) == ReceiveBatch::MESSAGES;
        if (received_ > before) {
            stats_.multicast_received += received_ - before;
            stats_.unicast_in_a_row = 0;
        }
    }
    if (readable_.own) {
        const std::uint64_t before = engine_.stats().packets_received;
        readable_.own = receive_from(socket_) == ReceiveBatch::MESSAGES;
        stats_.unicast_in_a_row += engine_.stats().packets_received - before;
    }
}

// Where the kernel does not refuse other sources.
bool Transport::trusts(const sockaddr_in& source) const {
    const auto is_source = [&](const sockaddr_in& peer) { return same(peer, source); };
    return peers_.destinations.empty() || std::ranges::any_of(peers_.destinations, is_source) ||
           std::ranges::any_of(peers_.sources, is_source);
}

// Returns the number of messages.
std::size_t Transport::receive_from(const UdpSocket& socket) {
    ++stats_.receive_calls;
    const Received received = receiving_.receive(socket);
    stats_.messages_received += received.messages;
    const double now = seconds_now();
    receiving_.for_each(received.messages, [&](const ReceivedMessage& message) {
        const auto& [bytes, datagram_bytes, source, congested] = message;
        if (trusts(source)) {
            engine_.receive(bytes, datagram_bytes, now, congested);
            received_ += std::max<std::size_t>((bytes.size() + datagram_bytes - 1) / datagram_bytes, 1);
        }
    });
    if (from_network(received.error)) {
        ++stats_.network_errors;
    } else if (received.error != 0 && received.error != EAGAIN && received.error != EINTR) {
        engine_.fail(FailureCode::failed, "cannot receive from the aggregator: " +
                                              std::generic_category().message(received.error));
    }
    return received.messages;
}

// Charges the time since the last iteration to the engine's activity at its end (Linux's tcp_info does the
// same).
void Transport::account(double now) {
    const double seconds = now - std::exchange(account_.since, now);
    if (account_.activity == Activity::idle) {
        return;
    }
    stats_.spent[static_cast<std::size_t>(account_.activity)] += seconds;
    account_.measured += seconds;
    if (account_.measured >= RATE_SECONDS) {
        const EngineStats stats = engine_.stats();
        const double bytes = static_cast<double>(stats.bytes_received) +
                             FRAME_HEADERS * static_cast<double>(stats.packets_received);
        const double received = bytes - std::exchange(account_.frame_bytes, bytes);
        stats_.peak_rate = std::max(stats_.peak_rate, received / account_.measured);
        account_.measured = 0;
    }
}

void Transport::publish() {
    const std::lock_guard lock(mutex_);
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
    }
    stats_.engine = engine_.stats();
    stats_.segmentation = sending_.segmentation();
    shared_.stats = stats_;
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
