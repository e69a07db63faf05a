// SPDX-License-Identifier: Apache-2.0
//
// inagg._core. The signatures and their meaning stand in hostlib/inagg/_core.pyi.
#include "bindings.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "pulse.hpp"
#include "transport.hpp"
#include "udp_socket.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

using IpPort = std::pair<std::string, std::uint16_t>;

// ---- errors

PyObject* engine_error_type = nullptr;  // owned by the module

nb::object make_engine_error(const Failure& failure, const EngineConfig& config) {
    nb::object error = nb::borrow(engine_error_type)(failure.message);
    error.attr("code") = name(failure.code);
    error.attr("message") = failure.message;
    error.attr("job") = config.job;
    error.attr("rank") = config.rank;
    error.attr("collective") = failure.collective;
    error.attr("chunk") = failure.chunk;
    return error;
}

[[noreturn]] void raise_engine_error(const Failure& failure, const EngineConfig& config) {
    PyErr_SetObject(engine_error_type, make_engine_error(failure, config).ptr());
    throw nb::python_error();
}

nb::object failure_object(const std::optional<Failure>& failure, const EngineConfig& config) {
    return failure ? make_engine_error(*failure, config) : nb::none();
}

void define_errors(nb::module_& m) {
    engine_error_type = PyErr_NewException("inagg._core.EngineError", PyExc_RuntimeError, nullptr);
    m.attr("EngineError") = nb::steal(engine_error_type);
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const std::system_error& error) {
            // With an errno OSError picks its own subclass.
            const nb::object value = nb::borrow(PyExc_OSError)(error.code().value(), error.what());
            PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
        }
    });
}

// ---- configuration and stats

EngineConfig make_config(unsigned job, unsigned rank, unsigned workers, std::uint64_t epoch,
                         std::uint64_t slots, unsigned words, double rto_initial, double rto_min,
                         double rto_max, double give_up, std::uint32_t first_chunk) {
    if (job > UINT16_MAX || epoch > UINT32_MAX || slots > UINT32_MAX) {
        throw std::invalid_argument("job must fit 16 bits, epoch and slots 32");
    }
    const EngineConfig config{
        .job = static_cast<std::uint16_t>(job),
        .rank = rank,
        .workers = workers,
        .epoch = static_cast<std::uint32_t>(epoch),
        .slots = static_cast<std::uint32_t>(slots),
        .words = words,
        .policy = {.rto_initial = rto_initial, .rto_min = rto_min, .rto_max = rto_max, .give_up = give_up},
        .first_chunk = first_chunk};
    config.validate();
    return config;
}

nb::dict to_dict(const EngineStats& stats) {
    nb::dict out;
    out["packets_sent"] = stats.packets_sent;
    out["bytes_sent"] = stats.bytes_sent;
    out["packets_received"] = stats.packets_received;
    out["bytes_received"] = stats.bytes_received;
    out["retransmits"] = stats.retransmits;
    out["probes"] = stats.probes;
    out["duplicates_received"] = stats.duplicates_received;
    out["discarded"] = stats.discarded;
    out["chunks_completed"] = stats.chunks_completed;
    out["collectives_completed"] = stats.collectives_completed;
    out["special_blocks"] = stats.special_blocks;
    out["in_flight"] = stats.in_flight;
    out["window"] = stats.window;
    out["rtt_samples"] = stats.rtt_samples;
    out["least_rtt_s"] = stats.least_rtt;
    out["waited_s"] = stats.waited;
    out["srtt_s"] = stats.srtt;
    out["rttvar_s"] = stats.rttvar;
    out["rto_s"] = stats.rto;
    return out;
}

nb::dict to_dict(const TransportStats& stats) {
    nb::dict out = to_dict(stats.engine);
    out["send_calls"] = stats.send_calls;
    out["receive_calls"] = stats.receive_calls;
    out["send_refusals"] = stats.send_refusals;
    out["network_errors"] = stats.network_errors;
    out["segmentation"] = stats.segmentation;
    out["receive_buffer_bytes"] = stats.receive_buffer;
    out["receive_buffer_wanted_bytes"] = stats.receive_buffer_wanted;
    return out;
}

// ---- Engine

Rounding rounding(std::optional<std::uint64_t> stochastic) {
    return {.stochastic = stochastic.has_value(), .seed = stochastic.value_or(0)};
}

// An engine that keeps the arrays given to it alive.
class PyEngine {
  public:
    explicit PyEngine(const EngineConfig& config) : config_(config), engine_(config) {}

    Ticket submit(const FloatArray& array, unsigned lane_bits, bool average,
                  std::optional<std::uint64_t> stochastic, std::uint32_t context,
                  const std::optional<FloatArray>& residual, double now) {
        const Request request{as_span(array),       lane_bits, average,
                              rounding(stochastic), context,   as_span(residual)};
        config_.validate(request);
        if (engine_.failure()) {
            raise_engine_error(*engine_.failure(), config_);
        }
        const Ticket ticket = engine_.submit(request, now);
        alive_.emplace(ticket, std::pair(array, residual));
        return ticket;
    }

    void receive(const nb::bytes& datagram, double now) { engine_.receive(as_span(datagram), now); }

    std::vector<nb::bytes> to_send(double now, std::optional<std::size_t> limit) {
        engine_.advance(now);
        std::vector<nb::bytes> out;
        std::array<std::span<const std::byte>, BATCH> datagrams;
        std::vector<std::byte> memory(MAX_DATAGRAM);
        while (engine_.anything_to_send() && out.size() < limit.value_or(SIZE_MAX)) {
            const std::size_t made = engine_.to_send(memory, datagrams);
            const std::size_t taken = std::min(made, limit.value_or(SIZE_MAX) - out.size());
            std::transform(datagrams.begin(), datagrams.begin() + taken, std::back_inserter(out), to_bytes);
            engine_.sent(taken, now);
        }
        return out;
    }

    std::vector<Ticket> completed() {
        std::vector<Ticket> out;
        while (const std::optional<Ticket> ticket = engine_.next_completion()) {
            const auto arrays = alive_.extract(*ticket);  // see PyTransport::let_go_of
            out.push_back(*ticket);
        }
        return out;
    }

    void fail(const std::string& reason) { engine_.fail(FailureCode::failed, reason); }
    std::optional<double> deadline() const { return engine_.deadline(); }
    nb::object failure() const { return failure_object(engine_.failure(), config_); }
    nb::dict stats() const { return to_dict(engine_.stats()); }

  private:
    EngineConfig config_;
    Engine engine_;
    std::map<Ticket, std::pair<FloatArray, std::optional<FloatArray>>> alive_;
};

void define_engine(nb::module_& m) {
    nb::class_<PyEngine>(m, "Engine")
        .def(
            "__init__",
            [](PyEngine* self, unsigned job, unsigned rank, unsigned workers, std::uint64_t epoch,
               std::uint64_t slots, unsigned words, double rto_initial, double rto_min, double rto_max,
               double give_up, std::uint32_t first_chunk) {
                new (self) PyEngine(make_config(job, rank, workers, epoch, slots, words, rto_initial, rto_min,
                                                rto_max, give_up, first_chunk));
            },
            nb::kw_only(), "job"_a, "rank"_a, "workers"_a, "epoch"_a, "slots"_a, "words"_a,
            "rto_initial_s"_a = 0.1, "rto_min_s"_a = 0.01, "rto_max_s"_a = 1.0, "give_up_s"_a = 120.0,
            "first_chunk"_a = 0)
        .def("submit", &PyEngine::submit, "array"_a.noconvert(), nb::kw_only(), "lane_bits"_a = 32,
             "average"_a = false, "stochastic"_a = nb::none(), "context"_a = 0,
             "residual"_a.noconvert() = nb::none(), "now"_a = 0.0)
        .def("receive", &PyEngine::receive, "datagram"_a, "now"_a)
        .def("to_send", &PyEngine::to_send, "now"_a, "limit"_a = nb::none())
        .def("deadline", &PyEngine::deadline)
        .def("completed", &PyEngine::completed)
        .def("fail", &PyEngine::fail, "reason"_a)
        .def_prop_ro("failure", &PyEngine::failure)
        .def_prop_ro("stats", &PyEngine::stats);
}

// ---- Transport

// A transport that keeps the arrays given to it alive. Its members are touched with the GIL held only.
class PyTransport {
  public:
    PyTransport(const EngineConfig& config, UdpSocket socket, double spin)
        : config_(config), transport_(config, std::move(socket), spin) {
        living().insert(this);
    }

    ~PyTransport() {
        living().erase(this);
        const nb::gil_scoped_release release;
        transport_.close();
    }

    // At the interpreter's exit, before it ends threads: one that came back from a wait to find the
    // interpreter gone would end the process with an abort.
    static void close_all() {
        std::vector<nb::object> transports;
        for (PyTransport* transport : living()) {
            transports.push_back(nb::find(transport));
        }
        for (const nb::object& transport : transports) {
            auto& self = nb::cast<PyTransport&>(transport);
            self.close();
            while (self.waiting_ > 0) {
                const nb::gil_scoped_release release;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        }
    }

    IpPort local_address() const {
        const UdpAddress address = transport_.local_address();
        return {address.ip, address.port};
    }

    Ticket submit_array(const FloatArray& array, unsigned lane_bits, bool average,
                        std::optional<std::uint64_t> stochastic, std::uint32_t context,
                        const std::optional<FloatArray>& residual) {
        const Ticket ticket =
            submit({as_span(array), lane_bits, average, rounding(stochastic), context, as_span(residual)});
        alive_.emplace(ticket, std::pair(array, residual));
        return ticket;
    }

    Ticket submit_address(std::uintptr_t address, std::size_t elements, unsigned lane_bits, bool average,
                          std::optional<std::uint64_t> stochastic, std::uint32_t context) {
        const std::span data(reinterpret_cast<float*>(address), elements);
        return submit({data, lane_bits, average, rounding(stochastic), context});
    }

    bool wait(Ticket ticket, std::optional<double> timeout) {
        const bool done = in_slices(timeout, [&](double slice) { return transport_.wait(ticket, slice); });
        if (done) {
            let_go_of(ticket);
        }
        return done;
    }

    void watch(Ticket ticket) { transport_.watch(ticket); }

    std::optional<Ticket> next_done(std::optional<double> timeout) {
        const auto ticket = in_slices(timeout, [&](double slice) { return transport_.next_done(slice); });
        if (ticket) {
            let_go_of(*ticket);
        }
        return ticket;
    }

    void fail(const std::string& reason) {
        const nb::gil_scoped_release release;
        transport_.fail(reason);
    }

    void close() {
        {
            const nb::gil_scoped_release release;
            transport_.close();
        }
        // As in let_go_of().
        const auto arrays = std::exchange(alive_, {});
    }

    nb::object failure() const { return failure_object(transport_.failure(), config_); }
    nb::dict stats() const { return to_dict(transport_.stats()); }

  private:
    // The arrays leave the map before they are let go of: that may run Python code, and other threads, which
    // find the same ticket done.
    void let_go_of(Ticket ticket) { const auto arrays = alive_.extract(ticket); }

    Ticket submit(const Request& request) {
        try {
            return transport_.submit(request);
        } catch (const GroupFailed& error) {
            raise_engine_error(error.failure(), config_);
        }
    }

    // Waits with the GIL released, coming back now and then to let Python handle a Ctrl-C.
    template <typename Wait>
    auto in_slices(std::optional<double> timeout, Wait wait) -> decltype(wait(0.0)) {
        constexpr double slice = 0.1;
        double left = timeout.value_or(INFINITY);
        if (!(left >= 0)) {
            throw std::invalid_argument("timeout_s must not be negative");
        }
        for (;; left -= slice) {
            try {
                const Waiting waiting(waiting_);
                const nb::gil_scoped_release release;
                if (const auto result = wait(std::min(left, slice))) {
                    return result;
                }
            } catch (const GroupFailed& error) {
                raise_engine_error(error.failure(), config_);
            }
            if (PyErr_CheckSignals() != 0) {
                throw nb::python_error();
            }
            if (left <= slice) {
                return {};
            }
        }
    }

    // Counts a thread that waits, until it has the GIL again.
    class Waiting {
      public:
        explicit Waiting(int& count) : count_(++count) {}
        ~Waiting() { --count_; }
        Waiting(const Waiting&) = delete;
        Waiting& operator=(const Waiting&) = delete;

      private:
        int& count_;
    };

    static std::set<PyTransport*>& living() {
        static std::set<PyTransport*> transports;
        return transports;
    }

    EngineConfig config_;
    Transport transport_;
    int waiting_ = 0;
    std::map<Ticket, std::pair<FloatArray, std::optional<FloatArray>>> alive_;
};

UdpSocket open_socket(const IpPort& aggregator, const std::optional<IpPort>& local,
                      std::optional<int> socket_fd) {
    if (local.has_value() == socket_fd.has_value()) {
        throw std::invalid_argument("give either local or socket_fd");
    }
    UdpSocket socket =
        local ? UdpSocket::bound_to({local->first, local->second}) : UdpSocket::duplicate_of(*socket_fd);
    socket.connect({aggregator.first, aggregator.second});
    return socket;
}

void define_transport(nb::module_& m) {
    nb::class_<PyTransport>(m, "Transport")
        .def(
            "__init__",
            [](PyTransport* self, unsigned job, unsigned rank, unsigned workers, std::uint64_t epoch,
               std::uint64_t slots, unsigned words, const IpPort& aggregator,
               const std::optional<IpPort>& local, std::optional<int> socket_fd, double rto_initial,
               double rto_min, double rto_max, double give_up, double spin) {
                const EngineConfig config = make_config(job, rank, workers, epoch, slots, words, rto_initial,
                                                        rto_min, rto_max, give_up, 0);
                new (self) PyTransport(config, open_socket(aggregator, local, socket_fd), spin);
                if (socket_fd) {
                    const Descriptor taken_over(*socket_fd);  // the duplicate stays
                }
            },
            nb::kw_only(), "job"_a, "rank"_a, "workers"_a, "epoch"_a, "slots"_a, "words"_a, "aggregator"_a,
            "local"_a = nb::none(), "socket_fd"_a = nb::none(), "rto_initial_s"_a = 0.1, "rto_min_s"_a = 0.01,
            "rto_max_s"_a = 1.0, "give_up_s"_a = 120.0, "spin_s"_a = 0.0)
        .def_prop_ro("local_address", &PyTransport::local_address)
        .def("submit", &PyTransport::submit_array, "array"_a.noconvert(), nb::kw_only(), "lane_bits"_a = 32,
             "average"_a = false, "stochastic"_a = nb::none(), "context"_a = 0,
             "residual"_a.noconvert() = nb::none())
        .def("submit", &PyTransport::submit_address, "address"_a.noconvert(), "elements"_a, nb::kw_only(),
             "lane_bits"_a = 32, "average"_a = false, "stochastic"_a = nb::none(), "context"_a = 0)
        .def("wait", &PyTransport::wait, "ticket"_a, "timeout_s"_a = nb::none())
        .def("watch", &PyTransport::watch, "ticket"_a)
        .def("next_done", &PyTransport::next_done, "timeout_s"_a = nb::none())
        .def("fail", &PyTransport::fail, "reason"_a)
        .def_prop_ro("failure", &PyTransport::failure)
        .def("stats", &PyTransport::stats)
        .def("close", &PyTransport::close);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&PyTransport::close_all));
}

void define_pulse(nb::module_& m) {
    nb::class_<Pulse>(m, "Pulse")
        .def(
            "__init__",
            [](Pulse* self, int socket_fd, const nb::bytes& beat, double interval) {
                new (self) Pulse(socket_fd, {beat.c_str(), beat.size()}, interval);
            },
            nb::kw_only(), "socket_fd"_a, "beat"_a, "interval_s"_a)
        .def("close", &Pulse::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace
}  // namespace inagg

NB_MODULE(_core, m) {
    const nb::object literal = nb::module_::import_("typing").attr("Literal");
    m.attr("LaneBits") = literal[nb::make_tuple(8, 16, 32)];
    m.attr("ErrorCode") = literal[nb::make_tuple("checksum", "kind_mismatch", "give_up", "failed", "closed")];
    inagg::define_errors(m);
    inagg::define_engine(m);
    inagg::define_transport(m);
    inagg::define_pulse(m);
    inagg::define_parts(m);
}
