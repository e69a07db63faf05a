// SPDX-License-Identifier: Apache-2.0
//
// The packet loop: one thread moves frames between network interfaces and the P4 program.
//
// The loop waits in epoll, receives a burst from one port, runs the program on each frame of the burst with
// its thread of the program locked, and then, unlocked, has the outbox send the frames that the program
// emitted. Every packet sees the effects of all packets before it, as with BMv2's single ingress thread, so
// `@atomic` needs no implementation.
//
// Several loops can serve one switch. Each has its own thread of the program (runtime/program.h), and its own
// sockets, queues and fan-out devices for all ports; its sockets receive the frames of its thread
// (steering.hpp). Then a packet sees the effects of those before it in its own thread and in its stripes.
// Loops share capture files, events and packets to the controller.
#ifndef INAGG_SWITCH_PORTS_PACKET_LOOP_HPP
#define INAGG_SWITCH_PORTS_PACKET_LOOP_HPP

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ports/backlog.hpp"
#include "ports/clock.hpp"
#include "ports/counters.hpp"
#include "ports/epoll.hpp"
#include "ports/events.hpp"
#include "ports/fan_out.hpp"
#include "ports/impairment.hpp"
#include "ports/multicast.hpp"
#include "ports/offload/cut.hpp"
#include "ports/outbox.hpp"
#include "ports/port.hpp"
#include "ports/shared.hpp"
#include "ports/socket.hpp"
#include "runtime/program.h"

namespace inagg::ports {

// The largest port number. As in BMv2, 511 means "drop", and a packet for which the program sets none goes to
// port 0.
constexpr uint32_t kMaxPort = 510;

struct Options {
    // Receive buffer of each port's socket.
    size_t receive_buffer_bytes = size_t{32} << 20;
    // Send buffer of each port's socket. It is larger than any sensible tbf limit, so that on a shaped port
    // the qdisc, and not the socket, decides which frames to drop.
    size_t send_buffer_bytes = size_t{32} << 20;
    // Limits of each port's OutputQueue.
    size_t queue_frames = 1024;
    size_t queue_bytes = size_t{4} << 20;
    // Receive and send frames with segmentation and checksum offloads, if the kernel supports it.
    bool offloads = true;
    // Send equal copies of a multicast once (fan_out.hpp). Needs offloads.
    bool fan_out = true;
    // Frames that the program sends to this port number go to the controller. 0: there is no CPU port.
    uint32_t cpu_port = 0;
    // Queues of each port, by standard_metadata.priority: a packet of a higher priority leaves first. More
    // than one turns fan-outs off.
    uint32_t priority_queues = 1;
    // Of each port, the paths of its capture files without "_in.pcap" and "_out.pcap". Empty: no captures.
    std::vector<std::string> captures;
    // Number of the loop among those that serve a switch, from 0: that of its thread of the program.
    uint32_t thread = 0;
};

// A program instance, as its C ABI (runtime/program.h) refers to it, made for `threads` threads. It must
// outlive its use by the loop.
struct Program {
    const isw_api* api = nullptr;
    void* handle = nullptr;
    uint32_t threads = 1;
};

// Owns the ports, their sockets and the thread. Any thread may call the public functions, but start() and
// stop() are for one thread, and after stop() only statistics(), events(), to_cpu() and the counters may be
// used.
class PacketLoop {
  public:
    // Opens every port; each pair is a port number and an interface name. Throws std::system_error, whose
    // what() starts with the port, if a port cannot be opened, and std::invalid_argument for a wrong port
    // number or a duplicate. `first`: the loop of thread 0, whose events(), to_cpu(), capture files and time
    // this one shares, if several serve a switch; it must live longer and be stopped last.
    PacketLoop(const std::vector<std::pair<uint32_t, std::string>>& ports, const Options& options,
               PacketLoop* first = nullptr);
    ~PacketLoop();
    PacketLoop(const PacketLoop&) = delete;
    PacketLoop& operator=(const PacketLoop&) = delete;

    // Starts the thread.
    void start();
    // Ends the thread and closes the sockets, the capture files and the queues events() and to_cpu(). A loop
    // cannot be started again.
    void stop();

    // Frames received after this call run through `program`; if its api is null, they are dropped. On return
    // the loop does not use the previous program any more, and receives the frames of its thread of this one:
    // none if the program has fewer threads, or if there is no program and the loop is not thread 0's. Throws
    // std::system_error.
    void set_program(Program program);

    struct PortStatistics {
        uint32_t id;
        std::string interface;
        bool up;
        std::array<uint64_t, 4> totals;  // rx packets, rx bytes, tx packets, tx bytes
        std::array<uint64_t, static_cast<size_t>(Drop::kCount)> drops;
        std::array<uint64_t, static_cast<size_t>(Effect::kCount)> impaired_in;
        std::array<uint64_t, static_cast<size_t>(Effect::kCount)> impaired_out;
    };
    std::vector<PortStatistics> statistics();
    // Counts the frames that the program sent to a port number that no port has.
    uint64_t unknown_port_drops() const { return unknown_port_.read(); }

    // Whether ports receive and send frames with offloads: Options::offloads is set and the kernel supports
    // it.
    bool has_offloads() const { return offloads_; }

    EventQueue& events() { return first_ != nullptr ? first_->events_ : events_; }

    // The frames that the program sent to the CPU port.
    WaitingQueue<std::string>& to_cpu() { return first_ != nullptr ? first_->to_cpu_ : to_cpu_; }
    // Counts the frames to the CPU port that were dropped because to_cpu() was full.
    uint64_t to_cpu_drops() const { return to_cpu_drops_.read(); }
    // Hands a frame to the loop's thread, which runs it through the program as if `port` had received it.
    // Returns false, and drops the frame, if kMaxInjected frames are waiting.
    bool inject(uint32_t port, std::string frame);

    // Changes the limits of a port's queue of one priority, or of all; kAll: of every port. Takes effect
    // within the next iteration of the loop, and before inject()ed frames.
    void limit_queues(uint32_t id, uint32_t priority, std::function<void(QueueLimits&)> change);

    // Impairs the packets of a port in one direction, or no longer: then those that wait go on at once. Takes
    // effect as limit_queues() does. A port with an impairment gets no clones (fan_out.hpp).
    void impair(uint32_t id, Direction direction, const std::optional<ImpairmentSpec>& spec);

    // For the maker of fan-out devices (fan_out.hpp).
    FanOuts& fan_outs() { return fan_outs_; }
    const FanOuts& fan_outs() const { return fan_outs_; }
    void fan_out_made(uint32_t id, int fd);

    // Microseconds since this object was made: the `now_us` that the program gets with each packet.
    uint64_t now_us() const { return clock_.now_us(); }

  private:
    void run();
    void wake() const;
    void handle(uint64_t token, uint32_t events);
    void receive_burst(Port& port);
    // Returns the time.
    uint64_t begin_burst() {
        ++bursts_;
        return burst_us_ = clock_.now_us();
    }
    void process_burst(Port& port, size_t count);
    bool start_frame(Port& port, const ReceivedFrame& frame);
    void run_received(Port& port, std::span<const uint8_t> packet, uint64_t now, const isw_late* late);
    void drop_too_long(Port& port, size_t length);
    void drop_received(Port& port, Drop reason, const std::string& found);
    void process(uint32_t port, const uint8_t* frame, size_t length, uint64_t now, const isw_late* late) {
        outbox_.begin_packet();
        multicast_.begin_packet(now);
        program_.api->process(program_.handle, options_.thread, port, frame, length, now, late,
                              &PacketLoop::emit, &PacketLoop::queue_length, this);
        multicast_.send();
    }
    static void emit(void* self, uint32_t port, const uint8_t* frame, size_t length, size_t shared,
                     size_t copies, int again, uint32_t priority) {
        static_cast<PacketLoop*>(self)->take(port, frame, length, shared, copies, again != 0, priority);
    }
    static uint32_t queue_length(void* self, uint32_t port) {
        return static_cast<PacketLoop*>(self)->waiting(port);
    }
    uint32_t waiting(uint32_t id);
    void take(uint32_t id, const uint8_t* frame, size_t length, size_t shared, size_t copies, bool again,
              uint32_t priority);
    void report_unknown(uint32_t id);
    Port* receiver(uint32_t id, const uint8_t* frame, size_t length);
    void send_to_cpu(const uint8_t* frame, size_t length);
    void process_injected();
    void request(std::function<void()> work);
    void set_impairment(Port& port, Direction direction, const std::optional<ImpairmentSpec>& spec);
    void pass_on_impaired();
    uint64_t impaired_due_us() const;
    void set_timer();
    void flush_captures();
    void flush();
    int patience() const;

    void attach(Port& port);
    void detach(Port& port);
    void refresh_links();
    void refresh_link(Port& port);
    void take_overflows(Port& port);
    void report_link(const Port& port, bool warning, const std::string& message);

    const Options options_;
    PacketLoop* const first_;
    const bool offloads_;
    const Clock clock_;
    SharedBytes shared_;
    std::vector<std::unique_ptr<Port>> ports_;
    std::array<Port*, kMaxPort + 1> by_id_{};
    ReceiveBatch batch_;
    Cutter cutter_;
    EventQueue events_;
    Epoll epoll_;
    Outbox outbox_;
    FanOuts fan_outs_;
    uint64_t swept_us_ = 0;  // when fan_outs_ was swept last
    Multicast multicast_;
    BacklogReader backlogs_;
    uint64_t bursts_ = 0;
    uint64_t burst_us_ = 0;  // the time of the burst that is being processed
    Counter unknown_port_;
    std::bitset<kMaxPort + 2> unknown_seen_;
    WaitingQueue<std::string> to_cpu_;
    Counter to_cpu_drops_;
    static constexpr size_t kMaxInjected = 1000;  // frames
    std::mutex injected_mutex_;  // guards the next two; no other lock is taken while it is held
    std::vector<std::pair<uint32_t, std::string>> injected_;
    std::vector<std::function<void()>> requests_;  // of limit_queues() and impair()

    int wake_ = -1;   // eventfd: stop, a frame was injected, or a fan-out device was made
    int links_ = -1;  // the link monitor: some interface changed
    int timer_ = -1;  // timerfd: a packet of an impaired port is due, to the microsecond
    uint64_t timer_due_us_ = Impairment::kNever;  // what timer_ is set to
    std::vector<Port*> impaired_;                 // ports with an impairment
    std::thread thread_;
    std::atomic<bool> stopping_{false};

    // Lock order: program_mutex_, then the program's own locks.
    std::mutex program_mutex_;  // guards program_; the loop holds it for a burst
    Program program_;
    // Held to open, filter or close a port's socket and to read the kernel's drop counts, because
    // statistics() and set_program() run on other threads. Guards filter_.
    std::mutex sockets_mutex_;
    std::vector<sock_filter> filter_;  // of all sockets: the frames of this loop's thread
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_PACKET_LOOP_HPP
