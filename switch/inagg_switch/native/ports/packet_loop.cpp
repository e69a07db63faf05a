// SPDX-License-Identifier: Apache-2.0
//
// Construction and end of a PacketLoop, the loop, and a frame's path from receive to send. links.cpp has the
// parts that follow interfaces and read statistics.
#include "ports/packet_loop.hpp"

#include <net/ethernet.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "ports/links.hpp"
#include "ports/steering.hpp"

namespace inagg::ports {
namespace {

// Tokens of epoll events; every other token is an index in ports_.
constexpr uint64_t kWakeToken = ~uint64_t{0};
constexpr uint64_t kLinksToken = ~uint64_t{1};
constexpr uint64_t kTimerToken = ~uint64_t{2};
constexpr size_t kEpollEvents = 64;
constexpr uint64_t kSweepUs = 1'000'000;
// Room for the payloads of the results of one iteration of the loop. A job with 1024 slots and packets of 1
// KiB has at most 1 MiB.
constexpr size_t kSharedBytes = size_t{4} << 20;
// Bytes by which a frame may exceed the MTU: the Ethernet header and two VLAN tags, which the MTU does not
// count. More tags do not occur in practice.
constexpr size_t kFrameOverhead = ETH_HLEN + 8;

}  // namespace

PacketLoop::PacketLoop(const std::vector<std::pair<uint32_t, std::string>>& ports, const Options& options,
                       PacketLoop* first)
    : options_(options),
      first_(first),
      offloads_(options.offloads && kernel_has_offloads()),
      clock_(first != nullptr ? first->clock_ : Clock()),
      shared_(kSharedBytes),
      batch_(offloads_),
      outbox_(ports_, offloads_, shared_, epoll_, clock_, events()),
      fan_outs_(offloads_ && options.fan_out, shared_),
      multicast_(fan_outs_, outbox_) {
    filter_ = filter_of(nullptr, 1, options_.thread);
    for (const auto& [id, interface] : ports) {
        const std::string name = std::to_string(id) + "@" + interface;
        if (id > kMaxPort) throw std::invalid_argument("port " + name + ": ids are 0 to 510");
        if (by_id_[id] != nullptr) throw std::invalid_argument("port " + name + ": the id is given twice");
        for (const auto& other : ports_) {
            if (other->interface == interface) {
                throw std::invalid_argument("port " + name + ": the interface is port " +
                                            std::to_string(other->id) + " already");
            }
        }
        ports_.push_back(std::make_unique<Port>(
            id, interface, ports_.size(), PortQueues(options_.priority_queues, [this] {
                return OutputQueue(options_.queue_frames, options_.queue_bytes, offloads_, shared_);
            })));
        by_id_[id] = ports_.back().get();
        if (first != nullptr) {
            ports_.back()->capture = first->ports_.at(ports_.size() - 1)->capture;
        } else if (!options_.captures.empty()) {
            ports_.back()->capture = std::make_shared<Capture>(options_.captures.at(ports_.size() - 1));
        }
    }
    const uint32_t cpu_port = options_.cpu_port;
    if (cpu_port > kMaxPort || (cpu_port != 0 && by_id_[cpu_port] != nullptr)) {
        throw std::invalid_argument("CPU port " + std::to_string(cpu_port) +
                                    ": choose a number from 1 to 510 that no port has, or 0 for none");
    }
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    links_ = open_link_monitor();
    timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    try {
        if (wake_ < 0 || timer_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
        epoll_.add(wake_, kWakeToken, EPOLLIN);
        epoll_.add(links_, kLinksToken, EPOLLIN);
        epoll_.add(timer_, kTimerToken, EPOLLIN);
        for (auto& port : ports_) {
            try {
                attach(*port);
            } catch (const std::system_error& error) {
                throw std::system_error(error.code(),
                                        "port " + std::to_string(port->id) + "@" + port->interface);
            }
        }
    } catch (...) {
        stop();
        if (wake_ >= 0) ::close(wake_);
        throw;
    }
}

PacketLoop::~PacketLoop() {
    stop();
    ::close(wake_);
}

void PacketLoop::start() {
    if (thread_.joinable()) return;
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "inagg-ports");
}

void PacketLoop::stop() {
    stopping_ = true;
    if (thread_.joinable()) {
        wake();
        thread_.join();
    }
    {
        const std::lock_guard guard(sockets_mutex_);
        for (auto& port : ports_) {
            take_overflows(*port);
            port->socket.close();
        }
    }
    // wake_ stays open: the thread that makes fan-out devices may still write to it.
    epoll_.close();
    for (int* fd : {&links_, &timer_}) {
        if (*fd >= 0) ::close(*fd);
        *fd = -1;
    }
    if (first_ == nullptr) {
        events_.close();
        to_cpu_.close();
    }
    fan_outs_.tasks().close();
    for (auto& port : ports_) port->capture.reset();
}

void PacketLoop::set_program(Program program) {
    const bool runs = program.api != nullptr && options_.thread < program.threads;
    {
        const std::lock_guard guard(program_mutex_);
        program_ = runs ? program : Program{};
        if (runs) {
            program.api->lock(program.handle);
            program.api->priority_queues(program.handle, options_.priority_queues);
            program.api->unlock(program.handle);
        }
    }
    const std::lock_guard guard(sockets_mutex_);
    filter_ = filter_of(runs && program.threads > 1 ? program.api->steering : nullptr, program.threads,
                        options_.thread);
    for (auto& port : ports_) {
        if (port->socket.is_open()) port->socket.filter(filter_);
    }
}

void PacketLoop::run() {
    std::array<epoll_event, kEpollEvents> events{};
    while (!stopping_) {
        const int count = epoll_.wait(events, patience());
        for (int i = 0; i < count && !stopping_; ++i) handle(events[i].data.u64, events[i].events);
        if (!impaired_.empty()) pass_on_impaired();
        // This follows the bursts of all ports, so that one call sends a port's frames from all of them.
        flush();
        if (outbox_.is_limited()) outbox_.flush_held();
        if (!impaired_.empty()) set_timer();
        if (const uint64_t now = now_us(); now - swept_us_ >= kSweepUs) {
            swept_us_ = now;
            fan_outs_.sweep(now);
        }
    }
}

// Milliseconds until the loop has something to do without an event; -1: never.
int PacketLoop::patience() const {
    const int sweep = fan_outs_.needs_sweep() ? static_cast<int>(kSweepUs / 1000) : -1;
    if (!outbox_.is_limited()) return sweep;
    const uint64_t due = outbox_.due_us();
    if (due == PortQueues::kNever) return sweep;
    const uint64_t now = now_us();
    const uint64_t wait = due <= now ? 0 : (due - now + 999) / 1000;
    return static_cast<int>(std::min<uint64_t>(wait, kSweepUs / 1000));
}

void PacketLoop::handle(uint64_t token, uint32_t events) {
    if (token == kWakeToken) {
        process_injected();
        return;
    }
    if (token == kLinksToken) {
        drain_link_monitor(links_);
        refresh_links();
        return;
    }
    if (token == kTimerToken) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(timer_, &count, sizeof count);
        timer_due_us_ = Impairment::kNever;
        return;
    }
    Port& port = *ports_[token];
    if (!port.socket.is_open()) return;
    if (events & EPOLLOUT) outbox_.flush(port);
    if (events & ~static_cast<uint32_t>(EPOLLOUT)) receive_burst(port);
}

void PacketLoop::receive_burst(Port& port) {
    const int count = port.socket.receive(batch_);
    if (count > 0) process_burst(port, static_cast<size_t>(count));
    if (count == -EINVAL && offloads_) {
        drop_received(port, Drop::kRxOffloadUnknown,
                      "a frame with an offload that virtio_net_hdr cannot express");
        return;
    }
    // The kernel reports with one error that the interface went down or was removed. The link monitor reports
    // it too; refresh_link() reads which it is.
    if (count < 0) refresh_link(port);
}

// Runs the frames in batch_ through the program, whose thread is locked meanwhile.
void PacketLoop::process_burst(Port& port, size_t count) {
    const std::lock_guard guard(program_mutex_);
    const bool loaded = program_.api != nullptr;
    const uint64_t now = begin_burst();
    bool locked = false;
    for (size_t i = 0; i < count; ++i) {
        if (!start_frame(port, batch_.frame(i))) continue;
        if (loaded && !locked) {
            program_.api->lock_thread(program_.handle, options_.thread);
            locked = true;
        }
        for (auto packet = cutter_.next(); !packet.empty(); packet = cutter_.next()) {
            port.counters.rx_packets.add(1);
            port.counters.rx_bytes.add(packet.size());
            if (port.capture || port.impaired_in) cutter_.fill();
            if (port.impaired_in) {
                port.impaired_in->add(packet.data(), packet.size(), 0, now);
            } else {
                run_received(port, packet, now, cutter_.late());
            }
        }
    }
    if (locked) program_.api->unlock_thread(program_.handle, options_.thread);
}

// Runs a packet through the program, whose thread is locked.
void PacketLoop::run_received(Port& port, std::span<const uint8_t> packet, uint64_t now,
                              const isw_late* late) {
    if (port.capture) port.capture->in.add(packet.data(), packet.size());
    if (packet.size() > port.link.mtu + kFrameOverhead) {
        drop_too_long(port, packet.size());
    } else if (program_.api != nullptr) {
        process(port.id, packet.data(), packet.size(), now, late);
    } else {
        port.counters.drop(Drop::kRxNoProgram).add(1);
    }
}

// Gives a received frame to cutter_, which cuts it into packets. Returns false if the frame was dropped
// instead.
bool PacketLoop::start_frame(Port& port, const ReceivedFrame& frame) {
    // With offloads, the MTU limits the packets that the frame is cut into, not the frame.
    const size_t limit = offloads_ ? frame.length : port.link.mtu + kFrameOverhead;
    const bool too_long = frame.wire_length > std::min(limit, frame.length);
    const bool lacks_checksum = frame.partial_checksum && !offloads_;
    auto result = Cutter::Result::kOk;
    if (!too_long && !lacks_checksum) {
        result = cutter_.start(frame.offload, frame.data, frame.length);
        if (result == Cutter::Result::kOk) return true;
    }
    port.counters.rx_packets.add(1);
    port.counters.rx_bytes.add(frame.wire_length);
    if (too_long) {
        drop_too_long(port, frame.wire_length);
    } else if (lacks_checksum) {
        drop_received(port, Drop::kRxPartialChecksum, "a frame whose checksum is left to hardware");
    } else {
        const bool unknown = result == Cutter::Result::kUnknown;
        drop_received(port, unknown ? Drop::kRxOffloadUnknown : Drop::kRxOffloadBad,
                      "a frame with an offload that " +
                          std::string(unknown ? "this switch does not support" : "does not match the frame") +
                          " (gso_type " + std::to_string(frame.offload.gso_type) + ")");
    }
    return false;
}

void PacketLoop::drop_too_long(Port& port, size_t length) {
    drop_received(port, Drop::kRxLongerThanMtu,
                  "a frame of " + std::to_string(length) + " bytes, longer than the MTU of " +
                      std::to_string(port.link.mtu));
}

// Counts the drop. A port logs each reason once, when it first occurs; `found` describes that frame.
void PacketLoop::drop_received(Port& port, Drop reason, const std::string& found) {
    port.counters.drop(reason).add(1);
    bool& reported = port.reported[static_cast<size_t>(reason)];
    if (reported) return;
    reported = true;
    events().push(event_of(port, true,
                           found + ": dropped. Later drops for this reason are counted but not logged." +
                               (offloads_ ? ""
                                          : " Switch offloads off at both ends of this link: "
                                            "ethtool -K INTERFACE tx off tso off gso off gro off")));
}

// How many packets wait to leave through a port: in the kernel, and here. The kernel is asked at most once
// for a burst. If it had none, an idle link may send all that this burst brings at once: they do not count.
uint32_t PacketLoop::waiting(uint32_t id) {
    Port* port = id <= kMaxPort ? by_id_[id] : nullptr;
    if (port == nullptr) return 0;
    Waiting& kernel = port->waiting;
    if (port->waiting_burst != bursts_) {
        port->waiting_burst = bursts_;
        if (kernel.is_unknown(burst_us_) || (kernel.is_queued() && port->socket.has_unsent())) {
            kernel.learn(backlogs_.read(port->link.index), burst_us_);
        } else {
            kernel.clear();
        }
    }
    if (kernel.is_empty() && !port->blocked && !port->held) return 0;
    return static_cast<uint32_t>(kernel.packets() + outbox_.packets(*port));
}

// Takes a frame that the program emitted. The program is locked.
void PacketLoop::take(uint32_t id, const uint8_t* frame, size_t length, size_t shared, size_t copies,
                      bool again, uint32_t priority) {
    multicast_.emitted(again);
    Port* port = receiver(id, frame, length);
    if (port == nullptr) return;
    const bool may_clone = copies > 1 && !port->impaired_out && options_.priority_queues == 1 &&
                           !outbox_.is_limited() && fan_outs_.possible();
    if (may_clone && multicast_.keep(*port, frame, length, shared)) return;
    // A clone of the packet leaves behind the copies that the program emitted before it.
    multicast_.send();
    if (port->impaired_out) {
        port->impaired_out->add(frame, length, priority, burst_us_);
    } else {
        outbox_.add(*port, priority, frame, length, shared);
    }
}

// The first packet to each port that does not exist is worth a line in the log.
void PacketLoop::report_unknown(uint32_t id) {
    if (id >= unknown_seen_.size() || unknown_seen_.test(id)) return;
    unknown_seen_.set(id);
    events().push(
        {true, id,
         "port " + std::to_string(id) +
             " does not exist: a packet that the program sent there was dropped, and so are further ones"});
}

// Returns the port that sends the frame; null if none does.
Port* PacketLoop::receiver(uint32_t id, const uint8_t* frame, size_t length) {
    Port* port = id <= kMaxPort ? by_id_[id] : nullptr;
    if (port == nullptr) {
        if (id == options_.cpu_port && id != 0) {
            send_to_cpu(frame, length);
        } else {
            unknown_port_.add(1);
            report_unknown(id);
        }
        return nullptr;
    }
    if (port->capture) port->capture->out.add(frame, length);
    if (length < ETH_HLEN) {
        port->counters.drop(Drop::kTxTooShort).add(1);
        return nullptr;
    }
    if (!port->up.load(std::memory_order_relaxed)) {
        port->counters.drop(Drop::kTxPortDown).add(1);
        return nullptr;
    }
    return port;
}

void PacketLoop::send_to_cpu(const uint8_t* frame, size_t length) {
    if (!to_cpu().push(std::string(reinterpret_cast<const char*>(frame), length))) to_cpu_drops_.add(1);
}

bool PacketLoop::inject(uint32_t port, std::string frame) {
    {
        const std::lock_guard guard(injected_mutex_);
        if (injected_.size() >= kMaxInjected) return false;
        injected_.emplace_back(port, std::move(frame));
    }
    wake();
    return true;
}

void PacketLoop::limit_queues(uint32_t id, uint32_t priority, std::function<void(QueueLimits&)> change) {
    request([this, id, priority, change = std::move(change)] {
        for (auto& port : ports_) {
            if (id == PortQueues::kAll || port->id == id) outbox_.limit(*port, priority, change);
        }
    });
}

void PacketLoop::impair(uint32_t id, Direction direction, const std::optional<ImpairmentSpec>& spec) {
    request([this, id, direction, spec] {
        if (Port* port = id <= kMaxPort ? by_id_[id] : nullptr) set_impairment(*port, direction, spec);
    });
}

// Has the loop's thread do some work.
void PacketLoop::request(std::function<void()> work) {
    {
        const std::lock_guard guard(injected_mutex_);
        requests_.push_back(std::move(work));
    }
    wake();
}

void PacketLoop::set_impairment(Port& port, Direction direction, const std::optional<ImpairmentSpec>& spec) {
    const bool in = direction == Direction::kIn;
    auto& impairment = in ? port.impaired_in : port.impaired_out;
    if (spec && !impairment) {
        impairment =
            std::make_unique<Impairment>(in ? port.counters.impaired_in : port.counters.impaired_out);
    }
    if (spec) {
        impairment->change(*spec);
    } else if (impairment) {
        impairment->release();
        pass_on_impaired();
        impairment.reset();
    }
    impaired_.clear();
    for (auto& each : ports_) {
        if (each->impaired_in || each->impaired_out) impaired_.push_back(each.get());
    }
}

// Passes on the packets of impaired ports that are due: received ones to the program, others to the outbox.
void PacketLoop::pass_on_impaired() {
    if (impaired_due_us() > now_us()) return;
    const std::lock_guard guard(program_mutex_);
    const uint64_t now = begin_burst();
    const bool loaded = program_.api != nullptr;
    if (loaded) program_.api->lock_thread(program_.handle, options_.thread);
    for (Port* port : impaired_) {
        while (auto packet = port->impaired_in ? port->impaired_in->next(now) : std::nullopt) {
            run_received(*port, packet->bytes, now, nullptr);
        }
    }
    if (loaded) program_.api->unlock_thread(program_.handle, options_.thread);
    for (Port* port : impaired_) {
        while (auto packet = port->impaired_out ? port->impaired_out->next(now) : std::nullopt) {
            if (port->up.load(std::memory_order_relaxed)) {
                outbox_.add(*port, packet->priority, packet->bytes.data(), packet->bytes.size(), 0);
            } else {
                port->counters.drop(Drop::kTxPortDown).add(1);
            }
        }
    }
}

// When pass_on_impaired() has something to do.
uint64_t PacketLoop::impaired_due_us() const {
    uint64_t due = Impairment::kNever;
    for (const Port* port : impaired_) {
        if (port->impaired_in) due = std::min(due, port->impaired_in->due_us());
        if (port->impaired_out) due = std::min(due, port->impaired_out->due_us());
    }
    return due;
}

// Has epoll return when a packet is due. Its own timeout has milliseconds only.
void PacketLoop::set_timer() {
    const uint64_t due = impaired_due_us();
    if (due == timer_due_us_ || due == Impairment::kNever) return;
    timer_due_us_ = due;
    const uint64_t now = now_us();
    const uint64_t wait = due > now ? due - now : 0;
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(wait / 1'000'000);
    when.it_value.tv_nsec = static_cast<long>(wait % 1'000'000 * 1000 + 1);  // 0 would disarm it
    timerfd_settime(timer_, 0, &when, nullptr);
}

void PacketLoop::fan_out_made(uint32_t id, int fd) {
    fan_outs_.made(id, fd);
    wake();
}

void PacketLoop::wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void PacketLoop::process_injected() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_, &count, sizeof count);
    fan_outs_.take_made();
    std::vector<std::pair<uint32_t, std::string>> frames;
    std::vector<std::function<void()>> requests;
    {
        const std::lock_guard guard(injected_mutex_);
        frames.swap(injected_);
        requests.swap(requests_);
    }
    for (const auto& request : requests) request();
    const std::lock_guard guard(program_mutex_);
    if (program_.api == nullptr || frames.empty()) return;
    const uint64_t now = begin_burst();
    program_.api->lock_thread(program_.handle, options_.thread);
    for (const auto& [port, frame] : frames) {
        process(port, reinterpret_cast<const uint8_t*>(frame.data()), frame.size(), now, nullptr);
    }
    program_.api->unlock_thread(program_.handle, options_.thread);
}

// Called after the bursts, so that readers of the files see whole bursts.
void PacketLoop::flush_captures() {
    for (auto& port : ports_) {
        if (port->capture) port->capture->flush();
    }
}

void PacketLoop::flush() {
    flush_captures();
    outbox_.flush();
}

}  // namespace inagg::ports
