// SPDX-License-Identifier: Apache-2.0
//
// The collectives under way, in the order of submission, and the chunk at which each begins: where the one
// before it ends, which its exponents tell.
#ifndef INAGG_COLLECTIVE_QUEUE_HPP
#define INAGG_COLLECTIVE_QUEUE_HPP

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "engine/collective.hpp"

namespace inagg {

class CollectiveQueue {
  public:
    explicit CollectiveQueue(std::uint32_t first_chunk) : next_base_(first_chunk) {}

    // Arguments are those of Collective. References stay valid until drop_settled().
    template <typename... Arguments>
    Collective& push(Arguments&&... arguments) {
        return collectives_.emplace_back(std::forward<Arguments>(arguments)...);
    }
    bool empty() const { return collectives_.empty(); }
    const Collective& front() const { return collectives_.front(); }

    // Null if there is no such collective.
    Collective* find(Ticket ticket);
    Collective* owner(std::uint32_t chunk);
    // The first collective that is not placed, if this rank is ready for it; else null.
    Collective* next_in_line();

    // Places the next collective, if its first chunk is known; null otherwise.
    Collective* place_next();
    // The last placed collective is closed, so the next one's first chunk is known.
    void closed(const Collective& last) { next_base_ = last.end(); }

    // Removes settled collectives from the front. One behind an unsettled one stays.
    void drop_settled();

  private:
    std::deque<Collective> collectives_;
    std::size_t placed_ = 0;  // number of collectives, from the front, that have a base
    std::optional<std::uint32_t> next_base_;
};

}  // namespace inagg

#endif
