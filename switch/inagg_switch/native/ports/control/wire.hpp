// SPDX-License-Identifier: Apache-2.0
//
// The part of protobuf's wire format (protobuf.dev, "Encoding") that P4Runtime's table entries use.
// protobuf's Python implementation takes 100 us for each entry.
#ifndef INAGG_SWITCH_PORTS_WIRE_HPP
#define INAGG_SWITCH_PORTS_WIRE_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace inagg::ports::wire {

enum class Type : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct Field {
    uint32_t number = 0;
    Type type{};
    uint64_t value = 0;      // of a varint
    std::string_view bytes;  // of a string, bytes or message
    std::string_view whole;  // with its tag
};

// Iterates over the fields of a message. Groups, which P4Runtime does not use, count as malformed.
class Reader {
  public:
    explicit Reader(std::string_view message) : at_(message.data()), end_(at_ + message.size()) {}

    // Reads the next field. Returns false at the end and if the message is malformed.
    bool next(Field& field) {
        if (at_ == end_) return false;
        const char* start = at_;
        uint64_t tag = 0;
        is_sound_ = varint(tag) && tag >> 3 != 0 && tag >> 32 == 0;
        if (!is_sound_) return false;
        field.number = static_cast<uint32_t>(tag >> 3);
        field.type = static_cast<Type>(tag & 7);
        is_sound_ = contents(field);
        field.whole = {start, static_cast<size_t>(at_ - start)};
        return is_sound_;
    }
    bool is_sound() const { return is_sound_; }

  private:
    bool varint(uint64_t& value) {
        value = 0;
        for (unsigned shift = 0; shift < 64 && at_ != end_; shift += 7) {
            const auto byte = static_cast<uint8_t>(*at_++);
            value |= uint64_t{byte & 0x7Fu} << shift;
            if (byte < 0x80) return true;
        }
        return false;
    }
    bool skip(uint64_t count) {
        if (count > static_cast<uint64_t>(end_ - at_)) return false;
        at_ += count;
        return true;
    }
    bool contents(Field& field) {
        switch (field.type) {
            case Type::varint:
                return varint(field.value);
            case Type::fixed64:
                return skip(8);
            case Type::fixed32:
                return skip(4);
            case Type::bytes:
                break;
            default:
                return false;
        }
        uint64_t length = 0;
        if (!varint(length)) return false;
        field.bytes = {at_, static_cast<size_t>(length)};
        return skip(length);
    }

    const char* at_;
    const char* end_;
    bool is_sound_ = true;
};

inline void put_varint(std::string& out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
}

inline void put_tag(std::string& out, uint32_t number, Type type) {
    put_varint(out, number << 3 | static_cast<uint32_t>(type));
}

// Appends a number, unless it is 0. Negative numbers have 64 bits, in two's complement.
inline void put(std::string& out, uint32_t number, uint64_t value) {
    if (value == 0) return;
    put_tag(out, number, Type::varint);
    put_varint(out, value);
}

inline void put(std::string& out, uint32_t number, std::string_view bytes) {
    put_tag(out, number, Type::bytes);
    put_varint(out, bytes.size());
    out.append(bytes);
}

// Returns P4Runtime's canonical form of a big-endian number: without leading zeros, at least one byte.
inline std::string_view canonical(std::string_view value) {
    const size_t zeros = value.find_first_not_of('\0');
    return zeros == value.npos ? value.substr(value.size() - 1) : value.substr(zeros);
}

}  // namespace inagg::ports::wire

#endif  // INAGG_SWITCH_PORTS_WIRE_HPP
