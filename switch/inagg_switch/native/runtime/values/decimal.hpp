// SPDX-License-Identifier: Apache-2.0
//
// Values as decimal text, for log_msg().
#ifndef INAGG_SWITCH_DECIMAL_HPP
#define INAGG_SWITCH_DECIMAL_HPP

#include <cstdint>
#include <string>

#include "values/bits.hpp"

namespace isw {

template <unsigned W>
std::string decimal(const value_t<W>& v) {
    if constexpr (W <= 64) {
        return std::to_string(static_cast<std::uint64_t>(v));
    } else {
        std::uint8_t bytes[bytes_of<W>];
        store_value<W>(bytes, v);
        std::string digits;
        for (bool more = true; more;) {
            unsigned rest = 0;
            more = false;
            for (std::uint8_t& byte : bytes) {
                rest = rest << 8 | byte;
                byte = static_cast<std::uint8_t>(rest / 10);
                rest %= 10;
                more = more || byte != 0;
            }
            digits.insert(digits.begin(), static_cast<char>('0' + rest));
        }
        return digits;
    }
}

template <unsigned W>
std::string decimal_signed(const value_t<W>& v) {
    const bool negative = slice<W, W - 1, W - 1>(v) != 0;
    return negative ? "-" + decimal<W>(neg<W>(v)) : decimal<W>(v);
}

}  // namespace isw

#endif  // INAGG_SWITCH_DECIMAL_HPP
