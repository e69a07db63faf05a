// SPDX-License-Identifier: Apache-2.0
#include "ports/fan_out.hpp"

#include <net/ethernet.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace inagg::ports {
namespace {

// Packets in a second that are worth a device, and the seconds for which an unused one is kept.
constexpr unsigned kOften = 256;
constexpr uint64_t kIdleUs = 10'000'000;
// Limits, so that sets that change all the time (random loss on many ports) cost little.
constexpr size_t kMostDevices = 32;
constexpr size_t kMostCandidates = 64;
// Of a device's queue. It is sent after each burst.
constexpr size_t kQueueFrames = 256;
constexpr size_t kQueueBytes = size_t{4} << 20;

}  // namespace

size_t FanOut::longest() const {
    size_t mtu = SIZE_MAX - ETH_HLEN;
    for (const Port* port : ports) mtu = std::min(mtu, port->link.mtu);
    return mtu + ETH_HLEN;
}

int FanOut::send(const FramePieces& frame) const {
    return writev(fd, frame.data(), frame[1].iov_len > 0 ? 2 : 1) < 0 ? -errno : 0;
}

FanOut* FanOuts::find(const std::vector<Port*>& ports, uint64_t now_us) {
    if (last_ == nullptr || last_->ports != ports) {
        const auto found =
            std::ranges::find(fans_, ports, [](const auto& fan) -> const auto& { return fan->ports; });
        if (found == fans_.end()) {
            count_candidate(ports, now_us);
            return nullptr;
        }
        last_ = found->get();
    }
    last_->used_us = now_us;
    return last_->fd >= 0 && !last_->broken ? last_ : nullptr;
}

void FanOuts::count_candidate(const std::vector<Port*>& ports, uint64_t now_us) {
    auto candidate = std::ranges::find(candidates_, ports, &Candidate::ports);
    if (candidate == candidates_.end()) {
        if (candidates_.size() < kMostCandidates) candidates_.push_back({ports, 1});
        return;
    }
    if (++candidate->packets < kOften || fans_.size() == kMostDevices) return;
    candidates_.erase(candidate);
    make(ports, now_us);
}

void FanOuts::make(const std::vector<Port*>& ports, uint64_t now_us) {
    FanOutTask task{next_id_++, {}};
    for (const Port* port : ports) task.interfaces.push_back(port->interface);
    fans_.push_back(
        std::make_unique<FanOut>(FanOut{.id = task.id,
                                        .ports = ports,
                                        .queue = OutputQueue(kQueueFrames, kQueueBytes, true, shared_),
                                        .used_us = now_us,
                                        .packets = packets_}));
    if (!tasks_.push(std::move(task))) fans_.pop_back();
}

void FanOuts::made(uint32_t id, int fd) {
    const std::lock_guard guard(made_mutex_);
    made_.emplace_back(id, fd);
}

void FanOuts::take_made() {
    std::vector<std::pair<uint32_t, int>> made;
    {
        const std::lock_guard guard(made_mutex_);
        made.swap(made_);
    }
    for (const auto& [id, fd] : made) {
        const auto fan = std::ranges::find(fans_, id, [](const auto& one) { return one->id; });
        if (fan == fans_.end()) continue;  // retired meanwhile
        if (fd >= 0) {
            (*fan)->fd = fd;
            ++devices_;
        } else {
            (*fan)->broken = true;
        }
    }
}

template <class Predicate>
void FanOuts::retire_if(Predicate predicate) {
    std::erase_if(fans_, [&](const auto& fan) {
        if (!predicate(*fan)) return false;
        if (fan->fd >= 0) --devices_;
        tasks_.push({fan->id, {}});
        if (last_ == fan.get()) last_ = nullptr;
        return true;
    });
}

void FanOuts::forget(const Port& port) {
    const auto has_port = [&](const auto& set) {
        return std::ranges::find(set.ports, &port) != set.ports.end();
    };
    retire_if(has_port);
    std::erase_if(candidates_, has_port);
}

void FanOuts::sweep(uint64_t now_us) {
    retire_if([&](const FanOut& fan) { return fan.broken || now_us - fan.used_us > kIdleUs; });
    candidates_.clear();
}

}  // namespace inagg::ports
