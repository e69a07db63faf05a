// SPDX-License-Identifier: Apache-2.0
//
// inagg._core.Staging.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "bindings/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

template <typename T, std::size_t Dimensions = 1>
using NumpyView = nb::ndarray<nb::numpy, T, nb::ndim<Dimensions>>;

// A numpy array that owns its memory, uninitialised.
template <typename T>
std::pair<T*, nb::capsule> make_memory(std::size_t count) {
    T* memory = new T[count];
    return {memory, nb::capsule(memory, [](void* owned) noexcept { delete[] static_cast<T*>(owned); })};
}

template <typename T>
NumpyView<T> view(std::span<T> values) {
    return {values.data(), {values.size()}};
}

}  // namespace

PyStaging::PyStaging(std::size_t elements, const LaneFormat& format, std::size_t words, Rounding rounding,
                     const std::optional<Memory>& memory)
    : given_(memory),
      own_(memory ? nullptr
                  : std::make_unique_for_overwrite<std::uint32_t[]>(
                        Staging::bytes_needed(elements, format, words) / sizeof(std::uint32_t))),
      staging_(
          elements, format, words, rounding,
          memory ? std::as_writable_bytes(std::span(memory->data(), memory->size()))
                 : std::as_writable_bytes(std::span(
                       own_.get(), Staging::bytes_needed(elements, format, words) / sizeof(std::uint32_t)))) {
}

Request PyStaging::request(bool average, std::uint32_t context) {
    return {.data = &staging_, .lane_bits = staging_.format().bits(), .average = average, .context = context};
}

std::span<const float> as_span(const PyStaging::Rows& special_elements, const PyStaging::Blocks& blocks) {
    if (special_elements.shape(0) != blocks.size()) {
        throw std::invalid_argument("special_elements has " + std::to_string(special_elements.shape(0)) +
                                    " rows for " + std::to_string(blocks.size()) + " special blocks");
    }
    return {special_elements.data(), special_elements.size()};
}

nb::object to_arrays(const BlockFloats& floats, std::size_t block_elements) {
    const auto [blocks, blocks_owner] = make_memory<std::int64_t>(floats.size());
    const auto [rows, rows_owner] = make_memory<float>(floats.size() * block_elements);
    std::size_t i = 0;
    for (const auto& [block, row] : floats) {
        blocks[i] = static_cast<std::int64_t>(block);
        std::ranges::copy(row, rows + i * block_elements);
        ++i;
    }
    return nb::make_tuple(NumpyView<std::int64_t>(blocks, {i}, blocks_owner),
                          NumpyView<float, 2>(rows, {i, block_elements}, rows_owner));
}

void define_staging(nb::module_& m) {
    nb::class_<PyStaging>(m, "Staging")
        .def(
            "__init__",
            [](PyStaging* self, std::size_t elements, unsigned lane_bits, unsigned workers, unsigned words,
               std::optional<std::uint64_t> stochastic, const std::optional<PyStaging::Memory>& memory) {
                new (self)
                    PyStaging(elements, LaneFormat(lane_bits, workers), words, rounding(stochastic), memory);
            },
            "elements"_a, nb::kw_only(), "lane_bits"_a, "workers"_a, "words"_a, "stochastic"_a = nb::none(),
            "memory"_a.noconvert() = nb::none())
        .def_static(
            "bytes_needed",
            [](std::size_t elements, unsigned lane_bits, unsigned words) {
                return Staging::bytes_needed(elements, LaneFormat(lane_bits, 1), words);
            },
            "elements"_a, nb::kw_only(), "lane_bits"_a, "words"_a)
        .def_prop_ro("elements", [](PyStaging& self) { return self->elements(); })
        .def_prop_ro("blocks", [](PyStaging& self) { return self->blocks(); })
        .def_prop_ro("block_elements", [](PyStaging& self) { return self->block_elements(); })
        .def_prop_ro("stride", [](PyStaging& self) { return self->stride(); })
        .def_prop_ro("offset", [](PyStaging&) { return HEADER_BYTES; })
        .def_prop_ro(
            "datagrams",
            [](PyStaging& self) {
                auto* first = reinterpret_cast<std::uint8_t*>(self->datagrams().data());
                return NumpyView<std::uint8_t, 2>(first, {self->blocks(), self->stride()});
            },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "exponents", [](PyStaging& self) { return view(self->exponents()); },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "agreed", [](PyStaging& self) { return view(self->agreed()); }, nb::rv_policy::reference_internal)
        .def_prop_ro(
            "limits", [](PyStaging& self) { return view(self->limits()); }, nb::rv_policy::reference_internal)
        .def_prop_ro(
            "checksums", [](PyStaging& self) { return view(self->checksums()); },
            nb::rv_policy::reference_internal);
}

}  // namespace inagg
