// SPDX-License-Identifier: Apache-2.0
//
// The settings that engines, transports and servers take: inagg._core.JobShape, RetransmissionPolicy, Route
// and Sockets. Whoever takes them checks their values.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>

#include "bindings/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {

void define_settings(nb::module_& m) {
    nb::class_<JobShape>(m, "JobShape")
        .def(
            "__init__",
            [](JobShape* self, unsigned number, std::uint64_t epoch, std::uint64_t slots, unsigned words,
               unsigned workers, std::uint32_t first_chunk) {
                if (number > UINT16_MAX || epoch > UINT32_MAX || slots > UINT32_MAX) {
                    throw std::invalid_argument("job must fit 16 bits, epoch and slots 32");
                }
                new (self) JobShape{.number = static_cast<std::uint16_t>(number),
                                    .epoch = static_cast<std::uint32_t>(epoch),
                                    .slots = static_cast<std::uint32_t>(slots),
                                    .words = words,
                                    .workers = workers,
                                    .first_chunk = first_chunk};
            },
            nb::kw_only(), "number"_a, "epoch"_a, "slots"_a, "words"_a, "workers"_a, "first_chunk"_a = 0);
    constexpr RetransmissionPolicy usual;
    nb::class_<RetransmissionPolicy>(m, "RetransmissionPolicy")
        .def(
            "__init__",
            [](RetransmissionPolicy* self, double rto_initial, double rto_min, double rto_max, double give_up,
               double silent) {
                new (self) RetransmissionPolicy{.rto_initial = rto_initial,
                                                .rto_min = rto_min,
                                                .rto_max = rto_max,
                                                .give_up = give_up,
                                                .silent = silent};
            },
            nb::kw_only(), "rto_initial_s"_a = usual.rto_initial, "rto_min_s"_a = usual.rto_min,
            "rto_max_s"_a = usual.rto_max, "give_up_s"_a = usual.give_up, "silent_s"_a = usual.silent);
    nb::class_<Route>(m, "Route")
        .def(
            "__init__",
            [](Route* self, const std::optional<IpPort>& aggregator, const std::vector<IpPort>& servers,
               unsigned roots, unsigned threads) { new (self) Route{aggregator, servers, roots, threads}; },
            nb::kw_only(), "aggregator"_a = nb::none(), "servers"_a = std::vector<IpPort>(), "roots"_a = 1,
            "threads"_a = 1);
    nb::class_<Sockets>(m, "Sockets")
        .def(
            "__init__",
            [](Sockets* self, const std::optional<IpPort>& local, std::optional<int> socket_fd,
               std::optional<int> results_fd, std::vector<std::pair<int, std::optional<int>>> more) {
                new (self) Sockets{local, socket_fd, results_fd, std::move(more)};
            },
            nb::kw_only(), "local"_a = nb::none(), "socket_fd"_a = nb::none(), "results_fd"_a = nb::none(),
            "more"_a = std::vector<std::pair<int, std::optional<int>>>());
}

}  // namespace inagg
