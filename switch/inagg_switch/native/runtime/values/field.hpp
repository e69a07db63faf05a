// SPDX-License-Identifier: Apache-2.0
//
// Wide fields of headers. A packet's payload is often one, and most programs only pass it on, add to it or
// store it, so that a copy of the number would be wasted.
#ifndef INAGG_SWITCH_FIELD_HPP
#define INAGG_SWITCH_FIELD_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "values/bits.hpp"

namespace isw {

// A number of W bits that begins as bytes of the received packet. It becomes a Wide<W> when that is needed.
// The packet must outlive it.
//
// Like a number, it has a value only after `{}` or an assignment: zeroing each would cost time.
template <unsigned W>
class WideField {  // NOLINT(cppcoreguidelines-pro-type-member-init)
  public:
    WideField() = default;
    // Not explicit, like the conversions below: a field takes numbers as other variables do.
    WideField(const Wide<W>& number) : bytes_(nullptr), written_(true) { wide_copy(number_, number); }

    void refer(const std::uint8_t* bytes) { bytes_ = bytes; }
    // The packet's bytes, big-endian; null if the value is not, or no longer, the packet's.
    const std::uint8_t* bytes() const { return bytes_; }

    const Wide<W>& number() const {
        if (bytes_ != nullptr) {
            wide_load_to(number_, bytes_, 0);
        } else if (!written_) {
            wide_copy(number_, Wide<W>{});
        }
        bytes_ = nullptr;
        written_ = true;
        return number_;
    }
    // For a caller that writes the whole number.
    Wide<W>& overwrite() {
        bytes_ = nullptr;
        written_ = true;
        return number_;
    }
    operator const Wide<W>&() const { return number(); }
    operator Wide<W>&() {
        number();
        return number_;
    }
    bool operator==(const WideField& other) const { return number() == other.number(); }
    bool operator==(const Wide<W>& other) const { return number() == other; }

  private:
    // The first member: kNumbers (v1model.hpp) relies on it.
    mutable Wide<W> number_;
    mutable const std::uint8_t* bytes_;
    mutable bool written_;  // number_ holds the value, unless bytes_ does; false for zero
};

// The C++ type of a field of a header.
template <unsigned W>
struct FieldStorage {
    using type = value_t<W>;
};
template <unsigned W>
    requires(wide_in_blocks<W>)
struct FieldStorage<W> {
    using type = WideField<W>;
};
template <unsigned W>
using field_t = FieldStorage<W>::type;

#if defined(__AVX2__)

template <unsigned W>
const Wide<W>& number_of(const Wide<W>& v) {
    return v;
}
template <unsigned W>
const Wide<W>& number_of(const WideField<W>& v) {
    return v.number();
}
template <unsigned W>
Wide<W>& overwritten(Wide<W>& v) {
    return v;
}
template <unsigned W>
Wide<W>& overwritten(WideField<W>& v) {
    return v.overwrite();
}

// to = a + b, where one at least is a field.
template <unsigned W, class To, class B>
void wide_add_to(To& to, const WideField<W>& a, const B& b) {
    const Wide<W>& other = number_of(b);
    if (const std::uint8_t* bytes = a.bytes()) {
        add_limbs_to_bytes<Wide<W>::limbs>(overwritten(to).limb, bytes, other.limb);
    } else {
        wide_add_to(overwritten(to), a.number(), other);
    }
}
template <unsigned W, class To>
void wide_add_to(To& to, const Wide<W>& a, const WideField<W>& b) {
    wide_add_to(to, b, a);
}
template <unsigned W>
void wide_add_to(WideField<W>& to, const Wide<W>& a, const Wide<W>& b) {
    wide_add_to(to.overwrite(), a, b);
}

template <unsigned W>
void wide_copy(Wide<W>& to, const WideField<W>& from) {
    if (from.bytes() != nullptr) {
        wide_load_to(to, from.bytes(), 0);
    } else {
        wide_copy(to, from.number());
    }
}
template <unsigned W>
void wide_copy(WideField<W>& to, const Wide<W>& from) {
    wide_copy(to.overwrite(), from);
}
template <unsigned W>
void wide_copy(WideField<W>& to, const WideField<W>& from) {
    if (from.bytes() != nullptr) {
        to.refer(from.bytes());
    } else {
        wide_copy(to.overwrite(), from.number());
    }
}

template <unsigned Offset, unsigned W>
void load_bits_to(WideField<W>& to, const std::uint8_t* p) {
    if constexpr (Offset % 8 == 0) {
        to.refer(p + Offset / 8);
    } else {
        wide_load_to(to.overwrite(), p, Offset);
    }
}

template <unsigned Offset, unsigned W>
void store_bits(std::uint8_t* p, const WideField<W>& v) {
    if (Offset % 8 == 0 && v.bytes() != nullptr) {
        copy_bytes<W / 8>(p + Offset / 8, v.bytes());
    } else {
        wide_store<W>(p, Offset, v.number());
    }
}

#endif

}  // namespace isw

#endif  // INAGG_SWITCH_FIELD_HPP
