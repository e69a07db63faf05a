// SPDX-License-Identifier: Apache-2.0
//
// inagg._core.Rounds, and inagg._core.RoundSlots for tests in virtual time.
#include "transport/rounds.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

template <typename T>
using Integers = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> as_span(const Integers<T>& array) {
    return {array.data(), array.size()};
}

template <typename T>
nb::ndarray<nb::numpy, T> to_array(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
    return {kept->data(), {kept->size()}, owner};
}

std::vector<nb::bytes> take_replies(RoundSlots& self) {
    std::vector<nb::bytes> out;
    for (const Outgoing& reply : self.replies()) {
        out.push_back(to_bytes(reply.datagram));
    }
    self.clear_replies();
    return out;
}

template <typename Self>
auto contributions(const Self& self, const Integers<std::int32_t>& agreed) {
    RoundParts parts = self.contributions(as_span(agreed));
    return std::pair(to_array(std::move(parts.peaks)), to_array(std::move(parts.sums)));
}

// Rounds that a transport may still have when Python drops them.
struct PyRounds {
    std::shared_ptr<Rounds> rounds;
};

}  // namespace

std::shared_ptr<OwnServer> rounds_of(nb::handle object) {
    return nb::isinstance<PyRounds>(object) ? nb::cast<PyRounds&>(object).rounds : nullptr;
}

void define_rounds(nb::module_& m) {
    nb::class_<RoundSlots>(m, "RoundSlots")
        .def(
            "__init__",
            [](RoundSlots* self, const JobShape& job, const std::vector<std::uint32_t>& next_chunks) {
                new (self) RoundSlots(job, next_chunks);
            },
            "job"_a, "next_chunks"_a)
        .def(
            "receive",
            [](RoundSlots& self, const nb::bytes& datagram) {
                self.receive(as_span(datagram));
                return take_replies(self);
            },
            "datagram"_a)
        .def_prop_ro("wants_round", &RoundSlots::wants_round)
        .def("offer", [](RoundSlots& self) { return to_array(self.offer()); })
        .def("contributions", &contributions<RoundSlots>, "agreed"_a)
        .def(
            "finish",
            [](RoundSlots& self, const Integers<std::int32_t>& agreed, const Integers<std::int64_t>& peaks,
               const Integers<std::int32_t>& sums) {
                self.finish(as_span(agreed), as_span(peaks), as_span(sums));
                return take_replies(self);
            },
            "agreed"_a, "peaks"_a, "sums"_a);
    nb::class_<PyRounds>(m, "Rounds")
        .def(
            "__init__",
            [](PyRounds* self, const JobShape& job, const std::vector<std::uint32_t>& next_chunks) {
                new (self) PyRounds{std::make_shared<Rounds>(job, next_chunks)};
            },
            "job"_a, "next_chunks"_a)
        .def_prop_ro("local_address",
                     [](const PyRounds& self) {
                         const UdpAddress address = self.rounds->local_address();
                         return IpPort(address.ip, address.port);
                     })
        .def("wait",
             [](const PyRounds& self) {
                 const auto rounds = self.rounds;
                 const nb::gil_scoped_release release;
                 return rounds->wait();
             })
        .def("offer", [](const PyRounds& self) { return to_array(self.rounds->offer()); })
        .def(
            "contributions",
            [](const PyRounds& self, const Integers<std::int32_t>& agreed) {
                return contributions(*self.rounds, agreed);
            },
            "agreed"_a)
        .def(
            "finish",
            [](const PyRounds& self, const Integers<std::int32_t>& agreed,
               const Integers<std::int64_t>& peaks, const Integers<std::int32_t>& sums) {
                const nb::gil_scoped_release release;
                self.rounds->finish(as_span(agreed), as_span(peaks), as_span(sums));
            },
            "agreed"_a, "peaks"_a, "sums"_a)
        .def("close", [](const PyRounds& self) { self.rounds->close(); });
}

}  // namespace inagg
