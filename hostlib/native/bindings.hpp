// SPDX-License-Identifier: Apache-2.0
//
// What the files that define inagg._core share.
#ifndef INAGG_BINDINGS_HPP
#define INAGG_BINDINGS_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>
#include <span>

namespace inagg {

using FloatArray = nanobind::ndarray<float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using ConstFloatArray =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline std::span<float> as_span(const FloatArray& array) { return {array.data(), array.size()}; }

inline std::span<float> as_span(const std::optional<FloatArray>& array) {
    return array ? as_span(*array) : std::span<float>{};
}

inline std::span<const float> as_span(const ConstFloatArray& array) { return {array.data(), array.size()}; }

inline std::span<const std::byte> as_span(const nanobind::bytes& bytes) {
    return {static_cast<const std::byte*>(bytes.data()), bytes.size()};
}

inline nanobind::bytes to_bytes(std::span<const std::byte> bytes) {
    return nanobind::bytes(bytes.data(), bytes.size());
}

// Wire format, numerics and RTT estimator, for tests.
void define_parts(nanobind::module_& m);

}  // namespace inagg

#endif
