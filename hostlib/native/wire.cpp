// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

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

// For a one-byte T the shift above would be by its whole width.
template <>
std::uint8_t get<std::uint8_t>(const std::byte* in) {
    return std::to_integer<std::uint8_t>(*in);
}

}  // namespace

void encode(const Header& header, std::span<std::byte, HEADER_BYTES> out) {
    std::byte* p = out.data();
    put(p + 0, p4::INAGG_VERSION);
    put(p + 1, static_cast<std::uint8_t>(header.kind));
    put(p + 2, header.job);
    put(p + 4, header.rank);
    put(p + 5, header.flags);
    put(p + 6, header.exponent);
    put(p + 8, header.epoch);
    put(p + 12, header.chunk);
    put(p + 16, header.checksum);
}

std::optional<Header> decode(std::span<const std::byte> datagram) {
    const std::byte* p = datagram.data();
    if (datagram.size() < HEADER_BYTES || get<std::uint8_t>(p) != p4::INAGG_VERSION) {
        return std::nullopt;
    }
    const Kind kind = static_cast<Kind>(get<std::uint8_t>(p + 1));
    switch (kind) {
        case Kind::exponent:
        case Kind::data:
        case Kind::exponent_result:
        case Kind::data_result:
            break;
        default:
            return std::nullopt;
    }
    return Header{.kind = kind,
                  .job = get<std::uint16_t>(p + 2),
                  .rank = get<std::uint8_t>(p + 4),
                  .flags = get<std::uint8_t>(p + 5),
                  .exponent = get<std::uint16_t>(p + 6),
                  .epoch = get<std::uint32_t>(p + 8),
                  .chunk = get<std::uint32_t>(p + 12),
                  .checksum = get<std::uint32_t>(p + 16)};
}

}  // namespace inagg
