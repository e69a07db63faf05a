// SPDX-License-Identifier: Apache-2.0
#include "ports/multicast.hpp"

#include <net/ethernet.h>

#include <algorithm>
#include <cstring>

namespace inagg::ports {
namespace {

// The fan-out devices' filter (u32) looks at four bytes behind the Ethernet header. Ethernet has no shorter
// frames, except where a program or a test makes them.
constexpr size_t kShortestClone = ETH_ZLEN;

}  // namespace

bool Multicast::keep(Port& port, const uint8_t* frame, size_t length, size_t shared) {
    if (differ_) return false;
    if (ports_.empty()) {
        head_.assign(frame, frame + length - shared);
        frame_ = frame;
        length_ = length;
        shared_ = shared;
        last_is_kept_ = true;
        ports_.push_back(&port);
        return true;
    }
    last_is_kept_ = last_is_kept_ || equals_kept(frame, length, shared);
    if (last_is_kept_ && std::ranges::find(ports_, &port) == ports_.end()) {
        ports_.push_back(&port);
        return true;
    }
    differ_ = true;
    send_kept();
    return false;
}

bool Multicast::equals_kept(const uint8_t* frame, size_t length, size_t shared) const {
    return length == length_ && shared == shared_ && std::memcmp(frame, head_.data(), head_.size()) == 0;
}

// The frame of the kept copies.
const uint8_t* Multicast::kept_frame() {
    if (shared_ == 0) return head_.data();
    if (std::memcmp(frame_, head_.data(), head_.size()) == 0) return frame_;
    whole_.assign(head_.begin(), head_.end());
    whole_.insert(whole_.end(), frame_ + head_.size(), frame_ + length_);
    return whole_.data();
}

// Sends the kept copies: once, if there is a device for their ports.
void Multicast::send_kept() {
    const uint8_t* frame = kept_frame();
    FanOut* fan = ports_.size() > 1 && length_ >= kShortestClone ? fan_outs_.find(ports_, now_us_) : nullptr;
    if (fan == nullptr || !outbox_.add_clones(*fan, frame, length_)) {
        for (Port* port : ports_) outbox_.add(*port, 0, frame, length_, shared_);
    }
    ports_.clear();
}

}  // namespace inagg::ports
