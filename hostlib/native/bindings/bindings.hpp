// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files that define inagg._core. Each file defines one class, or the parts for tests.
#ifndef INAGG_BINDINGS_HPP
#define INAGG_BINDINGS_HPP

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "numerics/staging.hpp"
#include "transport/transport.hpp"
#include "transport/udp_socket.hpp"
#include "wire/require.hpp"

namespace inagg {

using IpPort = std::pair<std::string, std::uint16_t>;

// Where a worker's contributions go: to the aggregator of a switch, to servers, or, in a job on shared slots,
// to the aggregator with servers behind it. Runs of its chunks go to the servers, or to the roots of a tree.
struct Route {
    std::optional<IpPort> aggregator;
    std::vector<IpPort> servers;
    unsigned roots = 1;
    unsigned threads = 1;  // of the switches
};

// A worker's sockets: bound here to `local`, or given as the descriptors of bound ones. `more`: of each
// further packet thread the same two.
struct Sockets {
    std::optional<IpPort> local;
    std::optional<int> socket_fd;
    std::optional<int> results_fd;  // at the job's multicast address
    std::vector<std::pair<int, std::optional<int>>> more;
};

// Give one of both. Throws std::invalid_argument, std::system_error.
inline UdpSocket open_socket(const std::optional<IpPort>& local, std::optional<int> socket_fd) {
    if (local.has_value() == socket_fd.has_value()) {
        throw std::invalid_argument("give either local or socket_fd");
    }
    return local ? UdpSocket::bound_to({local->first, local->second}) : UdpSocket::duplicate_of(*socket_fd);
}

using FloatArray = nanobind::ndarray<float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
// Of float32, bfloat16 or float16.
using SummedArray = nanobind::ndarray<nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
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

inline Rounding rounding(std::optional<std::uint64_t> stochastic) {
    return {.stochastic = stochastic.has_value(), .seed = stochastic.value_or(0)};
}

inline std::span<std::byte> memory_of(const SummedArray& array) {
    return {static_cast<std::byte*>(array.data()), array.nbytes()};
}

// Throws nanobind::type_error.
inline FloatType type_of(const SummedArray& array) {
    using Code = nanobind::dlpack::dtype_code;
    const auto is = [given = array.dtype()](Code code, unsigned bits) {
        return given.code == static_cast<std::uint8_t>(code) && given.bits == bits && given.lanes == 1;
    };
    if (is(Code::Float, 32)) {
        return FloatType::float32;
    }
    if (is(Code::Bfloat, 16)) {
        return FloatType::bfloat16;
    }
    if (is(Code::Float, 16)) {
        return FloatType::float16;
    }
    throw nanobind::type_error("the array must be of float32, bfloat16 or float16");
}

inline HostFloats floats_of(const SummedArray& array, std::optional<std::uint64_t> stochastic,
                            const std::optional<FloatArray>& residual) {
    return {.memory = memory_of(array),
            .type = type_of(array),
            .rounding = rounding(stochastic),
            .residual = as_span(residual)};
}

// A Staging, and its memory.
class PyStaging {
  public:
    using Memory =
        nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
    using Blocks =
        nanobind::ndarray<const std::int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
    using Rows = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

    PyStaging(std::size_t elements, const LaneFormat& format, std::size_t words, Rounding rounding,
              const std::optional<Memory>& memory);

    Staging& operator*() { return staging_; }
    Staging* operator->() { return &staging_; }
    Request request(bool average, std::uint32_t context);

  private:
    std::optional<Memory> given_;
    std::unique_ptr<std::uint32_t[]> own_;
    Staging staging_;
};

// The arguments of scanned() as Staging takes them. Throws std::invalid_argument.
std::span<const float> as_span(const PyStaging::Rows& special_elements, const PyStaging::Blocks& blocks);
// (blocks [m], floats [m, L])
nanobind::object to_arrays(const BlockFloats& floats, std::size_t block_elements);

// Python objects that live until their collective is done.
struct KeptAlive {
    std::optional<SummedArray> array = {};
    std::optional<FloatArray> residual = {};
    nanobind::object staging = {};
};

// Throws std::invalid_argument.
inline void require_array(const std::map<Ticket, KeptAlive>& alive, Ticket ticket) {
    const auto found = alive.find(ticket);
    require(found == alive.end() || !found->second.staging.is_valid(),
            "collective " + std::to_string(ticket) + " has no array to fill: it is staged");
}

[[noreturn]] void raise_engine_error(const Failure& failure, const EngineConfig& config);
nanobind::object failure_object(const std::optional<Failure>& failure, const EngineConfig& config);
nanobind::dict to_dict(const EngineStats& stats);
nanobind::dict to_dict(const TransportStats& stats);

// Of a Rounds object; null for another.
std::shared_ptr<OwnServer> rounds_of(nanobind::handle object);
// Of a Server object.
std::shared_ptr<OwnServer> server_of(nanobind::handle server);

void define_settings(nanobind::module_& m);
void define_staging(nanobind::module_& m);
void define_engine(nanobind::module_& m);
void define_transport(nanobind::module_& m);
void define_rounds(nanobind::module_& m);
void define_server(nanobind::module_& m);
// Wire format, numerics and RTT estimator, for tests.
void define_parts(nanobind::module_& m);

}  // namespace inagg

#endif
