// SPDX-License-Identifier: Apache-2.0
#include "ports/control/update.hpp"

#include "ports/control/wire.hpp"

namespace inagg::ports {
namespace {

// Calls `take` for each field of the message; `take` returns whether it knows the field. Returns true if all
// fields are known and none that is not repeated occurs twice.
template <class Take>
bool read_message(std::string_view message, Take take) {
    wire::Reader reader(message);
    wire::Field field;
    uint32_t seen = 0;
    while (reader.next(field)) {
        if (field.number > 31) return false;
        const uint32_t bit = 1u << field.number;
        bool is_repeated = false;
        if (!take(field, is_repeated) || (!is_repeated && (seen & bit) != 0)) return false;
        seen |= bit;
    }
    return reader.is_sound();
}

bool take(const wire::Field& field, uint32_t& to) {
    to = static_cast<uint32_t>(field.value);
    return field.type == wire::Type::varint && field.value >> 32 == 0;
}

bool take(const wire::Field& field, std::string_view& to) {
    to = field.bytes;
    return field.type == wire::Type::bytes;
}

bool read_kind_of_match(const wire::Field& outer, Update::Match& match) {
    const auto kind = static_cast<MatchKind>(outer.number);
    switch (kind) {
        case MatchKind::exact:
        case MatchKind::ternary:
        case MatchKind::lpm:
        case MatchKind::range:
        case MatchKind::optional:
            break;
        default:
            return false;
    }
    const bool had_one = match.kind != MatchKind::none;
    match.kind = kind;
    std::string_view message;
    return !had_one && take(outer, message) && read_message(message, [&](const wire::Field& field, bool&) {
        if (field.number == 1) return take(field, match.value);
        if (field.number != 2) return false;
        if (kind == MatchKind::lpm) return take(field, match.prefix);
        return (kind == MatchKind::ternary || kind == MatchKind::range) && take(field, match.other);
    });
}

bool read_match(std::string_view message, Update::Match& match) {
    return read_message(message, [&](const wire::Field& field, bool&) {
        return field.number == 1 ? take(field, match.field) : read_kind_of_match(field, match);
    });
}

bool read_param(std::string_view message, Update::Param& param) {
    return read_message(message, [&](const wire::Field& field, bool&) {
        if (field.number == 2) return take(field, param.id);
        return field.number == 3 && take(field, param.value);
    });
}

bool read_action(std::string_view message, Update& update) {
    return read_message(message, [&](const wire::Field& field, bool& is_repeated) {
        if (field.number == 1) return take(field, update.action);
        is_repeated = true;
        std::string_view param;
        return field.number == 4 && take(field, param) && read_param(param, update.params.emplace_back());
    });
}

bool read_table_action(std::string_view message, Update& update) {
    update.has_action = true;
    return read_message(message, [&](const wire::Field& field, bool&) {
        std::string_view action;
        return field.number == 1 && take(field, action) && read_action(action, update);
    });
}

bool read_entry(std::string_view message, Update& update) {
    return read_message(message, [&](const wire::Field& field, bool& is_repeated) {
        std::string_view inner;
        uint32_t priority = 0;
        switch (field.number) {
            case 1:
                return take(field, update.table);
            case 2:
                is_repeated = true;
                return take(field, inner) && read_match(inner, update.match.emplace_back());
            case 3:
                return take(field, inner) && read_table_action(inner, update);
            case 4: {
                const bool is_read = take(field, priority);
                update.priority = static_cast<int32_t>(priority);
                return is_read && update.priority >= 0;
            }
            default:
                return false;
        }
    });
}

}  // namespace

bool read_update(std::string_view message, Update& update) {
    update.kind = Update::Kind::unspecified;
    update.table = update.action = 0;
    update.priority = 0;
    update.has_action = false;
    update.match.clear();
    update.params.clear();
    bool has_entry = false;
    const bool is_read = read_message(message, [&](const wire::Field& field, bool&) {
        uint32_t kind = 0;
        std::string_view inner;
        if (field.number == 1) {
            if (!take(field, kind) || kind < 1 || kind > 3) return false;
            update.kind = static_cast<Update::Kind>(kind);
            return true;
        }
        has_entry = true;
        return field.number == 2 && take(field, inner) &&
               read_message(inner, [&](const wire::Field& entity, bool&) {
                   std::string_view entry;
                   return entity.number == 2 && take(entity, entry) && read_entry(entry, update);
               });
    });
    return is_read && has_entry && update.kind != Update::Kind::unspecified && update.table != 0;
}

}  // namespace inagg::ports
