// SPDX-License-Identifier: Apache-2.0
//
// How many chunks a worker keeps in flight (protocol.md, 6.2). All workers of a job move at one pace, each on
// its own links. So the goal is not a fair share but the smallest window that keeps the slowest link busy.
// The signal is delay: the RTT less the recent least RTT is time spent in queues, and the window steers it to
// a target (Kumar et al., Swift: delay is simple and effective for congestion control in the datacenter,
// SIGCOMM 2020). A loss is a sign of congestion only if queues have built up (Fu and Liew, TCP Veno, 2003): a
// lossy link is no reason to slow down. Where switches mark what meets a queue (ECN), the share of marked
// results is a second signal, as in DCTCP (RFC 8257, 3.3): it also shows queues too short to be seen as
// delay. Times are seconds.
#ifndef INAGG_WINDOW_HPP
#define INAGG_WINDOW_HPP

#include <algorithm>

namespace inagg {

class CongestionWindow {
  public:
    // The target for time in queues. A busy machine takes less than this to schedule a worker.
    static constexpr double TARGET = 4e-3;
    static constexpr unsigned LEAST = 16;  // chunks; the limit may be less
    static constexpr unsigned LEAST_TO_SERVER = 8;
    static constexpr unsigned INITIAL = 64;

    // `limit` >= 1: the chunks that the lease and the receive buffer hold. `servers`: the window is divided
    // among so many, where each result waits until the packets of all ranks have passed the server's link. So
    // delay is no signal, only losses and marks are; after the first of these it grows slowly. 0: delay is.
    CongestionWindow(unsigned limit, unsigned servers)
        : limit_(limit),
          least_(std::min(std::max(LEAST, servers * LEAST_TO_SERVER), limit)),
          by_delay_(servers == 0),
          chunks_(std::min(INITIAL, limit)) {}

    unsigned chunks() const { return static_cast<unsigned>(chunks_); }

    // A window's worth of results is in. `least_rtt` is the least RTT among them, `empty_rtt` the RTT of
    // empty queues. `limited`: there was more to send than the window let out. `lost`: some packets were
    // lost. `congested`: the share of the results that met a queue.
    void end_round_trip(double least_rtt, double empty_rtt, bool limited, bool lost, double congested) {
        const double queueing = least_rtt - empty_rtt;
        const bool late = by_delay_ && queueing > TARGET;
        congestion_ += CONGESTION_GAIN * (congested - congestion_);
        if (late || congested > 0) {
            const double for_delay = late ? GENTLENESS * (queueing - TARGET) / queueing : 0;
            const double for_marks = congested > 0 ? congestion_ / 2 : 0;
            shrink(std::max(1 - std::max(for_delay, for_marks), MOST_SHRINKING));
        } else if (lost && queueing > TARGET / 2) {
            shrink(AFTER_LOSS);
        } else if (limited) {
            chunks_ += starting_ ? chunks_ : by_delay_ ? std::max(1.0, chunks_ * GROWTH) : 1.0;
        }
        chunks_ = std::clamp<double>(chunks_, least_, limit_);
    }

  private:
    static constexpr double GENTLENESS = 0.8;  // Swift's beta
    static constexpr double MOST_SHRINKING = 0.5;
    static constexpr double AFTER_LOSS = 0.7;
    static constexpr double GROWTH = 1.0 / 16;
    static constexpr double CONGESTION_GAIN = 1.0 / 16;  // DCTCP's g

    void shrink(double factor) {
        starting_ = false;
        chunks_ *= factor;
    }

    unsigned limit_;
    unsigned least_;
    bool by_delay_;
    double chunks_;
    double congestion_ = 1;  // DCTCP's alpha: the average of `congested`
    bool starting_ = true;   // doubles each round trip until queues are seen
};

}  // namespace inagg

#endif
