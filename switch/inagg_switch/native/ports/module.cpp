// SPDX-License-Identifier: Apache-2.0
//
// Python bindings: the module inagg_switch._ports. No other file of ports/ depends on Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>

#include "ports/bench.hpp"
#include "ports/capabilities.hpp"
#include "ports/control/arrays.hpp"
#include "ports/control/control.hpp"
#include "ports/control/entries.hpp"
#include "ports/packet_loop.hpp"

namespace nb = nanobind;
namespace ports = inagg::ports;

namespace {

using OptionalBytes = std::optional<nb::bytes>;
using MatchTuple = std::tuple<OptionalBytes, OptionalBytes, uint32_t>;
using MeterTuple = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;
using EntryTuple = std::tuple<std::vector<MatchTuple>, int32_t, uint32_t, nb::bytes, uint64_t, uint64_t, bool,
                              uint32_t, uint32_t, uint64_t, std::optional<MeterTuple>>;

[[noreturn]] void throw_errno(int error) {
    throw std::system_error(error, std::generic_category(), "inagg_switch");
}

void check(int result) {
    if (result != 0) throw_errno(-result);
}

// Raises std::system_error as OSError; Python picks the subclass by errno (PermissionError,
// FileExistsError...).
void translate_system_error(const std::exception_ptr& pointer, void*) {
    try {
        std::rethrow_exception(pointer);
    } catch (const std::system_error& error) {
        PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
    }
}

std::string from_bytes(const nb::bytes& value) { return {value.c_str(), value.size()}; }

nb::bytes to_bytes(const std::string& value) { return nb::bytes(value.data(), value.size()); }

std::optional<std::string> from_bytes(const OptionalBytes& value) {
    if (!value) return std::nullopt;
    return from_bytes(*value);
}

OptionalBytes to_bytes(const std::optional<std::string>& value) {
    if (!value) return std::nullopt;
    return to_bytes(*value);
}

std::vector<ports::Match> from_tuples(const std::vector<MatchTuple>& match) {
    std::vector<ports::Match> fields;
    fields.reserve(match.size());
    for (const auto& [value, other, prefix] : match) {
        fields.push_back({from_bytes(value), from_bytes(other), prefix});
    }
    return fields;
}

std::vector<EntryTuple> to_tuples(const std::vector<ports::Entry>& entries) {
    std::vector<EntryTuple> out;
    out.reserve(entries.size());
    for (const ports::Entry& entry : entries) {
        std::vector<MatchTuple> match;
        match.reserve(entry.match.size());
        for (const ports::Match& field : entry.match) {
            match.emplace_back(to_bytes(field.value), to_bytes(field.mask_or_high), field.prefix_length);
        }
        std::optional<MeterTuple> meter;
        if (entry.meter.is_set != 0) {
            meter = MeterTuple(entry.meter.cir, entry.meter.cburst, entry.meter.pir, entry.meter.pburst);
        }
        out.emplace_back(std::move(match), entry.priority, entry.action, to_bytes(entry.params),
                         entry.packets, entry.bytes, entry.is_const, entry.indirect_kind, entry.indirect_id,
                         entry.last_hit_us, meter);
    }
    return out;
}

// Runs a control-plane call without the GIL: it may wait until the packet loop has finished a burst.
template <typename Call>
void run(const Call& call) {
    int result = 0;
    {
        const nb::gil_scoped_release release;
        result = call();
    }
    check(result);
}

const isw_api* functions_at(uintptr_t api) {
    const auto* functions = reinterpret_cast<const isw_api*>(api);
    if (functions != nullptr && functions->abi_version != ISW_ABI_VERSION) {
        throw nb::value_error("the program was compiled for another ABI version");
    }
    return functions;
}

void* handle_at(uintptr_t handle) { return reinterpret_cast<void*>(handle); }

nb::list statistics(ports::PacketLoop& self) {
    nb::list all;
    for (const auto& port : self.statistics()) {
        nb::dict drops;
        for (size_t i = 0; i < port.drops.size(); ++i) drops[ports::kDropNames[i]] = port.drops[i];
        nb::dict impaired;
        for (size_t i = 0; i < port.impaired_in.size(); ++i) {
            const std::string effect = ports::kEffectNames[i];
            impaired[("rx_" + effect).c_str()] = port.impaired_in[i];
            impaired[("tx_" + effect).c_str()] = port.impaired_out[i];
        }
        const auto& [rx_packets, rx_bytes, tx_packets, tx_bytes] = port.totals;
        all.append(nb::make_tuple(port.id, port.interface, port.up,
                                  nb::make_tuple(rx_packets, rx_bytes, tx_packets, tx_bytes), drops,
                                  impaired));
    }
    return all;
}

std::optional<std::tuple<bool, uint32_t, std::string>> next_event(ports::PacketLoop& self) {
    const nb::gil_scoped_release release;
    auto event = self.events().pop();
    if (!event) return std::nullopt;
    return std::tuple(event->warning, event->port, std::move(event->message));
}

std::optional<nb::bytes> next_to_cpu(ports::PacketLoop& self) {
    std::optional<std::string> frame;
    {
        const nb::gil_scoped_release release;
        frame = self.to_cpu().pop();
    }
    return to_bytes(frame);
}

std::optional<std::pair<uint32_t, std::vector<std::string>>> next_fan_out(ports::PacketLoop& self) {
    const nb::gil_scoped_release release;
    auto task = self.fan_outs().tasks().pop();
    if (!task) return std::nullopt;
    return std::pair(task->id, std::move(task->interfaces));
}

using ImpairmentTuple = std::tuple<double, double, double, double, uint64_t, uint64_t, uint64_t>;

ports::ImpairmentSpec impairment_of(const ImpairmentTuple& spec) {
    const auto& [loss, duplicate, reorder, corrupt, delay_us, jitter_us, seed] = spec;
    return {loss, duplicate, reorder, corrupt, delay_us, jitter_us, seed};
}

void bind_packet_loop(nb::module_& module) {
    nb::class_<ports::PacketLoop>(module, "PacketLoop")
        .def(
            "__init__",
            [](ports::PacketLoop* self, const std::vector<std::pair<uint32_t, std::string>>& names,
               size_t receive_buffer_bytes, size_t send_buffer_bytes, size_t queue_frames, size_t queue_bytes,
               bool offloads, bool fan_out, uint32_t cpu_port, uint32_t priority_queues,
               const std::vector<std::string>& captures, uint32_t thread, ports::PacketLoop* first) {
                new (self)
                    ports::PacketLoop(names,
                                      {receive_buffer_bytes, send_buffer_bytes, queue_frames, queue_bytes,
                                       offloads, fan_out, cpu_port, priority_queues, captures, thread},
                                      first);
            },
            nb::arg("ports"), nb::kw_only(), nb::arg("receive_buffer_bytes"), nb::arg("send_buffer_bytes"),
            nb::arg("queue_frames"), nb::arg("queue_bytes"), nb::arg("offloads"), nb::arg("fan_out"),
            nb::arg("cpu_port"), nb::arg("priority_queues"), nb::arg("captures"), nb::arg("thread"),
            nb::arg("first").none(), nb::keep_alive<1, 13>())
        .def("start", &ports::PacketLoop::start)
        .def("stop", &ports::PacketLoop::stop, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "set_program",
            [](ports::PacketLoop& self, uintptr_t api, uintptr_t handle, uint32_t threads) {
                const ports::Program program{functions_at(api), handle_at(handle), threads};
                const nb::gil_scoped_release release;
                self.set_program(program);
            },
            nb::arg("api_address"), nb::arg("handle"), nb::arg("threads"))
        .def("statistics", &statistics)
        .def("has_offloads", &ports::PacketLoop::has_offloads)
        .def("unknown_port_drops", &ports::PacketLoop::unknown_port_drops)
        .def("to_cpu_drops", &ports::PacketLoop::to_cpu_drops)
        .def("next_fan_out", &next_fan_out)
        .def("fan_out_made", &ports::PacketLoop::fan_out_made, nb::arg("id"), nb::arg("fd"))
        .def("refuse_fan_outs", [](ports::PacketLoop& self) { self.fan_outs().refuse(); })
        .def("fan_out_statistics",
             [](const ports::PacketLoop& self) {
                 const auto figures = self.fan_outs().statistics();
                 return std::pair(figures.devices, figures.packets);
             })
        .def("next_event", &next_event)
        .def("next_to_cpu", &next_to_cpu)
        .def(
            "inject",
            [](ports::PacketLoop& self, uint32_t port, const nb::bytes& frame) {
                return self.inject(port, from_bytes(frame));
            },
            nb::arg("port"), nb::arg("frame"))
        .def(
            "limit_queues",
            [](ports::PacketLoop& self, std::optional<uint32_t> port, std::optional<uint32_t> priority,
               std::optional<uint64_t> packets_per_second, std::optional<size_t> depth) {
                const uint32_t all = ports::PortQueues::kAll;
                self.limit_queues(
                    port.value_or(all), priority.value_or(all), [=](ports::QueueLimits& limits) {
                        limits.packets_per_second = packets_per_second.value_or(limits.packets_per_second);
                        limits.depth = depth.value_or(limits.depth);
                    });
            },
            nb::arg("port").none(), nb::arg("priority").none(), nb::kw_only(),
            nb::arg("packets_per_second").none() = nb::none(), nb::arg("depth").none() = nb::none())
        .def(
            "impair",
            [](ports::PacketLoop& self, uint32_t port, bool received,
               const std::optional<ImpairmentTuple>& spec) {
                const auto direction = received ? ports::Direction::kIn : ports::Direction::kOut;
                self.impair(port, direction, spec ? std::optional(impairment_of(*spec)) : std::nullopt);
            },
            nb::arg("port"), nb::arg("received"), nb::arg("spec").none())
        .def("now_us", &ports::PacketLoop::now_us);
}

using ports::Control;

void bind_control_tables(nb::class_<Control>& cls) {
    cls.def("table_insert",
            [](Control& self, uint32_t table, const std::vector<MatchTuple>& match, int32_t priority,
               uint32_t action, const nb::bytes& params) {
                const auto fields = from_tuples(match);
                const auto values = from_bytes(params);
                run([&] { return self.table_insert(table, fields, priority, action, values); });
            })
        .def("table_modify",
             [](Control& self, uint32_t table, const std::vector<MatchTuple>& match, int32_t priority,
                uint32_t action, const nb::bytes& params) {
                 const auto fields = from_tuples(match);
                 const auto values = from_bytes(params);
                 run([&] { return self.table_modify(table, fields, priority, action, values); });
             })
        .def("table_delete",
             [](Control& self, uint32_t table, const std::vector<MatchTuple>& match, int32_t priority) {
                 const auto fields = from_tuples(match);
                 run([&] { return self.table_delete(table, fields, priority); });
             })
        .def("table_set_default",
             [](Control& self, uint32_t table, uint32_t action, const nb::bytes& params) {
                 const auto values = from_bytes(params);
                 run([&] { return self.table_set_default(table, action, values); });
             })
        .def("table_entries",
             [](Control& self, uint32_t table, const std::vector<size_t>& field_bytes) {
                 std::vector<ports::Entry> entries;
                 run([&] { return self.table_entries(table, field_bytes, entries); });
                 return to_tuples(entries);
             })
        .def("table_count",
             [](Control& self, uint32_t table) {
                 uint64_t count = 0;
                 run([&] { return self.table_count(table, count); });
                 return count;
             })
        .def("table_entry",
             [](Control& self, uint32_t table, const std::vector<MatchTuple>& match, int32_t priority) {
                 const auto fields = from_tuples(match);
                 std::vector<ports::Entry> entries;
                 run([&] { return self.table_entry(table, fields, priority, entries); });
                 return to_tuples(entries).front();
             })
        .def("table_default", [](Control& self, uint32_t table) {
            std::vector<ports::Entry> entries;
            run([&] { return self.table_default(table, entries); });
            return to_tuples(entries);
        });
}

void bind_control_counters(nb::class_<Control>& cls) {
    cls.def("counter_write",
            [](Control& self, uint32_t counter, uint64_t first, uint64_t count, uint64_t packets,
               uint64_t bytes) {
                run([&] { return self.counter_write(counter, first, count, {packets, bytes}); });
            })
        .def("direct_counter_read",
             [](Control& self, uint32_t table, const std::vector<MatchTuple>& match, int32_t priority) {
                 const auto fields = from_tuples(match);
                 ports::Count value;
                 run([&] { return self.direct_counter_read(table, fields, priority, value); });
                 return std::pair(value.packets, value.bytes);
             })
        .def("direct_counter_write", [](Control& self, uint32_t table, const std::vector<MatchTuple>& match,
                                        int32_t priority, uint64_t packets, uint64_t bytes) {
            const auto fields = from_tuples(match);
            run([&] { return self.direct_counter_write(table, fields, priority, {packets, bytes}); });
        });
}

void bind_control_arrays(nb::class_<Control>& cls) {
    cls.def("counter_response",
            [](Control& self, uint32_t counter, uint64_t first, uint64_t count) {
                std::string response;
                run([&] {
                    return ports::counter_response(self.api(), self.handle(), {counter, first, count},
                                                   response);
                });
                return to_bytes(response);
            })
        .def("meter_response",
             [](Control& self, uint32_t meter, uint64_t first, uint64_t count) {
                 std::string response;
                 run([&] {
                     return ports::meter_response(self.api(), self.handle(), {meter, first, count}, response);
                 });
                 return to_bytes(response);
             })
        .def("register_response",
             [](Control& self, uint32_t reg, uint64_t first, uint64_t count, size_t value_bytes) {
                 std::string response;
                 run([&] {
                     return ports::register_response(self.api(), self.handle(), {reg, first, count},
                                                     value_bytes, response);
                 });
                 return to_bytes(response);
             })
        .def(
            "meter_write",
            [](Control& self, uint32_t meter, uint64_t first, uint64_t count,
               std::optional<MeterTuple> config) {
                isw_meter given{};
                if (config) {
                    const auto& [cir, cburst, pir, pburst] = *config;
                    given = {cir, cburst, pir, pburst, 1};
                }
                run([&] { return self.meter_write(meter, first, count, given); });
            },
            nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
}

void bind_control(nb::module_& module) {
    nb::class_<Control> cls(module, "ProgramControl");
    cls.def(
        "__init__",
        [](Control* self, uintptr_t api, uintptr_t handle) {
            const isw_api* functions = functions_at(api);
            if (functions == nullptr || handle == 0) throw nb::value_error("no program");
            new (self) Control(functions, handle_at(handle));
        },
        nb::arg("api_address"), nb::arg("handle"));
    bind_control_tables(cls);
    bind_control_counters(cls);
    bind_control_arrays(cls);
    cls.def("multicast_set",
            [](Control& self, uint32_t group, const std::vector<std::pair<uint32_t, uint32_t>>& replicas) {
                run([&] { return self.multicast_set(group, replicas); });
            })
        .def("register_write",
             [](Control& self, uint32_t reg, uint64_t first, uint64_t count, const nb::bytes& value) {
                 const auto bytes = from_bytes(value);
                 run([&] { return self.register_write(reg, first, count, bytes); });
             });
}

// As in _ports.pyi.
using FieldTuple = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;
using ActionTuple = std::tuple<uint32_t, bool, std::vector<FieldTuple>>;
using TableTuple = std::tuple<uint32_t, bool, bool, bool, std::vector<FieldTuple>, std::vector<ActionTuple>>;

std::vector<ports::FieldShape> shapes_of(const std::vector<FieldTuple>& fields) {
    std::vector<ports::FieldShape> shapes;
    shapes.reserve(fields.size());
    for (const auto& [id, bits, given_bits, kind] : fields) {
        shapes.push_back({id, bits, given_bits, static_cast<ports::MatchKind>(kind)});
    }
    return shapes;
}

ports::TableShape shape_of(const TableTuple& table) {
    const auto& [id, is_writable, needs_priority, is_counted, fields, actions] = table;
    ports::TableShape shape{id, is_writable, needs_priority, is_counted, shapes_of(fields), {}};
    for (const auto& [action, in_entries, params] : actions) {
        shape.actions.push_back({action, in_entries, shapes_of(params)});
    }
    return shape;
}

void bind_entries(nb::module_& module) {
    using ports::Entries;
    using ports::Updates;
    nb::class_<Updates>(module, "TableUpdates")
        .def("__init__", [](Updates* self, const nb::bytes& request,
                            size_t most) { new (self) Updates(from_bytes(request), most); })
        .def_prop_ro("has_too_many", &Updates::has_too_many)
        .def_prop_ro("is_sound", &Updates::is_sound)
        .def_prop_ro("rest", [](const Updates& self) { return to_bytes(self.rest()); })
        .def("__len__", &Updates::size)
        .def("is_plain", &Updates::is_plain)
        .def("message", [](const Updates& self, size_t place) {
            const std::string_view message = self.message(place);
            return nb::bytes(message.data(), message.size());
        });
    nb::class_<Entries>(module, "TableEntries")
        .def("__init__",
             [](Entries* self, uintptr_t api, uintptr_t handle, const std::vector<TableTuple>& tables) {
                 const isw_api* functions = functions_at(api);
                 if (functions == nullptr || handle == 0) throw nb::value_error("no program");
                 new (self) Entries(functions, handle_at(handle));
                 for (const auto& table : tables) self->add_table(shape_of(table));
             })
        .def("write", &Entries::write, nb::call_guard<nb::gil_scoped_release>())
        .def("take_back", &Entries::take_back, nb::call_guard<nb::gil_scoped_release>())
        .def("read", [](Entries& self, uint32_t table, bool with_counters) {
            std::vector<std::string> responses;
            run([&] { return self.read(table, with_counters, responses); });
            nb::list out;
            for (const auto& response : responses) out.append(to_bytes(response));
            return out;
        });
}

std::pair<double, uint64_t> run_bench(uintptr_t api, uintptr_t handle, uint32_t threads,
                                      const std::vector<std::pair<uint32_t, nb::bytes>>& packets,
                                      uint64_t first_pass, uint64_t passes,
                                      std::optional<size_t> counter_offset, size_t run) {
    ports::BenchLoad load{{}, first_pass, passes, counter_offset, run};
    for (const auto& [port, frame] : packets) {
        if (counter_offset && frame.size() < *counter_offset + sizeof(uint32_t)) {
            throw nb::value_error("a frame is too short for its counter");
        }
        load.frames.emplace_back(port, from_bytes(frame));
    }
    const isw_api* functions = functions_at(api);
    if (functions == nullptr || handle == 0) throw nb::value_error("no program");
    if (run == 0) throw nb::value_error("a run has one packet at least");
    const nb::gil_scoped_release release;
    const auto result = ports::run_bench(functions, handle_at(handle), threads, load);
    return {result.seconds, result.sent};
}

}  // namespace

NB_MODULE(_ports, module) {
    nb::register_exception_translator(&translate_system_error);
    module.def("run_bench", &run_bench);
    module.def("drop_capabilities", &ports::drop_capabilities);
    bind_packet_loop(module);
    bind_control(module);
    bind_entries(module);
}
