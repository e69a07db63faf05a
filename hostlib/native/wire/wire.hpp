// SPDX-License-Identifier: Apache-2.0
//
// The inagg header (protocol.md, 2.1). Code points come from p4/include/constants.p4, except those that the
// switch does not interpret.
#ifndef INAGG_WIRE_HPP
#define INAGG_WIRE_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "constants.hpp"

namespace inagg {

inline constexpr std::uint8_t FLAG_SPECIAL = 0x01;    // the block holds a NaN or an infinity (3.3)
inline constexpr std::uint8_t FLAG_NOT_READY = 0x02;  // a rank has no next collective to announce (3.2)
inline constexpr std::uint8_t FLAG_WIDE = 0x04;       // the block holds outliers (3.3)
inline constexpr std::uint16_t EXPONENT_BIAS = 256;   // an exponent e travels as e + 256 (3.2)
inline constexpr std::size_t MAX_DATAGRAM = 65507;    // UDP payload that IPv4 can carry
inline constexpr std::size_t HEADER_BYTES = p4::INAGG_HEADER_BYTES;

enum class Kind : std::uint8_t {
    exponent = p4::KIND_EXPONENT,
    data = p4::KIND_DATA,
    exponent_result = p4::KIND_EXPONENT | p4::KIND_RESULT,
    data_result = p4::KIND_DATA | p4::KIND_RESULT,
    exponent_query = p4::KIND_EXPONENT | p4::KIND_QUERY,
    data_query = p4::KIND_DATA | p4::KIND_QUERY,
    exponent_answer = p4::KIND_EXPONENT | p4::KIND_QUERY | p4::KIND_RESULT,
    data_answer = p4::KIND_DATA | p4::KIND_QUERY | p4::KIND_RESULT,
};

constexpr Kind result_of(Kind contribution) {
    return static_cast<Kind>(static_cast<std::uint8_t>(contribution) | p4::KIND_RESULT);
}

constexpr Kind query_for(Kind contribution) {
    return static_cast<Kind>(static_cast<std::uint8_t>(contribution) | p4::KIND_QUERY);
}

constexpr bool is_result(Kind kind) { return (static_cast<std::uint8_t>(kind) & p4::KIND_RESULT) != 0; }
constexpr bool is_query(Kind kind) { return (static_cast<std::uint8_t>(kind) & p4::KIND_QUERY) != 0; }
constexpr bool carries_words(Kind kind) { return kind == Kind::data || kind == Kind::data_result; }

constexpr std::size_t words_bytes(std::size_t words) { return words * p4::WORD_BYTES; }

// UDP payload of a packet of this kind.
constexpr std::size_t datagram_bytes(Kind kind, std::size_t words) {
    return HEADER_BYTES + (carries_words(kind) ? words_bytes(words) : 0);
}

// Flags and an exponent, each with its check field (3.2).
struct Announcement {
    std::uint8_t flags = 0;
    std::uint16_t exponent = 0;
    std::uint8_t flags_check = 0;
    std::uint16_t exponent_check = p4::EXPONENT_CHECK;

    static constexpr Announcement of(std::uint8_t flags, std::uint16_t exponent) {
        return {flags, exponent, flags, static_cast<std::uint16_t>(exponent + p4::EXPONENT_CHECK)};
    }
    constexpr bool agrees() const {
        return flags_check == flags && exponent_check == exponent + p4::EXPONENT_CHECK;
    }
};

// No field has a default, so the compiler requires all of them of each initializer.
struct Header {  // NOLINT(cppcoreguidelines-pro-type-member-init)
    Kind kind;
    std::uint8_t rank;
    std::uint16_t job;
    Announcement announced;
    std::uint32_t epoch;
    std::uint32_t chunk;
    std::uint32_t checksum;
};

// A datagram to send, and which of the sender's destinations it goes to.
struct Outgoing {
    std::span<const std::byte> datagram;
    unsigned destination = 0;
};

void encode(const Header& header, std::span<std::byte, HEADER_BYTES> out);

// Nothing if the datagram is shorter than a header, or has another version or kind.
std::optional<Header> decode(std::span<const std::byte> datagram);

// The bits of workers behind a header (5.7). `bytes` has 8 at least.
std::uint64_t decode_bitmap(std::span<const std::byte> bytes);

// A contribution's checksum includes a mark of its chunk and one of its rank (4). Marks are a permutation of
// the 32-bit numbers without a visible pattern: the finaliser of MurmurHash3.
constexpr std::uint32_t mark(std::uint32_t x) {
    x = (x ^ x >> 16) * 0x85EBCA6B;
    x = (x ^ x >> 13) * 0xC2B2AE35;
    return x ^ x >> 16;
}
constexpr std::uint32_t mark_of_chunk(std::uint32_t chunk) { return mark(chunk); }
constexpr std::uint32_t mark_of_rank(unsigned rank) { return mark(~std::uint32_t{rank}); }

// Serial-number arithmetic (RFC 1982): positive when `a` is the newer chunk.
constexpr std::int32_t chunk_age(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b);
}

}  // namespace inagg

#endif
