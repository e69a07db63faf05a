// SPDX-License-Identifier: Apache-2.0
#include "wire/wire.hpp"

namespace inagg {
namespace {

template <typename T>
void put(std::byte* out, T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
        out[i] = static_cast<std::byte>(value >> (8 * (sizeof(T) - 1 - i)));
    }
}

template <typename T>
T get(const std::byte* in) {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
        value = static_cast<T>((value << 8) | std::to_integer<T>(in[i]));
    }
    return value;
}

// The shift above would be by the whole width of a one-byte T.
template <>
std::uint8_t get<std::uint8_t>(const std::byte* in) {
    return std::to_integer<std::uint8_t>(*in);
}

constexpr unsigned EXPONENT_BITS = 10;

constexpr std::uint8_t flags_in(std::uint16_t field) {
    return static_cast<std::uint8_t>(field >> EXPONENT_BITS);
}

constexpr std::uint16_t exponent_in(std::uint16_t field) { return field & ((1U << EXPONENT_BITS) - 1); }

}  // namespace

void encode(const Header& header, std::span<std::byte, HEADER_BYTES> out) {
    std::byte* p = out.data();
    const Announcement& announced = header.announced;
    put(p + 0, static_cast<std::uint8_t>(p4::INAGG_VERSION << 4 | static_cast<unsigned>(header.kind)));
    put(p + 1, header.rank);
    put(p + 2, header.job);
    put(p + 4, static_cast<std::uint16_t>(announced.flags << EXPONENT_BITS | announced.exponent));
    put(p + 6, static_cast<std::uint16_t>(announced.flags_check << EXPONENT_BITS | announced.exponent_check));
    put(p + 8, header.epoch);
    put(p + 12, header.chunk);
    put(p + 16, header.checksum);
}

std::optional<Header> decode(std::span<const std::byte> datagram) {
    const std::byte* p = datagram.data();
    if (datagram.size() < HEADER_BYTES || get<std::uint8_t>(p) >> 4 != p4::INAGG_VERSION) {
        return std::nullopt;
    }
    const Kind kind = static_cast<Kind>(get<std::uint8_t>(p) & 0xF);
    switch (kind) {
        case Kind::exponent:
        case Kind::data:
        case Kind::exponent_result:
        case Kind::data_result:
        case Kind::exponent_query:
        case Kind::data_query:
        case Kind::exponent_answer:
        case Kind::data_answer:
            break;
        default:
            return std::nullopt;
    }
    const auto stated = get<std::uint16_t>(p + 4);
    const auto check = get<std::uint16_t>(p + 6);
    return Header{.kind = kind,
                  .rank = get<std::uint8_t>(p + 1),
                  .job = get<std::uint16_t>(p + 2),
                  .announced = {.flags = flags_in(stated),
                                .exponent = exponent_in(stated),
                                .flags_check = flags_in(check),
                                .exponent_check = exponent_in(check)},
                  .epoch = get<std::uint32_t>(p + 8),
                  .chunk = get<std::uint32_t>(p + 12),
                  .checksum = get<std::uint32_t>(p + 16)};
}

std::uint64_t decode_bitmap(std::span<const std::byte> bytes) { return get<std::uint64_t>(bytes.data()); }

}  // namespace inagg
