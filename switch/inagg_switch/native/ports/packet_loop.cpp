// SPDX-License-Identifier: Apache-2.0
//
// Construction and end of a PacketLoop, the loop, and a frame's path from receive to send. links.cpp has the
// parts that follow interfaces and read statistics.
#include "ports/packet_loop.hpp"

#include <net/ethernet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "ports/links.hpp"
#include "ports/offload/headers.hpp"

namespace inagg::ports {
namespace {

// Tokens of epoll events; every other token is an index in ports_.
constexpr uint64_t kWakeToken = ~uint64_t{0};
constexpr uint64_t kLinksToken = ~uint64_t{1};
constexpr size_t kEpollEvents = 64;
constexpr size_t kSendBatch = 128;
// Bytes of a burst that run through the program before others' do, if several loops share it: a large frame.
constexpr size_t kSharedBurstBytes = size_t{60} << 10;
constexpr uint64_t kSweepUs = 1'000'000;
// The fan-out devices' filter (u32) looks at four bytes behind the Ethernet header. Ethernet has no shorter
// frames, except where a program or a test makes them.
constexpr size_t kShortestClone = ETH_ZLEN;
// Room for the payloads of the results of one iteration of the loop. A job with 1024 slots and packets of 1
// KiB has at most 1 MiB.
constexpr size_t kSharedBytes = size_t{4} << 20;
// Bytes by which a frame may exceed the MTU: the Ethernet header and two VLAN tags, which the MTU does not
// count. More tags do not occur in practice.
constexpr size_t kFrameOverhead = ETH_HLEN + 8;

void watch_fd(int epoll, int fd, uint64_t token) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = token;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
}

}  // namespace

PacketLoop::PacketLoop(const std::vector<std::pair<uint32_t, std::string>>& ports, const Options& options,
                       PacketLoop* first)
    : options_(options),
      first_(first),
      offloads_(options.offloads && kernel_has_offloads()),
      shared_(kSharedBytes),
      batch_(offloads_),
      fan_outs_(offloads_ && options.fan_out, shared_),
      started_(first != nullptr ? first->started_ : std::chrono::steady_clock::now()) {
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
        const bool receives =
            options_.receives.empty() || std::ranges::find(options_.receives, id) != options_.receives.end();
        ports_.push_back(std::make_unique<Port>(
            id, interface, ports_.size(), receives, PortQueues(options_.priority_queues, [this] {
                return OutputQueue(options_.queue_frames, options_.queue_bytes, offloads_, shared_);
            })));
        by_id_[id] = ports_.back().get();
        if (!options_.captures.empty()) {
            ports_.back()->capture = std::make_unique<Capture>(options_.captures.at(ports_.size() - 1));
        }
    }
    const uint32_t cpu_port = options_.cpu_port;
    if (cpu_port > kMaxPort || (cpu_port != 0 && by_id_[cpu_port] != nullptr)) {
        throw std::invalid_argument("CPU port " + std::to_string(cpu_port) +
                                    ": choose a number from 1 to 510 that no port has, or 0 for none");
    }
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    links_ = open_link_monitor();
    try {
        if (epoll_ < 0 || wake_ < 0) throw std::system_error(errno, std::generic_category(), "epoll");
        watch_fd(epoll_, wake_, kWakeToken);
        watch_fd(epoll_, links_, kLinksToken);
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
    for (int* fd : {&epoll_, &links_}) {
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
    const std::lock_guard guard(program_mutex_);
    program_ = program;
    if (program.api == nullptr) return;
    program.api->lock(program.handle);
    program.api->priority_queues(program.handle, options_.priority_queues);
    program.api->unlock(program.handle);
}

uint64_t PacketLoop::now_us() const {
    const auto elapsed = std::chrono::steady_clock::now() - started_;
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count());
}

void PacketLoop::run() {
    std::array<epoll_event, kEpollEvents> events;
    while (!stopping_) {
        const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), patience());
        for (int i = 0; i < count && !stopping_; ++i) handle(events[i].data.u64, events[i].events);
        // This follows the bursts of all ports, so that one call sends a port's frames from all of them.
        flush_dirty();
        if (limited_) flush_held();
        if (const uint64_t now = now_us(); now - swept_us_ >= kSweepUs) {
            swept_us_ = now;
            fan_outs_.sweep(now);
        }
    }
}

// Milliseconds until the loop has something to do without an event; -1: never.
int PacketLoop::patience() const {
    const int sweep = fan_outs_.needs_sweep() ? static_cast<int>(kSweepUs / 1000) : -1;
    if (!limited_) return sweep;
    uint64_t due = PortQueues::kNever;
    for (const auto& port : ports_) {
        if (port->held) due = std::min(due, port->queues.due_us());
    }
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
    Port& port = *ports_[token];
    if (!port.socket.is_open()) return;
    if (events & EPOLLOUT) flush(port);
    if (events & ~static_cast<uint32_t>(EPOLLOUT)) receive_burst(port);
}

void PacketLoop::receive_burst(Port& port) {
    const int count = port.socket.receive(batch_);
    for (int done = 0; done < count;) {
        done = process_burst(port, done, count);
        // What other loops emit from now on should not leave before what this one has emitted.
        if (is_shared()) flush_dirty();
    }
    if (count == -EINVAL && offloads_) {
        drop_received(port, Drop::kRxOffloadUnknown,
                      "a frame with an offload that virtio_net_hdr cannot express");
        return;
    }
    // The kernel reports with one error that the interface went down or was removed. The link monitor reports
    // it too; refresh_link() reads which it is.
    if (count < 0) refresh_link(port);
}

// Runs frames in batch_, from `first` up to `end` or a little less, through the program, which is locked
// meanwhile. Returns the number of the next frame.
int PacketLoop::process_burst(Port& port, int first, int end) {
    const std::lock_guard guard(program_mutex_);
    const bool loaded = program_.api != nullptr;
    const uint64_t now = begin_burst();
    bool locked = false;
    size_t bytes = 0;
    int next = first;
    while (next < end && (bytes < kSharedBurstBytes || !is_shared())) {
        const ReceivedFrame frame = batch_.frame(static_cast<size_t>(next++));
        bytes += frame.length;
        if (!start_frame(port, frame)) continue;
        if (loaded && !locked) {
            program_.api->lock(program_.handle);
            locked = true;
        }
        for (auto packet = cutter_.next(); !packet.empty(); packet = cutter_.next()) {
            port.counters.rx_packets.add(1);
            port.counters.rx_bytes.add(packet.size());
            if (port.capture) {
                cutter_.fill();
                port.capture->in.add(packet.data(), packet.size());
            }
            if (packet.size() > port.link.mtu + kFrameOverhead) {
                drop_too_long(port, packet.size());
            } else if (loaded) {
                process(port.id, packet.data(), packet.size(), now, cutter_.late());
            } else {
                port.counters.drop(Drop::kRxNoProgram).add(1);
            }
        }
    }
    if (locked) program_.api->unlock(program_.handle);
    return next;
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
    report(port, true,
           found + ": dropped. Later drops for this reason are counted but not logged." +
               (offloads_ ? ""
                          : " Switch offloads off at both ends of this link: "
                            "ethtool -K INTERFACE tx off tso off gso off gro off"));
}

// Returns the UDP payload of a packet in shared_, which all copies of the packet have in common; empty if it
// is not there. Only UDP: nobody multicasts TCP. `shared`: the number of bytes at the frame's end that are
// equal in all copies.
std::span<const uint8_t> PacketLoop::shared_payload(const uint8_t* frame, size_t length, size_t shared) {
    if (!offloads_ || shared == 0) return {};
    if (!payload_) {
        const auto headers = find_headers(frame, length);
        const bool found = headers && headers->protocol == IPPROTO_UDP && length - headers->payload <= shared;
        payload_ = found ? shared_.add(frame + headers->payload, length - headers->payload)
                         : std::span<const uint8_t>{};
    }
    return *payload_;
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
    const size_t clones = port->clones_wait ? cloning_->queue.packets() : 0;
    return static_cast<uint32_t>(kernel.packets() + port->queues.packets() + clones);
}

// Takes a frame that the program emitted. The program is locked.
void PacketLoop::take(uint32_t id, const uint8_t* frame, size_t length, size_t shared, size_t copies,
                      bool again, uint32_t priority) {
    copies_.last_is_kept &= again;
    Port* port = receiver(id, frame, length);
    if (port == nullptr) return;
    const bool may_clone = copies > 1 && options_.priority_queues == 1 && !limited_ && fan_outs_.possible();
    if (may_clone && keep_copy(*port, frame, length, shared)) return;
    // A clone of the packet leaves behind the copies that the program emitted before it.
    if (!copies_.ports.empty()) send_copies();
    enqueue(*port, priority, frame, length, shared);
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

// Keeps a copy of a multicast until all are known. Returns false, and has sent those that were kept, if it
// differs from them.
bool PacketLoop::keep_copy(Port& port, const uint8_t* frame, size_t length, size_t shared) {
    if (copies_.differ) return false;
    if (copies_.ports.empty()) {
        copies_.head.assign(frame, frame + length - shared);
        copies_.frame = frame;
        copies_.length = length;
        copies_.shared = shared;
        copies_.last_is_kept = true;
        copies_.ports.push_back(&port);
        return true;
    }
    copies_.last_is_kept = copies_.last_is_kept || equals_kept(frame, length, shared);
    if (copies_.last_is_kept && std::ranges::find(copies_.ports, &port) == copies_.ports.end()) {
        copies_.ports.push_back(&port);
        return true;
    }
    copies_.differ = true;
    send_copies();
    return false;
}

bool PacketLoop::equals_kept(const uint8_t* frame, size_t length, size_t shared) const {
    return length == copies_.length && shared == copies_.shared &&
           std::memcmp(frame, copies_.head.data(), copies_.head.size()) == 0;
}

// The frame of the kept copies.
const uint8_t* PacketLoop::kept_frame() {
    const auto& head = copies_.head;
    if (copies_.shared == 0) return head.data();
    if (std::memcmp(copies_.frame, head.data(), head.size()) == 0) return copies_.frame;
    copies_.whole.assign(head.begin(), head.end());
    copies_.whole.insert(copies_.whole.end(), copies_.frame + head.size(), copies_.frame + copies_.length);
    return copies_.whole.data();
}

// Sends the kept copies: once, if there is a device for their ports.
void PacketLoop::send_copies() {
    const uint8_t* frame = kept_frame();
    const size_t length = copies_.length;
    FanOut* fan = copies_.ports.size() > 1 && length >= kShortestClone
                      ? fan_outs_.find(copies_.ports, burst_us_)
                      : nullptr;
    if (fan == nullptr || !clone(*fan, frame, length)) {
        for (Port* port : copies_.ports) enqueue(*port, 0, frame, length, copies_.shared);
    }
    copies_.ports.clear();
}

// Queues a frame for the kernel to clone. Returns false if every port has to send its own copy.
bool PacketLoop::clone(FanOut& fan, const uint8_t* frame, size_t length) {
    if (cloning_ != &fan && !begin_clones(fan)) return false;
    if (length > longest_clone_) return false;
    if (fan.queue.push(frame, length, longest_clone_)) return true;
    flush_clones();
    return begin_clones(fan) && fan.queue.push(frame, length, longest_clone_);
}

bool PacketLoop::begin_clones(FanOut& fan) {
    flush_clones();
    for (Port* port : fan.ports) {
        if (!port->queues.empty() && !port->blocked) flush(*port);
        if (!port->queues.empty()) return false;
    }
    cloning_ = &fan;
    longest_clone_ = fan.longest();
    for (Port* port : fan.ports) port->clones_wait = true;
    return true;
}

// Hands all frames that wait for a device to the kernel. It clones and sends them before it returns, so the
// device never refuses a frame because others wait. What a port's qdisc drops is not known here.
void PacketLoop::flush_clones() {
    if (cloning_ == nullptr) return;
    FanOut& fan = *std::exchange(cloning_, nullptr);
    int error = 0;
    while (!fan.queue.empty()) {
        FramePieces frame;
        fan.queue.peek(&frame, 1);
        const int result = fan.send(frame);
        if (result == -EINTR) continue;
        const OutputQueue::Amount amount = fan.queue.pop(1);
        for (Port* port : fan.ports) {
            if (result == 0) {
                port->counters.tx_packets.add(amount.packets);
                port->counters.tx_bytes.add(amount.bytes);
                port->waiting.sent(amount.packets, amount.bytes);
            } else {
                port->counters.drop(Drop::kTxError).add(amount.packets);
            }
        }
        if (result == 0) {
            fan_outs_.count_packets(amount.packets);
        } else {
            error = -result;
        }
    }
    for (Port* port : fan.ports) port->clones_wait = false;
    if (error != 0) {
        report(*fan.ports.front(), true,
               std::string("a frame could not be cloned to several ports: ") + std::strerror(error));
        fan.broken = true;
    }
}

void PacketLoop::enqueue(Port& port, uint32_t priority, const uint8_t* frame, size_t length, size_t shared) {
    if (port.clones_wait) flush_clones();
    const size_t limit = port.link.mtu + ETH_HLEN;
    const auto payload = shared_payload(frame, length, shared);
    if (!port.queues.push(priority, frame, length, limit, payload)) {
        // A burst may hold more frames for a port than its queue. Unless the kernel refuses frames, sending
        // makes room.
        if (!port.blocked) flush(port);
        if (!port.queues.push(priority, frame, length, limit, payload)) {
            port.counters.drop(Drop::kTxQueueFull).add(1);
            return;
        }
    }
    if (!port.dirty) {
        port.dirty = true;
        dirty_.push_back(&port);
    }
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
    {
        const std::lock_guard guard(injected_mutex_);
        requests_.emplace_back([this, id, priority, change = std::move(change)] {
            limited_ = true;
            for (auto& port : ports_) {
                if (id != PortQueues::kAll && port->id != id) continue;
                port->queues.limit(priority, change);
                if (!port->blocked) flush(*port);
            }
        });
    }
    wake();
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
    program_.api->lock(program_.handle);
    for (const auto& [port, frame] : frames) {
        process(port, reinterpret_cast<const uint8_t*>(frame.data()), frame.size(), now, nullptr);
    }
    program_.api->unlock(program_.handle);
}

// Called after the bursts, so that readers of the files see whole bursts.
void PacketLoop::flush_captures() {
    if (options_.captures.empty()) return;
    for (auto& port : ports_) port->capture->flush();
}

void PacketLoop::flush_dirty() {
    flush_captures();
    flush_clones();
    for (Port* port : dirty_) {
        port->dirty = false;
        if (!port->blocked) flush(*port);
    }
    dirty_.clear();
}

// Sends from queues whose rate is due.
void PacketLoop::flush_held() {
    for (auto& port : ports_) {
        if (port->held && !port->blocked) flush(*port);
    }
}

// Sends the port's queues until they are empty, their rates hold the rest, or the kernel accepts no more;
// then epoll waits for EPOLLOUT.
void PacketLoop::flush(Port& port) {
    std::array<FramePieces, kSendBatch> frames;
    while (PortQueues::Queue* queue = port.queues.next(now_us())) {
        const size_t count = queue->packets.peek(frames.data(), queue->burst(frames.size()));
        const int sent = port.socket.send(frames.data(), count);
        if (sent > 0) {
            const OutputQueue::Amount amount = queue->packets.pop(static_cast<size_t>(sent));
            queue->sent(amount.packets);
            port.counters.tx_packets.add(amount.packets);
            port.counters.tx_bytes.add(amount.bytes);
            port.waiting.sent(amount.packets, amount.bytes);
        } else if (sent == -EAGAIN) {
            watch(port, true);
            return;
        } else if (sent != -EINTR && !drop_refused(port, queue->packets, -sent)) {
            return;
        }
    }
    watch(port, false);
    port.held = !port.queues.empty();
}

// Drops a queue's oldest frame, which the kernel refused with this errno. Returns false if the interface is
// down or gone and all queues were dropped.
bool PacketLoop::drop_refused(Port& port, OutputQueue& queue, int error) {
    Drop reason = Drop::kTxError;
    switch (error) {
        case ENETDOWN:
        case ENXIO:
        case ENODEV:
            abandon_queue(port, Drop::kTxPortDown);
            return false;
        case ENOBUFS:  // the qdisc, or the backlog of the link's other end, dropped the frame
            reason = Drop::kTxQdiscFull;
            break;
        case EMSGSIZE:
            reason = Drop::kTxLongerThanMtu;
            break;
        default:
            if (!port.error_reported) {
                port.error_reported = true;
                report(port, true, std::string("a frame could not be sent: ") + std::strerror(error));
            }
    }
    port.counters.drop(reason).add(queue.pop(1).packets);
    return true;
}

void PacketLoop::abandon_queue(Port& port, Drop reason) {
    port.counters.drop(reason).add(port.queues.clear());
    port.held = false;
    watch(port, false);
}

// Makes epoll report when the kernel accepts frames of this port again, or stops that.
void PacketLoop::watch(Port& port, bool for_output) {
    if (port.blocked == for_output) return;
    port.blocked = for_output;
    if (!port.socket.is_open()) return;
    epoll_event event{};
    event.events = (port.receives ? static_cast<uint32_t>(EPOLLIN) : 0u) |
                   (for_output ? static_cast<uint32_t>(EPOLLOUT) : 0u);
    event.data.u64 = port.token;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, port.socket.fd(), &event);
}

}  // namespace inagg::ports
