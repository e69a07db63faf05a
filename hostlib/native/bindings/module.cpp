// SPDX-License-Identifier: Apache-2.0
//
// inagg._core: the module, its errors and statistics. The signatures and their meaning stand
// in hostlib/inagg/_core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <system_error>

#include "bindings/bindings.hpp"
#include "transport/pulse.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

PyObject* engine_error_type = nullptr;  // owned by the module

nb::object make_engine_error(const Failure& failure, const EngineConfig& config) {
    nb::object error = nb::borrow(engine_error_type)(failure.message);
    error.attr("code") = name(failure.code);
    error.attr("message") = failure.message;
    error.attr("job") = config.job.number;
    error.attr("rank") = config.rank;
    error.attr("collective") = failure.collective;
    error.attr("chunk") = failure.chunk;
    return error;
}

}  // namespace

[[noreturn]] void raise_engine_error(const Failure& failure, const EngineConfig& config) {
    PyErr_SetObject(engine_error_type, make_engine_error(failure, config).ptr());
    throw nb::python_error();
}

nb::object failure_object(const std::optional<Failure>& failure, const EngineConfig& config) {
    return failure ? make_engine_error(*failure, config) : nb::none();
}

namespace {

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

void define_pulse(nb::module_& m) {
    nb::class_<Pulse>(m, "Pulse")
        .def(
            "__init__",
            [](Pulse* self, int socket_fd, const nb::bytes& beat, double interval) {
                new (self) Pulse(socket_fd, {beat.c_str(), beat.size()}, interval);
            },
            nb::kw_only(), "socket_fd"_a, "beat"_a, "interval_s"_a)
        .def("pause", &Pulse::pause, "within_s"_a)
        .def("close", &Pulse::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

nb::dict to_dict(const EngineStats& stats) {
    nb::dict out;
    out["packets_sent"] = stats.packets_sent;
    out["bytes_sent"] = stats.bytes_sent;
    out["packets_received"] = stats.packets_received;
    out["bytes_received"] = stats.bytes_received;
    out["retransmits"] = stats.retransmits;
    out["queries"] = stats.queries;
    out["probes"] = stats.probes;
    out["duplicates_received"] = stats.duplicates_received;
    out["discarded"] = stats.discarded;
    out["corrupt"] = stats.corrupt;
    out["chunks_completed"] = stats.chunks_completed;
    out["collectives_completed"] = stats.collectives_completed;
    out["special_blocks"] = stats.special_blocks;
    out["wide_blocks"] = stats.wide_blocks;
    out["in_flight"] = stats.in_flight;
    out["window"] = stats.window;
    out["congested"] = stats.congested;
    out["window_limit"] = stats.window_limit;
    out["rtt_samples"] = stats.rtt_samples;
    out["least_rtt_s"] = stats.least_rtt;
    out["waited_s"] = stats.waited;
    out["longest_wait_s"] = stats.longest_wait;
    out["longest_wait_context"] = stats.longest_wait_context;
    out["silent_s"] = stats.silent;
    out["silent_chunk"] = stats.silent_chunk;
    out["srtt_s"] = stats.srtt;
    out["rttvar_s"] = stats.rttvar;
    out["rto_s"] = stats.rto;
    return out;
}

nb::dict to_dict(const TransportStats& stats) {
    nb::dict out = to_dict(stats.engine);
    out["send_calls"] = stats.send_calls;
    out["receive_calls"] = stats.receive_calls;
    out["messages_sent"] = stats.messages_sent;
    out["messages_received"] = stats.messages_received;
    out["send_refusals"] = stats.send_refusals;
    out["network_errors"] = stats.network_errors;
    out["multicast_received"] = stats.multicast_received;
    out["unicast_in_a_row"] = stats.unicast_in_a_row;
    out["segmentation"] = stats.segmentation;
    out["packet_threads"] = stats.packet_threads;
    out["receive_buffer_bytes"] = stats.receive_buffer;
    out["receive_buffer_wanted_bytes"] = stats.receive_buffer_wanted;
    const auto spent = [&](Activity activity) { return stats.spent[static_cast<std::size_t>(activity)]; };
    out["device_s"] = spent(Activity::device);
    out["beginning_s"] = spent(Activity::beginning);
    out["window_s"] = spent(Activity::window);
    out["answers_s"] = spent(Activity::answers);
    out["peak_rate"] = stats.peak_rate;
    out["processor_s"] = stats.processor;
    out["processor_wait_s"] = stats.processor_wait;
    return out;
}

}  // namespace inagg

NB_MODULE(_core, m) {
    // Torch keeps groups, and what they refer to, beyond the interpreter's end. Reports of that leak would
    // tell users nothing.
    nb::set_leak_warnings(false);
    const nb::object literal = nb::module_::import_("typing").attr("Literal");
    m.attr("LaneBits") = literal[nb::make_tuple(8, 16, 32)];
    m.attr("ErrorCode") =
        literal[nb::make_tuple("checksum", "kind_mismatch", "give_up", "silent", "failed", "closed")];
    inagg::define_errors(m);
    inagg::define_settings(m);
    inagg::define_staging(m);
    inagg::define_engine(m);
    inagg::define_transport(m);
    inagg::define_rounds(m);
    inagg::define_server(m);
    inagg::define_pulse(m);
    inagg::define_parts(m);
}
