// SPDX-License-Identifier: Apache-2.0
//
// How a group ends.
#ifndef INAGG_FAILURE_HPP
#define INAGG_FAILURE_HPP

#include <cstdint>
#include <optional>
#include <string>

#include "numerics/staging.hpp"

namespace inagg {

enum class FailureCode { checksum, kind_mismatch, give_up, silent, failed, closed };

constexpr const char* name(FailureCode code) {
    switch (code) {
        case FailureCode::checksum:
            return "checksum";
        case FailureCode::kind_mismatch:
            return "kind_mismatch";
        case FailureCode::give_up:
            return "give_up";
        case FailureCode::silent:
            return "silent";
        case FailureCode::closed:
            return "closed";
        case FailureCode::failed:
            break;
    }
    return "failed";
}

// What is wrong with a result.
struct Fault {
    FailureCode code;
    std::string reason;
};

// The end of a group. `message` names all that is known: job, rank, collective, chunk.
struct Failure {
    FailureCode code;
    std::string message;
    std::optional<Ticket> collective;
    std::optional<std::uint32_t> chunk;
};

}  // namespace inagg

#endif
