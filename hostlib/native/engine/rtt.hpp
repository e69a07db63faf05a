// SPDX-License-Identifier: Apache-2.0
//
// How long to wait for a result: RFC 6298's estimator, held within a policy (protocol.md, 6.1). Seconds.
#ifndef INAGG_RTT_HPP
#define INAGG_RTT_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace inagg {

struct RetransmissionPolicy {
    double rto_initial = 0.1;
    double rto_min = 0.001;  // the RTO is at least SRTT + rto_min: RFC 6298's G
    double rto_max = 1.0;
    double give_up = 120.0;
    double silent = std::numeric_limits<double>::infinity();  // of a way; none is given up by default

    // Throws std::invalid_argument.
    void validate() const;
};

class RttEstimator {
  public:
    explicit RttEstimator(const RetransmissionPolicy& policy) : policy_(policy), rto_(policy.rto_initial) {}

    // Takes the RTT of `packets` packets; true if it completes a sample. The first RTT is a sample, and then
    // the least of every WINDOW packets: a result also waits for ranks that recover from a loss, and sampling
    // those waits would let the ranks' timeouts drive one another up. If the RTO is the maximum, an RTT of
    // less than a quarter of SRTT begins anew: SRTT has a wait in it, for a process that stood still, and
    // with that RTO a lossy way is too slow to forget it.
    bool measure(double rtt, unsigned packets = 1) {
        if (rto_ == policy_.rto_max && rtt < FORGETS * srtt_) {
            begun_ = false;
            measured_ = 0;
        }
        least_ = measured_ == 0 ? rtt : std::min(least_, rtt);
        measured_ += packets;
        if (begun_ && measured_ < WINDOW) {
            return false;
        }
        measured_ = 0;
        sample(least_);
        return true;
    }

    void sample(double rtt) {
        ++samples_;
        if (!std::exchange(begun_, true)) {
            srtt_ = rtt;
            rttvar_ = rtt / 2;
        } else {
            rttvar_ = 0.75 * rttvar_ + 0.25 * std::abs(srtt_ - rtt);
            srtt_ = 0.875 * srtt_ + 0.125 * rtt;
        }
        rto_ = std::min(srtt_ + std::max(4 * rttvar_, policy_.rto_min), policy_.rto_max);
    }

    // How long silence lasts before the next probe, after `probes` probes in a row.
    double timeout(unsigned probes) const {
        return std::min(rto_ * std::pow(BACKOFF, probes), policy_.rto_max);
    }

    double rto() const { return rto_; }
    double srtt() const { return srtt_; }  // 0 before the first sample
    double rttvar() const { return rttvar_; }
    std::uint64_t samples() const { return samples_; }

  private:
    static constexpr unsigned WINDOW = 8;
    static constexpr double BACKOFF = 1.25;
    static constexpr double FORGETS = 0.25;

    RetransmissionPolicy policy_;
    double rto_;
    double srtt_ = 0;
    double rttvar_ = 0;
    double least_ = 0;
    unsigned measured_ = 0;
    bool begun_ = false;
    std::uint64_t samples_ = 0;
};

// The least RTT of the last MEMORY to 2 MEMORY seconds: what the network takes while its queues are empty,
// which they are at times, between collectives if not before. It forgets, since routes and loads change.
class LeastRtt {
  public:
    void measure(double rtt, double now) {
        if (value_ == 0 || now >= since_ + MEMORY) {
            previous_ = recent_;
            recent_ = rtt;
            since_ = now;
        }
        recent_ = std::min(recent_, rtt);
        value_ = previous_ == 0 ? recent_ : std::min(previous_, recent_);
    }
    double value() const { return value_; }  // 0 before the first RTT

  private:
    static constexpr double MEMORY = 2.0;

    double recent_ = 0;
    double previous_ = 0;
    double since_ = 0;
    double value_ = 0;
};

}  // namespace inagg

#endif
