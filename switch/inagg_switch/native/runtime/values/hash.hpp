// SPDX-License-Identifier: Apache-2.0
//
// The algorithms of v1model's HashAlgorithm over a list of fields, as BMv2 computes them
// (src/bm_sim/calculations.cpp). crc32_custom and crc16_custom have the parameters that BMv2 starts with:
// those of crc32 and crc16.
#ifndef INAGG_SWITCH_HASH_HPP
#define INAGG_SWITCH_HASH_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "values/bits.hpp"
#include "values/varbit.hpp"

namespace isw {

// The concatenated bits of the fields. Zero bits fill the last byte.
class HashInput {
  public:
    void start() {
        bytes_.clear();
        used_ = 8;
    }
    template <unsigned W>
    void append(const value_t<W>& v) {
        std::uint8_t bytes[(W + 7) / 8];
        store_value<W>(bytes, v);
        put(bytes[0], W % 8 == 0 ? 8 : W % 8);
        for (std::size_t i = 1; i < sizeof bytes; ++i) put(bytes[i], 8);
    }
    template <unsigned W>
    void append(const Varbit<W>& v) {
        append(v.data, v.length());
    }
    // Appends `n` bytes of payload. Call align() first: the payload starts at a whole byte.
    void append(const std::uint8_t* p, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) put(p[i], 8);
    }
    void align() { used_ = 8; }
    const std::uint8_t* begin() const { return bytes_.data(); }
    const std::uint8_t* end() const { return bytes_.data() + bytes_.size(); }

  private:
    // Appends the low `count` bits of a byte.
    void put(std::uint8_t byte, unsigned count) {
        if (used_ == 8) {
            bytes_.push_back(static_cast<std::uint8_t>(byte << (8 - count)));
            used_ = count;
            return;
        }
        const unsigned room = 8 - used_;
        if (count <= room) {
            bytes_.back() = static_cast<std::uint8_t>(bytes_.back() | byte << (room - count));
            used_ += count;
            return;
        }
        bytes_.back() = static_cast<std::uint8_t>(bytes_.back() | byte >> (count - room));
        bytes_.push_back(static_cast<std::uint8_t>(byte << (8 - (count - room))));
        used_ = count - room;
    }

    std::vector<std::uint8_t> bytes_;
    unsigned used_ = 8;  // bits used in the last byte
};

// The table of a reflected CRC (least significant bit first). `polynomial` has its bits reversed.
template <class T>
constexpr std::array<T, 256> crc_table(T polynomial) {
    std::array<T, 256> table{};
    for (unsigned i = 0; i < 256; ++i) {
        T rest = static_cast<T>(i);
        for (int bit = 0; bit < 8; ++bit) {
            rest = static_cast<T>((rest & 1) != 0 ? rest >> 1 ^ polynomial : rest >> 1);
        }
        table[i] = rest;
    }
    return table;
}

inline std::uint64_t hash_crc32(const HashInput& input) {
    static constexpr auto table = crc_table<std::uint32_t>(0xEDB88320u);
    std::uint32_t rest = 0xFFFFFFFF;
    for (const std::uint8_t byte : input) rest = table[(rest ^ byte) & 0xFF] ^ rest >> 8;
    return rest ^ 0xFFFFFFFF;
}
inline std::uint64_t hash_crc32_custom(const HashInput& input) { return hash_crc32(input); }

inline std::uint64_t hash_crc16(const HashInput& input) {
    static constexpr auto table = crc_table<std::uint16_t>(0xA001u);
    std::uint16_t rest = 0;
    for (const std::uint8_t byte : input) {
        rest = static_cast<std::uint16_t>(table[(rest ^ byte) & 0xFF] ^ rest >> 8);
    }
    return rest;
}
inline std::uint64_t hash_crc16_custom(const HashInput& input) { return hash_crc16(input); }

// The first eight bytes as a big-endian number.
inline std::uint64_t hash_identity(const HashInput& input) {
    std::uint64_t result = 0;
    const std::uint8_t* const end = input.end() - input.begin() > 8 ? input.begin() + 8 : input.end();
    for (const std::uint8_t* p = input.begin(); p != end; ++p) result = result << 8 | *p;
    return result;
}

inline std::uint64_t hash_xor16(const HashInput& input) {
    std::uint64_t result = 0;
    unsigned shift = 8;
    for (const std::uint8_t byte : input) {
        result ^= std::uint64_t{byte} << shift;
        shift = 8 - shift;
    }
    return result;
}

// RFC 1071
inline std::uint64_t hash_csum16(const HashInput& input) {
    std::uint64_t sum = 0;
    unsigned shift = 8;
    for (const std::uint8_t byte : input) {
        sum += std::uint64_t{byte} << shift;
        shift = 8 - shift;
    }
    while (sum >> 16 != 0) sum = (sum & 0xFFFF) + (sum >> 16);
    return ~sum & 0xFFFF;
}

// The result of hash(): base + hash % max, in 64 bits. As in BMv2, max 0 gives `base`.
inline std::uint64_t hash_in_range(std::uint64_t hash, std::uint64_t base, std::uint64_t max) {
    return base + (max == 0 ? 0 : hash % max);
}

}  // namespace isw

#endif  // INAGG_SWITCH_HASH_HPP
