// SPDX-License-Identifier: Apache-2.0
//
// P4's tuple<...>. Unlike std::tuple it is trivially copyable.
#ifndef INAGG_SWITCH_TUPLE_HPP
#define INAGG_SWITCH_TUPLE_HPP

namespace isw {

template <class... T>
struct Tuple;

template <>
struct Tuple<> {
    bool operator==(const Tuple&) const = default;
};

template <class T, class... Rest>
struct Tuple<T, Rest...> {
    T first{};
    [[no_unique_address]] Tuple<Rest...> rest{};

    bool operator==(const Tuple&) const = default;
};

// A reference to element I.
template <unsigned I, class T>
constexpr auto& part(T& tuple) {
    if constexpr (I == 0) {
        return tuple.first;
    } else {
        return part<I - 1>(tuple.rest);
    }
}
template <unsigned I, class T>
constexpr const auto& part(const T& tuple) {
    if constexpr (I == 0) {
        return tuple.first;
    } else {
        return part<I - 1>(tuple.rest);
    }
}

}  // namespace isw

#endif  // INAGG_SWITCH_TUPLE_HPP
