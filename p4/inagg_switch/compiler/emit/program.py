"""Stage 6: IR to one C++ file, which includes runtime/v1model.hpp and exports the ABI of runtime/program.h.

A struct or header becomes a C++ struct, an instance of a control or parser a struct with its parameters as
references, its actions and tables as member functions and apply(). State that outlives a packet is in `Program`.

One class in several files, by what they write: _emit_expressions, _emit_externs, _emit_primitives, _emit_statements,
_emit_structs, _emit_parsers, _emit_tables, and this one (the program and its state).
"""

from collections.abc import Mapping

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.expressions import number
from inagg_switch.compiler.emit.literals import c_string
from inagg_switch.compiler.emit.tables import TableEmitter, encoded, truth
from inagg_switch.compiler.emit.untouched import mentioned_headers, split_deparser, untouched_headers
from inagg_switch.compiler.names import Namespace, spell_field


def emit(program: ir.Program, ids: Mapping[tuple[str, str], int], *, traced: bool = False) -> str:
    """C++ of the program. `ids` maps (kind, full name) to P4Info ids. A traced program should be instrumented."""
    return _ProgramEmitter(program, ids, traced).run()


class _ProgramEmitter(TableEmitter):
    def __init__(self, program: ir.Program, ids: Mapping[tuple[str, str], int], traced: bool) -> None:
        names = Namespace(spell_field)
        super().__init__({id(s): names.unique(s.name) for s in program.structs}, ids, traced)
        self._program = program
        self._mentioned = mentioned_headers(program)
        self.program_functions = frozenset(f.name for f in program.functions)
        self.blocks = {b.name: b for b in program.blocks}

    def run(self) -> str:
        if self._traced:
            self.line("#define ISW_TRACED")
        self.line('#include "v1model.hpp"')
        self.line()
        self.line("namespace {")
        self.line()
        self.line("using namespace isw;")
        self.line()
        self._structs()
        self.table_infos(self._program.objects)
        self.profile_infos(self._program.objects)
        self._state()
        self.line("namespace code {")
        self.line()
        for function in self._program.functions:
            self._function(function)
        for block in self._program.blocks:
            self._block(block)
        self.line("}  // namespace code")
        self.line()
        self._pipeline()
        self.line("}  // namespace")
        self.line()
        self.line('extern "C" const isw_api* isw_program_v1(void) { return api_of<Program>(); }')
        return "\n".join(self.lines) + "\n"

    # --- structs

    def _structs(self) -> None:
        self.line("namespace p4 {")
        self.line()
        for struct in self._program.structs:
            self.struct(struct)
        self.line("}  // namespace p4")
        self.line()

    # --- tables and state

    def _error_names(self) -> None:
        self.open("static const char* error_name(std::uint32_t error) {")
        names = ", ".join(
            c_string(name) for name in sorted(self._program.errors, key=self._program.errors.__getitem__)
        )
        self.line(f"static const char* const names[] = {{{names}}};")
        self.line("return names[error];")
        self.close()

    def _state(self) -> None:
        program = self._program
        self.open("struct alignas(64) Packet {")
        self.line(f"{self.type(program.headers)} headers;")
        self.line(f"{self.type(program.metadata)} metadata;")
        self.line(f"{self.type(program.standard)} standard;")
        self.close("};")
        self.line()
        self.open("struct Program final : V1Pipeline<Program, Packet> {")
        self.line(f"static constexpr bool kReturns = {truth(program.packets_return())};")
        self.line(
            f"static constexpr bool kHalts = {truth(bool({'assert', 'assume'} & program.extern_functions))};"
        )
        self.line(f"static constexpr bool kDigests = {truth('digest' in program.extern_functions)};")
        self.line(f"static constexpr bool kEndlessLoops = {truth(program.endless_loops)};")
        self._untouched()
        self.line("Packet packet{};")
        self.line("Packet copy{};")
        self.line()
        # A table knows its action profile from the start.
        for made in sorted(program.objects, key=lambda o: isinstance(o, ir.Table)):
            self._member(made)
        self.line()
        self.open("explicit Program(std::uint64_t seed) : V1Pipeline(seed) {")
        for made in program.objects:
            self._register(made)
        self.close()
        self.line()
        for name in ("parse", "verify", "ingress", "egress", "update", "deparse"):
            self.line(f"void {name}(Packet& p);")
        if program.packets_return():
            self._preserve()
        if self._traced:
            self._error_names()
        self.close("};")
        self.line()

    def _untouched(self) -> None:
        """Where in Packet those headers lie that copies of a multicast share."""
        fields = untouched_headers(self._program, self._mentioned)
        begin = end = "0"
        if fields:
            first, last = (f"headers.{spell_field(name)}" for name in (fields[0], fields[-1]))
            begin = f"offsetof(Packet, {first})"
            end = f"offsetof(Packet, {last}) + sizeof(Packet{{}}.{last})"
        self.line(f"static constexpr std::size_t kUntouchedBegin = {begin};")
        self.line(f"static constexpr std::size_t kUntouchedEnd = {end};")

    def _preserve(self) -> None:
        """Field lists as Requests numbers them."""
        self.open(
            "static void preserve(std::uint32_t list, [[maybe_unused]] const Packet& from, "
            "[[maybe_unused]] Packet& to) {"
        )
        self.open("switch (list) {")
        for index, paths in sorted(self._program.field_lists.items()):
            self.open(f"case {index + 2}:")
            for path in paths:
                field = ".".join(spell_field(name) for name in path)
                self.line(f"to.metadata.{field} = from.metadata.{field};")
            self.line("break;")
            self._level -= 1
        self.close()
        self.close()

    def _member(self, made: ir.Object) -> None:
        if isinstance(made, ir.Register):
            self.line(f"Register<{t.bit_width(made.type)}> {made.member}{{{number(made.size)}}};")
        elif isinstance(made, ir.Counter):
            self.line(
                f"Counter {made.member}{{{number(made.size)}, {truth(made.unit != 'bytes')}, "
                f"{truth(made.unit != 'packets')}}};"
            )
        elif isinstance(made, ir.Meter):
            self.line(f"Meters {made.member}{{{number(made.size)}, {truth(made.unit == 'bytes')}}};")
        elif isinstance(made, ir.Profile):
            self.line(f"ActionProfile {made.member}{{{made.member}_info}};")
        elif isinstance(made, ir.Table):
            profile = "" if made.profile is None else f", &{made.profile.member}"
            self.line(f"Table {made.member}{{{made.member}_info{profile}}};")
        elif isinstance(made, ir.ValueSet):
            fields = f"{made.member}_fields, {len(made.fields)}"
            self.line(f"ValueSet {made.member}{{{number(made.size)}, {fields}}};")

    def _register(self, made: ir.Object) -> None:
        if isinstance(made, ir.ValueSet):
            self.line(f"value_sets.add({number(self._ids['value_set', made.full_name])}, {made.member});")
        if isinstance(made, ir.Register):
            self.line(f"registers.add({number(self._ids['register', made.full_name])}, {made.member});")
        elif isinstance(made, ir.Counter):
            self.line(f"counters.add({number(self._ids['counter', made.full_name])}, {made.member});")
        elif isinstance(made, ir.Meter):
            self.line(f"meters.add({number(self._ids['meter', made.full_name])}, {made.member});")
        elif isinstance(made, ir.Profile):
            self.line(f"profiles.add({number(self._ids['action_profile', made.full_name])}, {made.member});")
        elif isinstance(made, ir.Table):
            self._register_table(made)

    def _register_table(self, table: ir.Table) -> None:
        identity = number(self._ids["table", table.full_name])
        self.line(f"tables.add({identity}, {table.member});")
        if table.direct_counter is not None:
            self.line(f"counted_tables.add({identity}, {table.member});")
        if table.direct_meter is not None:
            self.line(f"metered_tables.add({identity}, {table.member});")
        use = table.actions[table.default_action]
        data, length = encoded(use, table.default_arguments)
        self.line(f"{table.member}.declare_default({self.action_id(use)}, {data}, {length});")
        for entry in table.entries:
            self.declare_entry(table, entry)

    # --- code

    def _parameters(self, parameters: list[ir.Parameter]) -> str:
        return ", ".join(f"{self._passed(p)} {p.name}" for p in parameters)

    def _passed(self, p: ir.Parameter, alone: bool = False) -> str:
        """`alone`: no other argument names the same object."""
        if p.direction in ("out", "inout", "ref"):
            return f"{self.type(p.type)}&"
        # P4 lets nobody assign to an `in` parameter; by value, because the argument may change meanwhile.
        return f"const {self.type(p.type)}&" if alone else self.type(p.type)

    def _function(self, function: ir.Function) -> None:
        parameters = self._parameters(function.parameters)
        separator = ", " if parameters else ""
        self.open(
            f"{self.type(function.result)} {function.name}([[maybe_unused]] Program& program{separator}"
            f"{parameters}) {{"
        )
        self.leave = "return;"
        self.inside(function.body)
        self.close()
        self.line()

    def _block(self, block: ir.Block) -> None:
        self.line(f"// {block.full_name}")
        self.open(f"struct {block.name} {{")
        self.line("Program& program;")
        alone = any(block is one for one in self._program.pipeline.values())
        for parameter in block.parameters:
            self.line(f"{self._passed(parameter, alone)} {parameter.name};")
        for member in block.members:
            self.line(f"{self.type(member.type)} {member.name}{{}};")
        self.line()
        self.leave = "return;"
        for action in block.actions:
            self.open(f"void {action.name}({self._parameters(action.parameters)}) {{")
            self.inside(action.body)
            self.close()
            self.line()
        for table in block.tables:
            self.apply_table(table)
        if block.states:
            self.parser(block)
        else:
            self.open("void apply() {")
            if block is self._program.pipeline["deparser"]:
                changing, same = split_deparser(self._program, self._mentioned)
                self.body(changing)
                self.line("if (program.packet_out.reuse_tail()) return;")
                self.body(same)
            else:
                self.inside(block.body)
            self.close()
        self.close("};")
        self.line()

    # --- parsers

    # --- the pipeline

    def _pipeline(self) -> None:
        blocks = self._program.pipeline
        state = "p.headers, p.metadata"
        for method, block, arguments in (
            ("parse", "parser", f"packet_in, {state}, p.standard"),
            ("verify", "verify", state),
            ("ingress", "ingress", f"{state}, p.standard"),
            ("egress", "egress", f"{state}, p.standard"),
            ("update", "update", state),
            ("deparse", "deparser", "packet_out, p.headers"),
        ):
            self.line(
                f"void Program::{method}(Packet& p) {{ code::{blocks[block].name}{{*this, {arguments}}}.apply(); }}"
            )
        self.line()
