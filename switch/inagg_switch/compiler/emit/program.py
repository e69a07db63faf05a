# SPDX-License-Identifier: Apache-2.0
"""Stage 6: IR to one C++ file, which includes runtime/v1model.hpp and exports the ABI of runtime/program.h.

A struct or header becomes a C++ struct. An instance of a control or parser becomes a struct: its parameters are
references, its actions, its tables and apply() are member functions. State that outlives a packet is in `Program`.
"""

from collections.abc import Mapping

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.calls import call
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import cpp_type, number
from inagg_switch.compiler.emit.literals import c_string
from inagg_switch.compiler.emit.outcome import outcome
from inagg_switch.compiler.emit.parsers import write_states
from inagg_switch.compiler.emit.queues import reads_queues
from inagg_switch.compiler.emit.statements import write_all, write_inside
from inagg_switch.compiler.emit.structs import wide_fields, write_struct
from inagg_switch.compiler.emit.tables import (
    action_id,
    declare_entry,
    encoded,
    truth,
    write_apply,
    write_profile_infos,
    write_table_infos,
)
from inagg_switch.compiler.emit.untouched import split_deparser, untouched_headers
from inagg_switch.compiler.names import spell_field
from inagg_switch.compiler.threads import one_thread, steering


def emit(program: ir.Program, ids: Mapping[tuple[str, str], int], *, traced: bool = False) -> str:
    """The C++ of a program. `ids` maps (kind, full name) to P4Info ids. Call instrument() first for a traced
    program."""
    out = Emitter(program, ids, call, traced=traced)
    _write_program(out)
    return "\n".join(out.lines) + "\n"


def _write_program(out: Emitter) -> None:
    if out.traced:
        out.line("#define ISW_TRACED")
    out.line('#include "v1model.hpp"')
    out.line()
    out.line("namespace {")
    out.line()
    out.line("using namespace isw;")
    out.line()
    _structs(out)
    write_table_infos(out, out.program.objects)
    write_profile_infos(out, out.program.objects)
    _state(out)
    out.line("namespace code {")
    out.line()
    for function in out.program.functions:
        _function(out, function)
    for block in out.program.blocks:
        _block(out, block)
    out.line("}  // namespace code")
    out.line()
    _pipeline(out)
    out.line("}  // namespace")
    out.line()
    out.line('extern "C" const isw_api* isw_program_v1(void) { return api_of<Program>(); }')


# --- structs


def _structs(out: Emitter) -> None:
    out.line("namespace p4 {")
    out.line()
    for struct in out.program.structs:
        write_struct(out, struct)
    out.line("}  // namespace p4")
    out.line()


# --- tables and state


def _error_names(out: Emitter) -> None:
    out.open("static const char* error_name(std::uint32_t error) {")
    names = ", ".join(
        c_string(name) for name in sorted(out.program.errors, key=out.program.errors.__getitem__)
    )
    out.line(f"static const char* const names[] = {{{names}}};")
    out.line("return names[error];")
    out.close()


def _state(out: Emitter) -> None:
    program = out.program
    out.open("struct alignas(64) Packet {")
    out.line(f"{cpp_type(out, program.headers)} headers;")
    out.line(f"{cpp_type(out, program.metadata)} metadata;")
    out.line(f"{cpp_type(out, program.standard)} standard;")
    out.close("};")
    out.line()
    compares = _write_outcome(out)
    out.open("struct Program final : V1Pipeline<Program, Packet> {")
    out.line(f"static constexpr bool kComparesCopies = {truth(compares)};")
    out.line(f"static constexpr bool kRequests = {truth(program.makes_requests())};")
    out.line(
        f"static constexpr bool kHalts = {truth(bool({'assert', 'assume'} & program.extern_functions))};"
    )
    out.line(f"static constexpr bool kDigests = {truth('digest' in program.extern_functions)};")
    out.line(f"static constexpr bool kReadsQueues = {truth(reads_queues(program))};")
    out.line(f"static constexpr bool kEndlessLoops = {truth(program.endless_loops)};")
    _numbers(out)
    _untouched(out)
    _threads(out)
    out.line("Packet packet{};")
    out.line("Packet copy{};")
    out.line("Outcome outcome{};")
    out.line()
    # Tables come last: they refer to their action profiles.
    for made in sorted(program.objects, key=lambda o: isinstance(o, ir.Table)):
        _member(out, made)
    out.line()
    out.open(
        "Program(Shared& shared, std::uint64_t seed, Program* thread_0) : V1Pipeline(shared, seed, thread_0) {"
    )
    for made in program.objects:
        _write_registration(out, made)
    out.close()
    out.line()
    for name in ("parse", "verify", "ingress", "egress", "update", "deparse"):
        out.line(f"void {name}(Packet& p);")
    if program.makes_requests():
        _preserve(out)
    if out.traced:
        _error_names(out)
    out.close("};")
    out.line()


def _write_outcome(out: Emitter) -> bool:
    """Writes Outcome, which decides between the copies of a multicast. Returns false if they are not compared."""
    found = outcome(out.program)
    parts = [(f"part_{i}", path, type_) for i, (path, type_) in enumerate((found or {}).items())]
    out.open("struct Outcome {")
    for name, _, type_ in parts:
        out.line(f"{cpp_type(out, type_)} {name}{{}};")
    out.line("bool operator==(const Outcome&) const = default;")
    values = ", ".join(f"p.{path}" for _, path, _ in parts)
    out.line(f"static Outcome of([[maybe_unused]] const Packet& p) {{ return {{{values}}}; }}")
    out.close("};")
    out.line()
    return found is not None


def _numbers(out: Emitter) -> None:
    """The place in Packet of the numbers of wide fields."""
    ranges = [
        f"number_at<{width}>(offsetof(Packet, headers.{path}))"
        for path, width in wide_fields(out.program.headers)
    ]
    out.line(f"static constexpr std::array<Range, {len(ranges)}> kNumbers{{{{{', '.join(ranges)}}}}};")


def _untouched(out: Emitter) -> None:
    """The place in Packet of the headers that copies of a multicast share."""
    fields = untouched_headers(out.program, out.mentioned_headers)
    begin = end = "0"
    if fields:
        first, last = (f"headers.{spell_field(name)}" for name in (fields[0], fields[-1]))
        begin = f"offsetof(Packet, {first})"
        end = f"offsetof(Packet, {last}) + sizeof(Packet{{}}.{last})"
    out.line(f"static constexpr std::size_t kUntouchedBegin = {begin};")
    out.line(f"static constexpr std::size_t kUntouchedEnd = {end};")


def _threads(out: Emitter) -> None:
    """Whether several threads may run the program, and which frames each should have."""
    reason = one_thread(out.program)
    out.line(
        f"static constexpr const char* kOneThread = {'nullptr' if reason is None else c_string(reason)};"
    )
    out.open("static const isw_steering* steering() {")
    steered = None if reason is not None else steering(out.program)
    if steered is None:
        out.line("return nullptr;")
    else:
        bytes_ = ", ".join(
            f"{{{offset}, {mask:#04x}, {value:#04x}}}" for offset, mask, value in steered.conditions
        )
        count = len(steered.conditions)
        out.line(f"static constexpr std::array<isw_condition, {count}> conditions{{{{{bytes_}}}}};")
        out.line(
            f"static constexpr isw_steering steered{{conditions.data(), {count}, {steered.offset}, "
            f"{steered.bytes}, {steered.shift}}};"
        )
        out.line("return &steered;")
    out.close()


def _preserve(out: Emitter) -> None:
    """Writes preserve(), which copies the metadata fields of a list, by its number in Requests (runtime)."""
    out.open(
        "static void preserve(std::uint32_t list, [[maybe_unused]] const Packet& from, "
        "[[maybe_unused]] Packet& to) {"
    )
    out.open("switch (list) {")
    for index, paths in sorted(out.program.field_lists.items()):
        out.open(f"case {index + 2}:")
        for path in paths:
            field = ".".join(spell_field(name) for name in path)
            out.line(f"to.metadata.{field} = from.metadata.{field};")
        out.line("break;")
        out.level -= 1
    out.close()
    out.close()


def _member(out: Emitter, made: ir.Object) -> None:
    if isinstance(made, ir.Register):
        shared = f"of_thread_0(&Program::{made.member})"
        out.line(f"Register<{t.bit_width(made.type)}> {made.member}{{{number(made.size)}, {shared}}};")
    elif isinstance(made, ir.Counter):
        out.line(
            f"Counter {made.member}{{{number(made.size)}, {truth(made.unit != 'bytes')}, "
            f"{truth(made.unit != 'packets')}}};"
        )
    elif isinstance(made, ir.Meter):
        out.line(f"Meters {made.member}{{{number(made.size)}, {truth(made.unit == 'bytes')}}};")
    elif isinstance(made, ir.Profile):
        out.line(f"ActionProfile {made.member}{{{made.member}_info}};")
    elif isinstance(made, ir.Table):
        profile = "" if made.profile is None else f", &{made.profile.member}"
        out.line(f"Table {made.member}{{{made.member}_info{profile}}};")
    elif isinstance(made, ir.ValueSet):
        fields = f"{made.member}_fields, {len(made.fields)}"
        out.line(f"ValueSet {made.member}{{{number(made.size)}, {fields}}};")


def _write_registration(out: Emitter, made: ir.Object) -> None:
    if isinstance(made, ir.ValueSet):
        out.line(f"value_sets.add({number(out.ids['value_set', made.full_name])}, {made.member});")
    if isinstance(made, ir.Register):
        out.line(f"registers.add({number(out.ids['register', made.full_name])}, {made.member});")
    elif isinstance(made, ir.Counter):
        out.line(f"counters.add({number(out.ids['counter', made.full_name])}, {made.member});")
    elif isinstance(made, ir.Meter):
        out.line(f"meters.add({number(out.ids['meter', made.full_name])}, {made.member});")
    elif isinstance(made, ir.Profile):
        out.line(f"profiles.add({number(out.ids['action_profile', made.full_name])}, {made.member});")
    elif isinstance(made, ir.Table):
        _register_table(out, made)


def _register_table(out: Emitter, table: ir.Table) -> None:
    identity = number(out.ids["table", table.full_name])
    out.line(f"tables.add({identity}, {table.member});")
    if table.direct_counter is not None:
        out.line(f"counted_tables.add({identity}, {table.member});")
    if table.direct_meter is not None:
        out.line(f"metered_tables.add({identity}, {table.member});")
    use = table.actions[table.default_action]
    data, length = encoded(use, table.default_arguments)
    out.line(f"{table.member}.declare_default({action_id(out, use)}, {data}, {length});")
    for entry in table.entries:
        declare_entry(out, table, entry)


# --- code


def _parameters(out: Emitter, parameters: list[ir.Parameter]) -> str:
    return ", ".join(f"{_parameter_type(out, p)} {p.name}" for p in parameters)


def _parameter_type(out: Emitter, p: ir.Parameter, unaliased: bool = False) -> str:
    """The C++ type of a parameter. `unaliased`: no other argument names the same object."""
    if p.direction in ("out", "inout", "ref"):
        return f"{cpp_type(out, p.type)}&"
    # P4 forbids assignments to an `in` parameter. By value, because the argument may change during the call.
    return f"const {cpp_type(out, p.type)}&" if unaliased else cpp_type(out, p.type)


def _function(out: Emitter, function: ir.Function) -> None:
    parameters = _parameters(out, function.parameters)
    separator = ", " if parameters else ""
    out.open(
        f"{cpp_type(out, function.result)} {function.name}([[maybe_unused]] Program& program{separator}"
        f"{parameters}) {{"
    )
    out.leave = "return;"
    write_inside(out, function.body)
    out.close()
    out.line()


def _block(out: Emitter, block: ir.Block) -> None:
    out.line(f"// {block.full_name}")
    out.open(f"struct {block.name} {{")
    out.line("Program& program;")
    unaliased = any(block is one for one in out.program.pipeline.values())
    for parameter in block.parameters:
        out.line(f"{_parameter_type(out, parameter, unaliased)} {parameter.name};")
    for member in block.members:
        out.line(f"{cpp_type(out, member.type)} {member.name}{{}};")
    out.line()
    out.leave = "return;"
    for action in block.actions:
        out.open(f"void {action.name}({_parameters(out, action.parameters)}) {{")
        write_inside(out, action.body)
        out.close()
        out.line()
    for table in block.tables:
        write_apply(out, table)
    if block.states:
        write_states(out, block)
    else:
        out.open("void apply() {")
        if block is out.program.pipeline["deparser"]:
            changing, same = split_deparser(out.program, out.mentioned_headers)
            write_all(out, changing)
            out.line("if (program.packet_out.reuse_tail()) return;")
            write_all(out, same)
        else:
            write_inside(out, block.body)
        out.close()
    out.close("};")
    out.line()


# --- the pipeline


def _pipeline(out: Emitter) -> None:
    blocks = out.program.pipeline
    state = "p.headers, p.metadata"
    for method, block, arguments in (
        ("parse", "parser", f"packet_in, {state}, p.standard"),
        ("verify", "verify", state),
        ("ingress", "ingress", f"{state}, p.standard"),
        ("egress", "egress", f"{state}, p.standard"),
        ("update", "update", state),
        ("deparse", "deparser", "packet_out, p.headers"),
    ):
        out.line(
            f"void Program::{method}(Packet& p) {{ code::{blocks[block].name}{{*this, {arguments}}}.apply(); }}"
        )
    out.line()
