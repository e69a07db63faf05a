// SPDX-License-Identifier: Apache-2.0
//
// The packet side of the switch: one thread moves frames between network interfaces and the P4 program.
//
// One thread for everything, as BMv2 has one ingress thread: every packet sees the effects of all packets
// before it, so `@atomic` needs nothing. The loop sleeps in epoll, takes a burst from one port, runs the
// program on each of its frames under the program's lock, and then, without the lock, sends what came out.
#ifndef INAGG_SWITCH_PORTS_SWITCH_HPP
#define INAGG_SWITCH_PORTS_SWITCH_HPP

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ports/capture.hpp"
#include "ports/counters.hpp"
#include "ports/events.hpp"
#include "ports/offload/cut.hpp"
#include "ports/queue.hpp"
#include "ports/shared.hpp"
#include "ports/socket.hpp"
#include "runtime/program.h"

namespace inagg::ports {

constexpr uint32_t kMaxPort = 510;  // 511 is BMv2's drop port, 0 its "unset"

struct Options {
    size_t receive_buffer_bytes = size_t{32} << 20;
    // More than any sensible tbf limit: a shaped port's queue is its qdisc, and the qdisc decides what to
    // drop.
    size_t send_buffer_bytes = size_t{32} << 20;
    size_t queue_frames = 1024;
    size_t queue_bytes = size_t{4} << 20;
    // Frames with segmentation and checksum offloads are taken and sent, where the kernel can.
    bool offloads = true;
    // What the program sends to this port goes to the controller; 0: there is none.
    uint32_t cpu_port = 0;
    // Folder for capture files; empty: none are written.
    std::string capture_folder;
};

struct Program {
    const isw_api* api = nullptr;
    void* handle = nullptr;
};

class PacketLoop {
  public:
    // Opens every port. Throws std::system_error (its what() names the port) or std::invalid_argument.
    PacketLoop(const std::vector<std::pair<uint32_t, std::string>>& ports, const Options& options);
    ~PacketLoop();
    PacketLoop(const PacketLoop&) = delete;
    PacketLoop& operator=(const PacketLoop&) = delete;

    void start();
    void stop();

    // Frames received from now on run through `program`; one without api drops them. On return the previous
    // program is no longer in use.
    void set_program(Program program);

    struct PortStatistics {
        uint32_t id;
        std::string interface;
        bool up;
        std::array<uint64_t, 4> totals;  // rx packets, rx bytes, tx packets, tx bytes
        std::array<uint64_t, static_cast<size_t>(Drop::kCount)> drops;
    };
    std::vector<PortStatistics> statistics();
    // Frames that the program sent to a port number without a port.
    uint64_t unknown_port_drops() const { return unknown_port_.read(); }

    // Whether frames with offloads are taken: they were wanted, and the kernel can.
    bool has_offloads() const { return offloads_; }

    EventQueue& events() { return events_; }

    // Frames that the program sent to the CPU port.
    WaitingQueue<std::string>& to_cpu() { return to_cpu_; }
    // Those for which it had no room.
    uint64_t to_cpu_drops() const { return to_cpu_drops_.read(); }
    // Runs a frame through the program as if it had come in by `port`; false if too many wait for that.
    bool inject(uint32_t port, std::string frame);
    // The time that the program is told, microseconds.
    uint64_t now_us() const;

  private:
    struct Port {
        Port(uint32_t id_, std::string interface_, uint64_t token_, const Options& options, bool offloads,
             SharedBytes& shared)
            : id(id_),
              interface(std::move(interface_)),
              token(token_),
              queue(options.queue_frames, options.queue_bytes, offloads, shared) {}

        const uint32_t id;
        const std::string interface;
        const uint64_t token;  // its index in ports_
        PacketSocket socket;
        Link link;
        OutputQueue queue;
        PortCounters counters;
        std::unique_ptr<Capture> capture;  // none unless there is a folder for it
        uint64_t overflows = 0;            // the kernel's drops; guarded by sockets_mutex_
        std::atomic<bool> up{false};
        bool dirty = false;    // has frames to send after this burst
        bool blocked = false;  // waits for EPOLLOUT
        std::array<bool, static_cast<size_t>(Drop::kCount)> reported{};  // drops of received frames
        bool error_reported = false;
    };

    void run();
    void handle(uint64_t token, uint32_t what);
    void receive_burst(Port& port);
    void process_burst(Port& port, size_t count);
    bool start_frame(Port& port, const ReceivedFrame& frame);
    void drop_too_long(Port& port, size_t length);
    void drop_received(Port& port, Drop reason, const std::string& found);
    void process(uint32_t port, const uint8_t* frame, size_t length, uint64_t now) {
        payload_.reset();
        program_.api->process(program_.handle, port, frame, length, now, &PacketLoop::emit, this);
    }
    static void emit(void* self, uint32_t port, const uint8_t* frame, size_t length, size_t shared) {
        static_cast<PacketLoop*>(self)->enqueue(port, frame, length, shared);
    }
    void enqueue(uint32_t id, const uint8_t* frame, size_t length, size_t shared);
    std::span<const uint8_t> shared_payload(const uint8_t* frame, size_t length, size_t shared);
    void send_to_cpu(const uint8_t* frame, size_t length);
    void process_injected();
    void flush_captures();
    void flush_dirty();
    void flush(Port& port);
    bool drop_refused(Port& port, int error);
    void abandon_queue(Port& port, Drop reason);

    void watch(Port& port, bool for_output);
    void attach(Port& port);
    void detach(Port& port);
    void refresh_links();
    void refresh_link(Port& port);
    void take_overflows(Port& port);
    void report(Port& port, bool warning, std::string message);

    const Options options_;
    const bool offloads_;
    SharedBytes shared_;
    // In shared_, of the copies of the packet that is being processed; none: not looked for yet.
    std::optional<std::span<const uint8_t>> payload_;
    std::vector<std::unique_ptr<Port>> ports_;
    std::array<Port*, kMaxPort + 1> by_id_{};
    std::vector<Port*> dirty_;
    ReceiveBatch batch_;
    Cutter cutter_;
    Counter unknown_port_;
    EventQueue events_;
    WaitingQueue<std::string> to_cpu_;
    Counter to_cpu_drops_;
    static constexpr size_t kMaxInjected = 1000;
    std::mutex injected_mutex_;  // guards injected_; innermost
    std::vector<std::pair<uint32_t, std::string>> injected_;

    int epoll_ = -1;
    int wake_ = -1;   // eventfd: stop, or a frame was injected
    int links_ = -1;  // netlink: some interface changed
    std::thread thread_;
    std::atomic<bool> stopping_{false};
    const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();

    // Lock order: program_mutex_, then the program's own lock.
    std::mutex program_mutex_;  // guards program_; held by the loop for a burst
    Program program_;
    // Guards the sockets being opened and closed, against statistics() of another thread.
    std::mutex sockets_mutex_;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_SWITCH_HPP
