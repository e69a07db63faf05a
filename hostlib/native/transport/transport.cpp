// SPDX-License-Identifier: Apache-2.0
#include "transport/transport.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "wire/require.hpp"

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

// Of the packets that a packet thread makes at a time.
std::size_t batch_memory(const EngineConfig& config) {
    return (config.ways_apart ? SENT_AT_ONCE / BATCH : 1) * MAX_DATAGRAM;
}

EngineConfig with_packet_threads(EngineConfig config, std::size_t packet_threads) {
    config.packet_threads = static_cast<unsigned>(packet_threads);
    config.validate();
    return config;
}

// Makes room for the results of a whole window. If the kernel grants less, the window is smaller.
EngineConfig bounded_by_buffer(EngineConfig config, const std::vector<UdpSocket*>& sockets,
                               TransportStats& stats) {
    const std::size_t packet = datagram_bytes(Kind::data, config.job.words) + PACKET_OVERHEAD;
    stats.receive_buffer_wanted = packet * config.job.slots;
    stats.receive_buffer = std::numeric_limits<std::uint64_t>::max();
    for (UdpSocket* socket : sockets) {
        stats.receive_buffer = std::min<std::uint64_t>(
            stats.receive_buffer, socket->reserve_receive_buffer(stats.receive_buffer_wanted));
    }
    config.window_limit = static_cast<std::uint32_t>(
        std::clamp<std::size_t>(stats.receive_buffer / packet, 1, config.job.slots));
    // Whole messages: a window that ends within one makes shorter ones, here and behind the switch. The
    // engine itself makes those to several servers whole.
    const std::uint32_t whole = datagrams_in_message(datagram_bytes(Kind::data, config.job.words));
    const std::uint32_t message =
        config.strands() == 1 ? whole : std::min<std::uint32_t>(whole, p4::RUN_CHUNKS);
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
void PacketCounts::read_processor_times(pid_t thread) {
    double running = 0;
    double waiting = 0;
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
    if (thread != 0 && file >> running >> waiting) {
        processor = running * 1e-9;
        processor_wait = waiting * 1e-9;
    }
}

PacketCounts& PacketCounts::operator+=(const PacketCounts& other) {
    send_calls += other.send_calls;
    receive_calls += other.receive_calls;
    messages_sent += other.messages_sent;
    messages_received += other.messages_received;
    send_refusals += other.send_refusals;
    network_errors += other.network_errors;
    multicast_received += other.multicast_received;
    processor += other.processor;
    processor_wait += other.processor_wait;
    segmentation = segmentation && other.segmentation;
    return *this;
}

double Transport::seconds_now() {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Makes the packet threads, which do not run yet.
std::vector<std::unique_ptr<Transport::PacketThread>> Transport::made_of(std::vector<Ends> ends,
                                                                         const EngineConfig& config) {
    const std::size_t memory = batch_memory(config);
    const std::size_t most_held = config.keeps_results ? KeptResults::most_held(config.job) : 0;
    std::vector<std::unique_ptr<PacketThread>> threads;
    for (Ends& each : ends) {
        const auto number = static_cast<unsigned>(threads.size());
        threads.push_back(std::make_unique<PacketThread>(number, std::move(each), memory, most_held));
    }
    return threads;
}

EngineConfig Transport::bounded_config() {
    std::vector<UdpSocket*> sockets;
    for (const auto& thread : std::span(threads_).first(config_.packet_threads)) {
        sockets.push_back(&thread->socket);
        if (thread->results) {
            sockets.push_back(&*thread->results);
        }
    }
    return bounded_by_buffer(config_, sockets, shared_.stats);
}

Transport::Transport(const EngineConfig& config, std::vector<Ends> ends, Peers peers, double spin)
    : config_(with_packet_threads(config, ends.size())),
      peers_(std::move(peers)),
      within_process_(within_process(peers_)),
      local_address_(ends.front().socket.local_address()),
      spin_(spin),
      threads_(made_of(std::move(ends), config)),
      mailbox_(threads_.front()->wakeup),
      engine_(bounded_config()) {
    shared_.stats.packet_threads = config_.packet_threads;
    shared_.stats.engine = engine_.stats();
    attach_own_server();
    try {
        for (const auto& thread : threads_) {
            PacketThread& self = *thread;
            self.thread.start([this, &self] { loop(self); }, [this, &self] { ended(self); });
        }
    } catch (...) {
        close();
        leave_own_server();
        throw;
    }
}

void Transport::attach_own_server() {
    if (peers_.own_server) {
        const JobShape& job = config_.job;
        mail_memory_ = peers_.own_server->attach(job.number, job.epoch, config_.rank, mailbox_);
    }
}

// The mail refers to the server's memory.
void Transport::leave_own_server() {
    if (peers_.own_server) {
        peers_.own_server->detach(mailbox_);
    }
    mail_.clear();
    mailbox_.take(mail_);
    mail_.clear();
    mail_memory_.reset();
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

// Calls call(now), which is to change the engine, and tells the packet threads. With mutex_ held. The first
// of them looks at the engine's deadline too.
template <typename Call>
void Transport::tell_engine(Call call) {
    try {
        if (!engine_.failure()) {
            call(seconds_now());
        }
    } catch (const std::exception& error) {
        engine_.fail(FailureCode::failed, error.what());
    }
    publish();
    if (threads_.front()->asleep) {
        threads_.front()->wakeup.wake();
    }
    wake(threads_.front().get());
}

// Wakes the packet threads that have something to send, but for `self`. With mutex_ held.
void Transport::wake(const PacketThread* self) {
    for (const auto& thread : threads_) {
        if (thread.get() != self && thread->asleep && engine_.anything_to_send(thread->number)) {
            thread->wakeup.wake();
        }
    }
}

Ticket Transport::submit(const Request& request) {
    const std::lock_guard lock(mutex_);
    config_.validate(request);
    check_alive();
    const Ticket ticket = ++shared_.last_ticket;
    shared_.unfinished.insert(ticket);
    if (const auto* staging = std::get_if<Staging*>(&request.data)) {
        (*staging)->submitted(this, ticket);
    }
    tell_engine([&](double now) { engine_.submit(ticket, request, now); });
    return ticket;
}

void Transport::filled(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    check_ticket(ticket);
    check_alive();
    tell_engine([&](double now) { engine_.filled(ticket, now); });
}

void Transport::scanned(Staging& staging, std::span<const std::int64_t> special_blocks,
                        std::span<const float> elements) {
    const Ticket ticket = staging.ticket_at(this);
    staging.scanned(special_blocks, elements);
    const std::lock_guard lock(mutex_);
    check_alive();
    tell_engine([&](double now) { engine_.filled(ticket, now); });
}

void Transport::packed(Staging& staging, std::size_t blocks) {
    const Ticket ticket = staging.ticket_at(this);
    const std::lock_guard lock(mutex_);
    staging.packed(blocks);
    check_alive();
    tell_engine([&](double now) { engine_.packed(ticket, blocks, now); });
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

UdpAddress Transport::local_address() const {
    // A forked child may have got the mutex locked.
    Lock lock(mutex_, std::defer_lock);
    if (!forked()) {
        lock.lock();
    }
    return local_address_;
}

bool Transport::all_parked() const {
    return std::ranges::all_of(threads_, [](const auto& thread) { return thread->parked; });
}

std::vector<std::uint32_t> Transport::freeze() {
    std::unique_lock lock(mutex_);
    check_alive();
    engine_.freeze();
    for (const auto& thread : threads_) {
        thread->wakeup.wake();
    }
    parked_.wait(lock, [this] { return all_parked() || shared_.failure; });
    check_alive();
    return engine_.next_chunks();
}

// With mutex_ held.
void Transport::require_frozen() const {
    check_alive();
    require(engine_.frozen() && all_parked(), "the transport is not frozen");
}

std::vector<std::byte> Transport::kept(std::uint32_t chunk) const {
    const std::lock_guard lock(mutex_);
    const std::span<const std::byte> datagram = engine_.kept(chunk);
    return {datagram.begin(), datagram.end()};
}

bool Transport::fill(std::span<const std::byte> result) {
    const std::lock_guard lock(mutex_);
    require_frozen();
    const bool filled = engine_.fill(result, seconds_now());
    publish();
    return filled;
}

void Transport::go_on(const EngineConfig& config, std::vector<Ends> ends, Peers peers) {
    const std::lock_guard lock(mutex_);
    require_frozen();
    const EngineConfig next = with_packet_threads(config, ends.size());
    engine_.require_same_job(next);
    require(ends.size() <= threads_.size(), "the transport has " + std::to_string(threads_.size()) +
                                                " packet threads, and the way " +
                                                std::to_string(ends.size()));
    leave_own_server();
    config_ = next;
    peers_ = std::move(peers);
    within_process_ = within_process(peers_);
    local_address_ = ends.front().socket.local_address();
    for (const auto& rest : std::span(threads_).subspan(ends.size())) {
        rest->results.reset();
    }
    for (std::size_t i = 0; i < ends.size(); ++i) {
        PacketThread& thread = *threads_[i];
        thread.socket = std::move(ends[i].socket);
        thread.results = std::move(ends[i].results);
        thread.packets.resize(batch_memory(config_));
        thread.readable = {};
        thread.too_long = false;
    }
    shared_.stats.unicast_in_a_row = 0;
    shared_.stats.packet_threads = config_.packet_threads;
    attach_own_server();
    engine_.go_on(bounded_config(), seconds_now());
    publish();
    resumed_.notify_all();
}

void Transport::fail(const std::string& reason) {
    std::unique_lock lock(mutex_);
    tell_engine([&](double) { engine_.fail(FailureCode::failed, reason); });
    changed_.wait(lock, [this] { return shared_.failure.has_value(); });
}

std::optional<Failure> Transport::failure() const {
    const std::lock_guard lock(mutex_);
    return shared_.failure;
}

TransportStats Transport::stats() const {
    TransportStats stats;
    std::vector<PacketCounts> each;
    {
        // A forked child may have got the mutex locked.
        Lock lock(mutex_, std::defer_lock);
        if (!forked()) {
            lock.lock();
        }
        stats = shared_.stats;
        for (const auto& thread : threads_) {
            each.push_back(thread->published);
        }
    }
    for (std::size_t i = 0; i < each.size(); ++i) {
        each[i].read_processor_times(threads_[i]->thread.id());
        stats += each[i];
    }
    return stats;
}

void Transport::close() {
    const auto stop = [this] {
        const std::lock_guard lock(mutex_);
        shared_.closing = true;
        resumed_.notify_all();
        for (const auto& thread : threads_) {
            thread->wakeup.wake();
        }
    };
    for (const auto& thread : threads_) {
        thread->thread.end(stop, [this, &self = *thread] {
            const std::lock_guard lock(mutex_);
            if (self.number == 0) {
                leave_own_server();
            }
            self.socket.close();
            self.results.reset();
            self.wakeup.close();
        });
    }
}

}  // namespace inagg
