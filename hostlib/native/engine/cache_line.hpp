// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_CACHE_LINE_HPP
#define INAGG_CACHE_LINE_HPP

#include <cstddef>

namespace inagg {

// Bytes between what one thread writes and what others use at the same time: a line of the cache, and its
// neighbour that is fetched with it.
inline constexpr std::size_t CACHE_LINES_APART = 128;

}  // namespace inagg

#endif
