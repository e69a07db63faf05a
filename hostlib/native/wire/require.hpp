// SPDX-License-Identifier: Apache-2.0
//
// Checks of what callers give. std::invalid_argument becomes ValueError in Python.
#ifndef INAGG_REQUIRE_HPP
#define INAGG_REQUIRE_HPP

#include <cstddef>
#include <stdexcept>
#include <string>

#include "wire/wire.hpp"

namespace inagg {

inline void require(bool condition, const std::string& message) {
    if (!condition) {
        throw std::invalid_argument(message);
    }
}

inline void require_words(std::size_t words) {
    require(words >= 1 && words <= (MAX_DATAGRAM - HEADER_BYTES) / p4::WORD_BYTES,
            "words is " + std::to_string(words) + "; a packet has 1 to 255 of them");
}

// Of a job.
inline constexpr unsigned MAX_WORKERS = 4096;

inline void require_workers(unsigned workers) {
    require(workers >= 1 && workers <= MAX_WORKERS,
            "workers is " + std::to_string(workers) + "; it must be 1 to " + std::to_string(MAX_WORKERS));
}

}  // namespace inagg

#endif
