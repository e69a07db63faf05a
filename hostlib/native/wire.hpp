// SPDX-License-Identifier: Apache-2.0
//
// The inagg header (protocol.md, 2.1). Code points come from p4/include/constants.p4; the ones that the
// switch does not know are here.
#ifndef INAGG_WIRE_HPP
#define INAGG_WIRE_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "constants.hpp"

namespace inagg {

inline constexpr std::uint8_t FLAG_SPECIAL = 0x01;     // the block holds a NaN or an infinity (3.3)
inline constexpr std::uint8_t FLAG_NOT_READY = 0x02;   // a rank has no next collective to announce (3.2)
inline constexpr std::uint16_t EXPONENT_BIAS = 16384;  // an exponent e travels as e + 16384 (3.2)
inline constexpr std::size_t MAX_DATAGRAM = 65507;     // UDP payload that IPv4 can carry
inline constexpr std::size_t HEADER_BYTES = p4::INAGG_HEADER_BYTES;

enum class Kind : std::uint8_t {
    exponent = p4::KIND_EXPONENT,
    data = p4::KIND_DATA,
    exponent_result = p4::KIND_EXPONENT | p4::KIND_RESULT,
    data_result = p4::KIND_DATA | p4::KIND_RESULT,
};

constexpr Kind result_of(Kind contribution) {
    return static_cast<Kind>(static_cast<std::uint8_t>(contribution) | p4::KIND_RESULT);
}

constexpr bool carries_words(Kind kind) { return kind == Kind::data || kind == Kind::data_result; }

constexpr std::size_t words_bytes(std::size_t words) { return words * p4::WORD_BYTES; }

// UDP payload of a packet of this kind.
constexpr std::size_t datagram_bytes(Kind kind, std::size_t words) {
    return HEADER_BYTES + (carries_words(kind) ? words_bytes(words) : 0);
}

struct Header {
    Kind kind;
    std::uint16_t job;
    std::uint8_t rank;
    std::uint8_t flags;
    std::uint16_t exponent;
    std::uint32_t epoch;
    std::uint32_t chunk;
    std::uint32_t checksum;
};

void encode(const Header& header, std::span<std::byte, HEADER_BYTES> out);

// Nothing for a datagram that is shorter than a header, or of another version or kind.
std::optional<Header> decode(std::span<const std::byte> datagram);

// Serial-number arithmetic (RFC 1982): positive when `a` is the newer chunk.
constexpr std::int32_t chunk_age(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b);
}

}  // namespace inagg

#endif
