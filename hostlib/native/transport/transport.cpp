// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace inagg {
namespace {

using Clock = std::chrono::steady_clock;

// Longer timeouts overflow the clock.
constexpr double FOR_EVER = 1e9;

std::optional<Clock::time_point> end_of(std::optional<double> timeout) {
    if (!timeout || *timeout > FOR_EVER) {
        return std::nullopt;
    }
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*timeout));
}

// False when the time is up.
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                const std::optional<Clock::time_point>& end) {
    if (!end) {
        changed.wait(lock);
        return true;
    }
    return changed.wait_until(lock, *end) == std::cv_status::no_timeout;
}

// Makes room for the results of a whole window. If the kernel grants less, the window is smaller.
EngineConfig bounded_by_buffer(EngineConfig config, UdpSocket& socket, std::optional<UdpSocket>& results,
                               TransportStats& stats) {
    config.validate();
    const std::size_t packet = datagram_bytes(Kind::data, config.job.words) + PACKET_OVERHEAD;
    stats.receive_buffer_wanted = packet * config.job.slots;
    stats.receive_buffer = socket.reserve_receive_buffer(stats.receive_buffer_wanted);
    if (results) {
        stats.receive_buffer =
            std::min(stats.receive_buffer, results->reserve_receive_buffer(stats.receive_buffer_wanted));
    }
    config.window_limit = static_cast<std::uint32_t>(
        std::clamp<std::size_t>(stats.receive_buffer / packet, 1, config.job.slots));
    // Whole messages: a window that ends within one makes shorter ones, here and behind the switch. The
    // engine itself makes those to several servers whole.
    const std::uint32_t whole = datagrams_in_message(datagram_bytes(Kind::data, config.job.words));
    const std::uint32_t message =
        config.threads == 1 ? whole : std::min<std::uint32_t>(whole, p4::RUN_CHUNKS);
    if (!config.ways_apart && config.window_limit > message) {
        config.window_limit -= config.window_limit % message;
    }
    return config;
}

// By destination, whether it is the own server. A connected socket has one destination.
std::vector<bool> within_process(const Peers& peers) {
    std::vector<bool> within(std::max<std::size_t>(peers.destinations.size(), 1));
    if (peers.own_server) {
        const sockaddr_in own = to_sockaddr(peers.own_server->local_address());
        for (std::size_t i = 0; i < peers.destinations.size(); ++i) {
            within[i] = same(peers.destinations[i], own);
        }
    }
    return within;
}

}  // namespace

// Source: /proc/PID/schedstat, nanoseconds running and in a run queue (the kernel's sched-stats.rst).
void read_processor_times(pid_t thread, TransportStats& stats) {
    double running = 0;
    double waiting = 0;
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
    if (thread != 0 && file >> running >> waiting) {
        stats.processor = running * 1e-9;
        stats.processor_wait = waiting * 1e-9;
    }
}

Transport::Transport(const EngineConfig& config, UdpSocket socket, std::optional<UdpSocket> results,
                     Peers peers, double spin)
    : config_(config),
      spin_(spin),
      local_address_(socket.local_address()),
      socket_(std::move(socket)),
      results_(std::move(results)),
      peers_(std::move(peers)),
      within_process_(within_process(peers_)),
      engine_(bounded_by_buffer(config, socket_, results_, stats_)),
      packets_((config.ways_apart ? SENT_AT_ONCE / BATCH : 1) * MAX_DATAGRAM) {
    stats_.engine = engine_.stats();
    shared_.stats = stats_;
    if (peers_.own_server) {
        mail_memory_ = peers_.own_server->attach(config.job.number, config.job.epoch, config.rank, mailbox_);
    }
    try {
        thread_.start([this] { loop(); }, [this] { ended(); });
    } catch (...) {
        leave_own_server();
        throw;
    }
}

void Transport::leave_own_server() {
    if (peers_.own_server) {
        peers_.own_server->detach(mailbox_);
    }
}

Transport::~Transport() { close(); }

// With mutex_ held.
void Transport::check_alive() const {
    if (shared_.failure) {
        throw GroupFailed(*shared_.failure);
    }
}

// Waits until get() has something, and returns that; nothing after the timeout. Throws GroupFailed.
template <typename Get>
auto Transport::wait_for(std::condition_variable& news, std::unique_lock<std::mutex>& lock,
                         std::optional<double> timeout, Get get) -> decltype(get()) {
    const auto end = end_of(timeout);
    for (bool in_time = timeout != 0.0;; in_time = wait_until(news, lock, end)) {
        if (auto found = get()) {
            return found;
        }
        check_alive();
        if (!in_time) {
            return {};
        }
    }
}

// With mutex_ held.
void Transport::post(Command command) {
    shared_.commands.push_back(std::move(command));
    wakeup_.wake();
}

Ticket Transport::submit(const Request& request) {
    config_.validate(request);
    const std::lock_guard lock(mutex_);
    check_alive();
    const Ticket ticket = ++shared_.last_ticket;
    post([ticket, request](Engine& engine, double now) { engine.submit(ticket, request, now); });
    shared_.unfinished.insert(ticket);
    if (const auto* staging = std::get_if<Staging*>(&request.data)) {
        (*staging)->submitted(this, ticket);
    }
    return ticket;
}

void Transport::scanned(Staging& staging, std::span<const std::int64_t> special_blocks,
                        std::span<const float> elements) {
    const Ticket ticket = staging.ticket_at(this);
    staging.scanned(special_blocks, elements);
    const std::lock_guard lock(mutex_);
    check_alive();
    post([ticket](Engine& engine, double now) { engine.scanned(ticket, now); });
}

void Transport::packed(Staging& staging, std::size_t blocks) {
    const Ticket ticket = staging.ticket_at(this);
    const std::lock_guard lock(mutex_);
    staging.packed(blocks);
    check_alive();
    post([ticket, blocks](Engine& engine, double now) { engine.packed(ticket, blocks, now); });
}

std::optional<Progress> Transport::progress(const Staging& staging, std::size_t known, std::size_t summed,
                                            std::optional<double> timeout) {
    staging.ticket_at(this);
    std::unique_lock lock(mutex_);
    return wait_for(progressed_, lock, timeout, [&]() -> std::optional<Progress> {
        const Progress& now = staging.progress;
        return now.known > known || now.summed > summed || now.done ? std::optional(now) : std::nullopt;
    });
}

const BlockFloats& Transport::special_sums(const Staging& staging) const {
    staging.ticket_at(this);
    const std::lock_guard lock(mutex_);
    return staging.special_sums();
}

const BlockFloats& Transport::outlier_residuals(const Staging& staging) const {
    staging.ticket_at(this);
    const std::lock_guard lock(mutex_);
    return staging.outlier_residuals();
}

// With mutex_ held.
void Transport::check_ticket(Ticket ticket) const {
    if (ticket == 0 || ticket > shared_.last_ticket) {
        throw std::invalid_argument("there is no ticket " + std::to_string(ticket));
    }
}

bool Transport::wait(Ticket ticket, std::optional<double> timeout) {
    std::unique_lock lock(mutex_);
    check_ticket(ticket);
    return wait_for(changed_, lock, timeout, [&] { return !shared_.unfinished.contains(ticket); });
}

void Transport::watch(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    check_ticket(ticket);
    if (shared_.unfinished.contains(ticket)) {
        shared_.watched.insert(ticket);
    } else {
        shared_.done.push_back(ticket);
        done_.notify_all();
    }
}

std::optional<Ticket> Transport::next_done(std::optional<double> timeout) {
    std::unique_lock lock(mutex_);
    return wait_for(done_, lock, timeout, [&]() -> std::optional<Ticket> {
        if (shared_.done.empty()) {
            return std::nullopt;
        }
        const Ticket ticket = shared_.done.front();
        shared_.done.pop_front();
        return ticket;
    });
}

void Transport::fail(const std::string& reason) {
    std::unique_lock lock(mutex_);
    post([reason](Engine& engine, double) { engine.fail(FailureCode::failed, reason); });
    changed_.wait(lock, [this] { return shared_.failure.has_value(); });
}

std::optional<Failure> Transport::failure() const {
    const std::lock_guard lock(mutex_);
    return shared_.failure;
}

TransportStats Transport::stats() const {
    TransportStats stats;
    {
        const std::lock_guard lock(mutex_);
        stats = shared_.stats;
    }
    read_processor_times(thread_.id(), stats);
    return stats;
}

void Transport::close() {
    const auto stop = [this] {
        {
            const std::lock_guard lock(mutex_);
            shared_.closing = true;
        }
        wakeup_.wake();
    };
    thread_.end(stop, [this] {
        leave_own_server();
        mail_.clear();
        mail_memory_.reset();
        socket_.close();
        results_.reset();
        const std::lock_guard lock(mutex_);
        wakeup_.close();
    });
}

}  // namespace inagg
