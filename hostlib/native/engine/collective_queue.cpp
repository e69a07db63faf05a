// SPDX-License-Identifier: Apache-2.0
#include "engine/collective_queue.hpp"

#include <algorithm>
#include <iterator>

namespace inagg {

Collective* CollectiveQueue::find(Ticket ticket) {
    const auto found = std::ranges::find(collectives_, ticket, &Collective::ticket);
    return found == collectives_.end() ? nullptr : &*found;
}

Collective* CollectiveQueue::owner(std::uint32_t chunk) {
    if (placed_ == 0) {
        return nullptr;
    }
    const std::uint32_t front = collectives_.front().base();
    const auto placed_end = collectives_.begin() + static_cast<std::ptrdiff_t>(placed_);
    const auto behind = std::upper_bound(
        collectives_.begin(), placed_end, chunk - front,
        [front](std::uint32_t offset, const Collective& other) { return offset < other.base() - front; });
    // No chunk in use is older than the front, so there is one before `behind`.
    Collective& collective = *std::prev(behind);
    return collective.contains(chunk) ? &collective : nullptr;
}

Collective* CollectiveQueue::next_in_line() {
    return placed_ < collectives_.size() && collectives_[placed_].filled() ? &collectives_[placed_] : nullptr;
}

Collective* CollectiveQueue::place_next() {
    Collective* next = next_in_line();
    if (next == nullptr || !next_base_ || (placed_ > 0 && !collectives_[placed_ - 1].successor_decided())) {
        return nullptr;
    }
    next->place(*next_base_);
    next_base_.reset();
    ++placed_;
    return next;
}

void CollectiveQueue::drop_settled() {
    while (placed_ > 0 && collectives_.front().settled()) {
        collectives_.pop_front();
        --placed_;
    }
}

}  // namespace inagg
