// SPDX-License-Identifier: Apache-2.0
//
// One update of a P4Runtime WriteRequest, read from its bytes.
#ifndef INAGG_SWITCH_PORTS_UPDATE_HPP
#define INAGG_SWITCH_PORTS_UPDATE_HPP

#include <cstdint>
#include <string_view>
#include <vector>

namespace inagg::ports {

// The numbers are those of p4.v1.FieldMatch's fields; `none`: the match has none of them.
enum class MatchKind : uint32_t { none = 0, exact = 2, ternary = 3, lpm = 4, range = 6, optional = 7 };

struct Update {
    // The numbers are those of p4.v1.Update.Type.
    enum class Kind : uint32_t { unspecified = 0, insert = 1, modify = 2, remove = 3 };

    struct Match {
        uint32_t field = 0;
        MatchKind kind = MatchKind::none;
        std::string_view value;
        std::string_view other;  // mask, or a range's upper end
        uint32_t prefix = 0;
    };

    struct Param {
        uint32_t id = 0;
        std::string_view value;
    };

    Kind kind = Kind::unspecified;
    uint32_t table = 0;
    int32_t priority = 0;
    bool has_action = false;
    uint32_t action = 0;
    std::vector<Match> match;
    std::vector<Param> params;
};

// Reads an update, whose strings refer to the message. Returns false if the entry is not plain: the message
// has other fields, a field of another wire type, or a field twice. Such messages need protobuf's parser.
bool read_update(std::string_view message, Update& update);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_UPDATE_HPP
