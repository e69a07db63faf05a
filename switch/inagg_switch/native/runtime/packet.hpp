// SPDX-License-Identifier: Apache-2.0
//
// core.p4's packet_in and packet_out, header stacks, and copying of headers.
#ifndef INAGG_SWITCH_PACKET_HPP
#define INAGG_SWITCH_PACKET_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "program.h"
#include "values/field.hpp"

namespace isw {

// Values of `error` in the order of core.p4. A program's own values follow.
enum CoreError : std::uint32_t {
    kNoError,
    kPacketTooShort,
    kNoMatch,
    kStackOutOfBounds,
    kHeaderTooShort,
    kParserTimeout,
    kParserInvalidArgument,
};

// Bytes of a header in a packet.
template <class T>
std::size_t length_of(const T& header) {
    if constexpr (requires { header.length(); }) {
        return header.length();
    } else {
        return T::bytes;
    }
}

// Assigns a header, or a struct that contains headers. Assigning an invalid header makes the destination
// invalid and keeps its fields (assign_header in BMv2's core/primitives.cpp).
template <class T>
void assign_object(T& to, const T& from) {
    if constexpr (requires { to.valid; }) {
        if (from.valid) {
            to = from;
        } else {
            to.valid = false;
        }
    } else if constexpr (requires { to.assign(from); }) {
        to.assign(from);
    } else {
        to = from;
    }
}

// A copy for a new variable. The fields of its invalid headers are zero.
template <class T>
T fresh(const T& from) {
    T made{};
    assign_object(made, from);
    return made;
}

template <class T, unsigned N>
struct Stack {
    T items[N];
    std::uint32_t next;  // elements extracted so far

    // An index outside the stack refers to a spare header that nothing else uses.
    T& at(std::uint64_t index) { return index < N ? items[index] : unused(); }
    const T& at(std::uint64_t index) const { return index < N ? items[index] : unused(); }
    bool full() const { return next >= N; }
    const T& last() const { return at(std::uint64_t{next} - 1); }
    T& last() { return at(std::uint64_t{next} - 1); }
    std::uint32_t last_index() const { return next - 1; }

    // As in BMv2 (StackP4_16 in stacks.cpp): elements are swapped, then the headers of the new elements
    // become invalid. Header unions stay as they are.
    void push_front(unsigned count) {
        for (unsigned i = N; i-- > count;) std::swap(items[i], items[i - count]);
        for (unsigned i = 0; i < N && i < count; ++i) invalidate(items[i]);
        next = next + count < N ? next + count : N;
    }
    void pop_front(unsigned count) {
        const unsigned kept = count < N ? N - count : 0;
        for (unsigned i = 0; i < kept; ++i) std::swap(items[i], items[i + count]);
        for (unsigned i = kept; i < N; ++i) invalidate(items[i]);
        next = next > count ? next - count : 0;
    }
    void assign(const Stack& other) {
        next = other.next;
        for (unsigned i = 0; i < N; ++i) assign_object(items[i], other.items[i]);
    }
    bool operator==(const Stack& other) const {
        for (unsigned i = 0; i < N; ++i) {
            if (!(items[i] == other.items[i])) return false;
        }
        return true;
    }

    static T& unused() {
        static thread_local T spare;
        spare = T{};
        return spare;
    }

  private:
    static void invalidate(T& item) {
        if constexpr (
            requires(const std::uint8_t* p) { item.load(p); } ||
            requires(const std::uint8_t* p) { item.load(p, 0u); }) {
            item.valid = false;
        }
    }
};

// A vector type of GCC and Clang, to copy and clear packet structs. Compilers turn a plain assignment of this
// size into `rep` instructions, which start slowly.
using ObjectBlock = std::uint64_t __attribute__((vector_size(64)));

// Uses memcpy and not a vector type with the attribute `may_alias`: with that, GCC 12 (-fipa-modref) misses
// that writes to the fields alias the block, and copies stale values.
inline void copy_block(std::byte* to, const std::byte* from) {
    ObjectBlock block;
    std::memcpy(&block, from, sizeof block);
    std::memcpy(to, &block, sizeof block);
}

// to = from, except the whole blocks between the bytes kLeftBegin and kLeftEnd, which stay as they are.
template <std::size_t kLeftBegin = 0, std::size_t kLeftEnd = 0, class T>
void copy_object(T& to, const T& from) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) % sizeof(ObjectBlock) == 0);
    constexpr std::size_t kBlock = sizeof(ObjectBlock);
    constexpr std::size_t kBefore = (kLeftBegin + kBlock - 1) / kBlock * kBlock;
    constexpr std::size_t kWhole = kLeftEnd / kBlock * kBlock;
    constexpr std::size_t kAfter = kWhole > kBefore ? kWhole : kBefore;
    auto* target = reinterpret_cast<std::byte*>(&to);
    const auto* source = reinterpret_cast<const std::byte*>(&from);
#pragma GCC unroll 32
    for (std::size_t at = 0; at < kBefore; at += kBlock) copy_block(target + at, source + at);
#pragma GCC unroll 32
    for (std::size_t at = kAfter; at < sizeof(T); at += kBlock) copy_block(target + at, source + at);
}

// Bytes of an object, from `begin` up to but not including `end`.
struct Range {
    std::size_t begin;
    std::size_t end;
};

// The bytes of a wide field's number; `at` is the field's place.
template <unsigned W>
constexpr Range number_at(std::size_t at) {
    return {at, at + (wide_in_blocks<W> ? sizeof(value_t<W>) : 0)};
}

// Sets all bytes to zero, and with them all fields to zero and all headers to invalid; except whole blocks in
// one of the ranges, whose values do not matter.
template <auto kIdle = std::array<Range, 0>{}, class T>
void clear_object(T& object) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) % sizeof(ObjectBlock) == 0);
    constexpr std::size_t kBlock = sizeof(ObjectBlock);
    const auto clear = [&]<std::size_t kAt>(std::integral_constant<std::size_t, kAt>) {
        constexpr bool kSkip = std::any_of(kIdle.begin(), kIdle.end(), [](Range range) {
            return range.begin <= kAt && kAt + kBlock <= range.end;
        });
        if constexpr (!kSkip) {
            constexpr ObjectBlock kZero{};
            std::memcpy(reinterpret_cast<std::byte*>(&object) + kAt, &kZero, kBlock);
        }
    };
    [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
        (clear(std::integral_constant<std::size_t, kIndex * kBlock>{}), ...);
    }(std::make_index_sequence<sizeof(T) / kBlock>{});
}

class PacketIn {
  public:
    std::uint32_t error = kNoError;

    // `late` as for isw_api::process().
    void start(const std::uint8_t* frame, std::size_t length, const isw_late* late = nullptr) {
        data_ = frame;
        length_ = length;
        cursor_ = 0;
        error = kNoError;
        late_ = late;
        late_at_ = late != nullptr ? late->offset : kNone;
    }
    // The bytes that have not been extracted.
    const std::uint8_t* rest() {
        if (cursor_ < late_at_ + 2) settle();
        return data_ + cursor_;
    }
    std::size_t rest_length() const { return length_ - cursor_; }
    std::uint32_t length() const { return static_cast<std::uint32_t>(length_); }

    bool fail(std::uint32_t why) {
        error = why;
        return false;
    }
    // If the packet is too short, header and cursor stay as they were.
    template <class T>
    bool extract(T& header) {
        if (rest_length() < T::bytes) return fail(kPacketTooShort);
        if constexpr (requires { T::checksum_at; }) {
            header.load(data_ + cursor_);
            if (cursor_ + T::checksum_at == late_at_) {
                header.checksum_field().defer(*this);
            } else if (overlaps_late(T::bytes)) {
                header.load(rest());
            }
        } else {
            if (overlaps_late(T::bytes)) settle();
            header.load(data_ + cursor_);
        }
        header.valid = true;
        cursor_ += T::bytes;
        return true;
    }
    // Makes all bytes of the frame right.
    void settle() {
        if (late_ != nullptr) late_->fill(late_->ctx);
        late_ = nullptr;
    }
    // The two bytes that were late.
    std::uint16_t late_value() {
        settle();
        return load_bits<0, 16>(data_ + late_at_);
    }
    // Extracts a header with a varbit field of `bits` bits. The checks and their order are BMv2's (extract_VL
    // in parser.cpp). BMv2 stores the size in an int, so that 2^31 or more becomes 2^31 - 1, which is not a
    // multiple of 8.
    template <class T>
    bool extract(T& header, std::uint64_t bits) {
        if (bits % 8 != 0 || bits >> 31 != 0) return fail(kParserInvalidArgument);
        if (rest_length() < T::bytes + bits / 8) return fail(kPacketTooShort);
        if (bits / 8 > T::max_bytes - T::bytes) return fail(kHeaderTooShort);
        header.load(rest(), static_cast<std::uint32_t>(bits));
        header.valid = true;
        cursor_ += T::bytes + bits / 8;
        return true;
    }
    // `bits`: the size of the varbit field, for headers that have one.
    template <class T, unsigned N, class... Bits>
    bool extract_next(Stack<T, N>& stack, Bits... bits) {
        if (stack.next >= N) return fail(kStackOutOfBounds);
        if (!extract(stack.items[stack.next], bits...)) return false;
        ++stack.next;
        return true;
    }
    bool skip(std::uint64_t bits) {
        if (bits % 8 != 0) return fail(kParserInvalidArgument);
        if (rest_length() < bits / 8) return fail(kPacketTooShort);
        cursor_ += static_cast<std::size_t>(bits / 8);
        return true;
    }
    bool has(std::size_t bits) { return rest_length() * 8 >= bits || fail(kPacketTooShort); }

  private:
    static constexpr std::size_t kNone = ~std::size_t{0} - 2;

    bool overlaps_late(std::size_t bytes) const {
        return late_at_ < cursor_ + bytes && cursor_ < late_at_ + 2;
    }

    const std::uint8_t* data_ = nullptr;
    std::size_t length_ = 0;
    std::size_t cursor_ = 0;
    const isw_late* late_ = nullptr;  // null if there is none, or it is filled
    std::size_t late_at_ = kNone;     // its place in the frame
};

// The last field of a header that may be UDP's: it is read only when it is needed, because its bytes may be
// late.
class ChecksumField {
  public:
    ChecksumField() = default;
    // Not explicit, like the conversions below: a field takes numbers as other variables do.
    ChecksumField(std::uint16_t value) : value_(value), packet_(nullptr) {}

    // The value is the packet's, which must outlive this.
    void defer(PacketIn& packet) { packet_ = &packet; }

    operator const std::uint16_t&() const {
        read();
        return value_;
    }
    operator std::uint16_t&() {
        read();
        return value_;
    }

  private:
    void read() const {
        if (packet_ != nullptr) value_ = packet_->late_value();
        packet_ = nullptr;
    }

    mutable std::uint16_t value_;
    mutable PacketIn* packet_;
};

class PacketOut {
  public:
    // All packets until end_copies() are copies of one packet. They may share their tail.
    void start_copies() {
        copies_ = true;
        tail_ = kNone;
    }
    void end_copies() { copies_ = false; }

    void start() {
        length_ = 0;
        reached_tail_ = kept_tail_ = false;
    }
    // Called where the deparser begins to write what is the same for every copy. True if the buffer already
    // holds it, with the rest of the packet, from the previous copy.
    bool reuse_tail() {
        if (!copies_) return false;
        reached_tail_ = true;
        if (tail_ == kNone) {
            tail_ = length_;
        } else if (tail_ == length_) {
            length_ = end_;
            kept_tail_ = true;
        } else {
            // The headers have another length: this copy and later ones share nothing. Earlier copies keep
            // their tail.
            copies_ = false;
            std::uint8_t* const other = buffer_ == first_ ? second_ : first_;
            std::memcpy(other + kOffset, data(), length_);
            buffer_ = other;
        }
        return kept_tail_;
    }
    template <class T>
    void emit(const T& header) {
        if (!header.valid || length_ + length_of(header) > kRoom) return;
        header.store(buffer_ + kOffset + length_);
        length_ += length_of(header);
    }
    // Appends what the parser did not read: `n` bytes of payload.
    void finish(const std::uint8_t* rest, std::size_t n) {
        if (kept_tail_) return;
        if (n > kRoom - length_) n = kRoom - length_;
        std::memcpy(buffer_ + kOffset + length_, rest, n);
        length_ += n;
        end_ = length_;
        if (!reached_tail_) copies_ = false;
    }
    void truncate(std::size_t n) {
        if (n < length_) length_ = n;
    }
    const std::uint8_t* data() const { return buffer_ + kOffset; }
    std::size_t length() const { return length_; }
    // Length in bytes of the tail that this copy shares with the others; 0 if it shares none.
    std::size_t shared() const { return copies_ ? length_ - tail_ : 0; }

  private:
    static constexpr std::size_t kNone = ~std::size_t{0};
    // Aligns the byte after Ethernet's 14 to four bytes, as drivers do, and the byte after Ethernet, IPv4,
    // UDP and a header of 20 bytes to a cache line.
    static constexpr std::size_t kOffset = 2;
    static constexpr std::size_t kRoom = 2 * ISW_MAX_FRAME;

    std::size_t length_ = 0;
    bool copies_ = false;
    bool reached_tail_ = false;
    bool kept_tail_ = false;
    std::size_t tail_ = kNone;  // where the shared tail begins
    std::size_t end_ = 0;       // where it ends
    std::uint8_t* buffer_ = first_;
    alignas(64) std::uint8_t first_[kOffset + kRoom];
    alignas(64) std::uint8_t second_[kOffset + kRoom];
};

}  // namespace isw

#endif  // INAGG_SWITCH_PACKET_HPP
