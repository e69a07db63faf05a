"""Stage 6: IR to one C++ file, which includes native/v1model.hpp and exports the ABI of native/program.h.

A struct or header becomes a C++ struct, an instance of a control or parser a struct with its parameters as
references, its actions and tables as member functions and apply(). State that outlives a packet is in `Program`.
"""

from collections.abc import Mapping

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler._emit_expressions import number
from inagg_switch.compiler._emit_statements import StatementEmitter
from inagg_switch.compiler._literals import byte_string, c_string
from inagg_switch.compiler._names import Namespace, spell_field

_KINDS = {"exact": "exact", "lpm": "lpm", "ternary": "ternary", "range": "range", "optional": "optional"}


def emit(program: ir.Program, ids: Mapping[tuple[str, str], int], *, traced: bool = False) -> str:
    """C++ of the program. `ids` maps (kind, full name) to P4Info ids. A traced program should be instrumented."""
    return _ProgramEmitter(program, ids, traced).run()


class _ProgramEmitter(StatementEmitter):
    def __init__(self, program: ir.Program, ids: Mapping[tuple[str, str], int], traced: bool) -> None:
        names = Namespace(spell_field)
        super().__init__({id(s): names.unique(s.name) for s in program.structs})
        self._program = program
        self._ids = ids
        self._traced = traced
        self.program_functions = frozenset(f.name for f in program.functions)
        self.block_names = frozenset(b.name for b in program.blocks)

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
        self._table_infos()
        self._profile_infos()
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
            self._struct(struct)
        self.line("}  // namespace p4")
        self.line()

    def _struct(self, struct: t.StructType) -> None:
        name = self._struct_names[id(struct)]
        self.open(f"struct {name} {{")
        for field, type_ in struct.fields.items():
            self.line(f"{self.type(type_)} {spell_field(field)};")
        if struct.kind == "header":
            self.line("bool valid;")
        self._equality(name, struct)
        if struct.kind != "header" and t.has_header(struct):
            self._assignment(name, struct)
        if _serialisable(struct):
            self._serialisation(struct)
        self.close("};")
        self.line()

    def _equality(self, name: str, struct: t.StructType) -> None:
        tests = [f"{spell_field(f)} == other.{spell_field(f)}" for f in struct.fields] or ["true"]
        condition = " && ".join(tests)
        if struct.kind == "header":
            condition = f"valid == other.valid && (!valid || ({condition}))"
        used = "other" if struct.fields or struct.kind == "header" else ""
        self.line(f"bool operator==(const p4::{name}& {used}) const {{ return {condition}; }}")

    def _assignment(self, name: str, struct: t.StructType) -> None:
        self.open(f"void assign(const p4::{name}& other) {{")
        for field in map(spell_field, struct.fields):
            self.line(f"assign_object({field}, other.{field});")
        self.close()

    def _serialisation(self, struct: t.StructType) -> None:
        self.line(f"static constexpr std::size_t bytes = {t.bit_width(struct) // 8};")
        variable = next((x for x in _leaves(struct) if isinstance(x[1], t.VarbitType)), None)
        length = "bytes"
        size_parameter = ""
        if variable is not None:
            path, type_, _ = variable
            assert isinstance(type_, t.VarbitType)
            self.line(f"static constexpr std::size_t max_bytes = bytes + {(type_.width + 7) // 8};")
            self.line(f"std::size_t length() const {{ return bytes + {path}.length(); }}")
            self._clear(struct)
            length, size_parameter = "length()", ", std::uint32_t varbits"
        self.open(f"void load([[maybe_unused]] const std::uint8_t* p{size_parameter}) {{")
        for path, type_, offset in _leaves(struct):
            width = t.bit_width(type_)
            if t.strip(type_) == t.BOOL:
                self.line(f"{path} = load_bits<{offset}, 1>(p) != 0;")
            elif isinstance(type_, t.VarbitType):
                # What follows lies that much further on.
                self.line(f"{path}.load(p + {offset // 8}, {offset % 8}, varbits);")
                self.line("p += varbits / 8;")
            else:
                self.line(f"load_bits_to<{offset}, {width}>({path}, p);")
        self.close()
        if struct.kind != "header":
            return
        self.open("void store([[maybe_unused]] std::uint8_t* p) const {")
        if variable is not None or any(o % 8 or t.bit_width(type_) % 8 for _, type_, o in _leaves(struct)):
            self.line(f"std::memset(p, 0, {length});")
        for path, type_, offset in _leaves(struct):
            if isinstance(type_, t.VarbitType):
                self.line(f"{path}.store(p + {offset // 8}, {offset % 8});")
                self.line(f"p += {path}.length();")
            else:
                self.line(f"store_bits<{offset}, {t.bit_width(type_)}>(p, {path});")
        self.close()

    def _clear(self, struct: t.StructType) -> None:
        """What setValid() does to the fields of a header whose varbit field keeps its length."""
        self.open("void clear() {")
        for path, type_, _ in _leaves(struct):
            self.line(f"{path}.clear();" if isinstance(type_, t.VarbitType) else f"{path} = {{}};")
        self.close()

    # --- tables and state

    def _tables(self) -> list[ir.Table]:
        return [o for o in self._program.objects if isinstance(o, ir.Table)]

    def _action_id(self, use: ir.ActionUse) -> str:
        return number(self._ids["action", use.action.full_name])

    def _table_infos(self) -> None:
        for made in self._program.objects:
            if isinstance(made, ir.ValueSet):
                fields = ", ".join(f"{{{f.width}, MatchKind::{_KINDS[f.kind]}}}" for f in made.fields)
                self.line(f"constexpr FieldInfo {made.member}_fields[] = {{{fields}}};")
                self.line()
        for table in self._tables():
            name = table.member
            if table.keys:
                fields = ", ".join(f"{{{k.width}, MatchKind::{_KINDS[k.kind]}}}" for k in table.keys)
                self.line(f"constexpr FieldInfo {name}_fields[] = {{{fields}}};")
            rows = []
            for position, use in enumerate(table.actions):
                widths = [str(t.bit_width(p.type)) for p in _entry_parameters(use)]
                array = "nullptr"
                if widths:
                    array = f"{name}_params_{position}"
                    self.line(f"constexpr std::uint32_t {array}[] = {{{', '.join(widths)}}};")
                rows.append(
                    f"{{{self._action_id(use)}, {_bool(use.in_entries)}, {_bool(use.as_default)}, {array}, "
                    f"{len(widths)}}}"
                )
            self.open(f"constexpr ActionInfo {name}_actions[] = {{")
            for row, use in zip(rows, table.actions, strict=True):
                self.line(f"{row},  // {use.action.full_name}")
            self.close("};")
            fields = f"{name}_fields" if table.keys else "nullptr"
            self.line(
                f"constexpr TableInfo {name}_info = {{{number(self._ids['table', table.full_name])}, "
                f"{number(max(table.size, len(table.entries)))}, {fields}, {len(table.keys)}, {name}_actions, "
                f"{len(table.actions)}, {_bool(table.const_entries)}, {_bool(table.const_default)}}};"
            )
            if self._traced:
                self._table_names(table)
            self.line()

    def _table_names(self, table: ir.Table) -> None:
        fields = ", ".join(c_string(k.name) for k in table.keys) or "nullptr"
        self.line(f"constexpr const char* {table.member}_field_names[] = {{{fields}}};")
        self.line(
            f"constexpr TableNames {table.member}_names = {{{c_string(table.full_name)}, "
            f"{table.member}_field_names}};"
        )

    def _error_names(self) -> None:
        self.open("static const char* error_name(std::uint32_t error) {")
        names = ", ".join(
            c_string(name) for name in sorted(self._program.errors, key=self._program.errors.__getitem__)
        )
        self.line(f"static const char* const names[] = {{{names}}};")
        self.line("return names[error];")
        self.close()

    def _profile_infos(self) -> None:
        """The actions of all tables that use a profile, as its members may have them."""
        for made in self._program.objects:
            if isinstance(made, ir.Digest):
                self.line(
                    f"constexpr std::uint32_t {made.member}_id = {number(self._ids['digest', made.full_name])};"
                )
            if not isinstance(made, ir.Profile):
                continue
            uses = {
                u.action.full_name: (table, i) for table in made.tables for i, u in enumerate(table.actions)
            }
            rows = ", ".join(f"{table.member}_actions[{i}]" for table, i in uses.values())
            actions = "nullptr"
            if uses:
                actions = f"{made.member}_actions"
                self.line(f"constexpr ActionInfo {actions}[] = {{{rows}}};")
            self.line(
                f"constexpr ProfileInfo {made.member}_info = {{"
                f"{number(self._ids['action_profile', made.full_name])}, {number(made.size)}, {actions}, "
                f"{len(uses)}}};"
            )
            self.line()

    def _state(self) -> None:
        program = self._program
        self.open("struct alignas(64) Packet {")
        self.line(f"{self.type(program.headers)} headers;")
        self.line(f"{self.type(program.metadata)} metadata;")
        self.line(f"{self.type(program.standard)} standard;")
        self.close("};")
        self.line()
        self.open("struct Program final : V1Pipeline<Program, Packet> {")
        self.line(f"static constexpr bool kReturns = {_bool(program.packets_return())};")
        self.line(
            f"static constexpr bool kHalts = {_bool(bool({'assert', 'assume'} & program.extern_functions))};"
        )
        self.line(f"static constexpr bool kDigests = {_bool('digest' in program.extern_functions)};")
        self.line(f"static constexpr bool kEndlessLoops = {_bool(program.endless_loops)};")
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
                f"Counter {made.member}{{{number(made.size)}, {_bool(made.unit != 'bytes')}, "
                f"{_bool(made.unit != 'packets')}}};"
            )
        elif isinstance(made, ir.Meter):
            self.line(f"Meters {made.member}{{{number(made.size)}, {_bool(made.unit == 'bytes')}}};")
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
        data, length = _encoded(use, table.default_arguments)
        self.line(f"{table.member}.declare_default({self._action_id(use)}, {data}, {length});")
        for entry in table.entries:
            self._entry(table, entry)

    def _entry(self, table: ir.Table, entry: ir.Entry) -> None:
        rows = []
        for (value, second, prefix), key in zip(entry.keys, table.keys, strict=True):
            if value is None:
                rows.append("{nullptr, nullptr, 0}")
                continue
            other = _literal(second, key.width) if key.kind in ("ternary", "range") else "nullptr"
            rows.append(f"{{{_literal(value, key.width)}, {other}, {prefix}}}")
        use = table.actions[entry.action]
        data, length = _encoded(use, entry.arguments)
        self.open("{")
        self.line(f"const isw_match match[] = {{{', '.join(rows)}}};")
        self.line(
            f"{table.member}.declare_entry(match, {entry.priority}, {self._action_id(use)}, {data}, {length});"
        )
        self.close()

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
            self._apply_table(table)
        if block.states:
            self._parser(block)
        else:
            self.open("void apply() {")
            self.inside(block.body)
            self.close()
        self.close("};")
        self.line()

    def _apply_table(self, table: ir.Table) -> None:
        member = f"program.{table.member}"
        self.open(f"ApplyResult apply_{table.member}() {{")
        if table.keys:
            self._key(table)
            self.line(f"Entry* const found = {member}.lookup(key);")
            if table.direct_counter is not None:
                self.line("if (found != nullptr) program.count(*found);")
            self._on_hit(table)
            self.line(f"const Entry& entry = found != nullptr ? *found : {member}.default_entry();")
        else:
            self.line("const Entry* const found = nullptr;")
            self.line(f"const Entry& entry = {member}.default_entry();")
        if self._traced:
            key = "key" if table.keys else "nullptr"
            self.line(f"program.trace.table({table.member}_info, {table.member}_names, {key}, found);")
        if table.profile is not None:
            self._run_member(table, table.profile)
            return
        # The action may not change what has been decided, so the result is made first.
        self.line("const ApplyResult result{found != nullptr, entry.action};")
        self.open("switch (entry.action) {")
        for position, use in enumerate(table.actions):
            self.open(f"case {position}: {{")
            self._dispatch(use)
            self.line("break;")
            self.close()
        self.close()
        self.line("return result;")
        self.close()
        self.line()

    def _on_hit(self, table: ir.Table) -> None:
        meter = table.direct_meter
        if meter is not None and meter.target is not None:
            self.open("if (found != nullptr) {")
            length = "program.packet_bytes" if meter.unit == "bytes" else "1"
            self.line(f"const std::uint32_t colour = found->meter.execute({length}, program.now_us);")
            value = f"resize<32, {t.bit_width(meter.target.type)}>(colour)"
            self.line(self.assign(meter.target, value) + ";")
            self.close()
        if table.support_timeout:
            self.line("if (found != nullptr) found->last_hit_us = program.clock_us;")

    def _run_member(self, table: ir.Table, profile: ir.Profile) -> None:
        """The action of a member, alone or chosen from a group; none when there is no entry."""
        self.open("const ProfileMember* const member = entry.indirect.choose([&] {")
        self._sum(profile.algorithm or "identity", list(table.selector), False)
        self.line("return sum;")
        self.close("});")
        self.line("ApplyResult result{found != nullptr, kNoAction};")
        self.line("if (member == nullptr) return result;")
        self.open("switch (member->action) {")
        for position, use in enumerate(table.actions):
            self.open(f"case {self._action_id(use)}: {{")
            self.line(f"result.action = {position};")
            self._dispatch(use, "member->params")
            self.line("break;")
            self.close()
        self.close()
        self.line("return result;")
        self.close()
        self.line()

    def _key(self, table: ir.Table) -> None:
        parts = []
        wide = False
        for key in table.keys:
            if key.width > 64:
                wide = True
                break
            parts.append(f"std::uint64_t{{{self.item(key.expr)}}}")
        if not wide:
            self.line(f"const std::uint64_t key[] = {{{', '.join(parts)}}};")
            return
        total = sum((k.width + 63) // 64 for k in table.keys)
        self.line(f"std::uint64_t key[{total}];")
        at = 0
        for key in table.keys:
            self.line(f"to_limbs<{key.width}>({self.item(key.expr)}, key + {at});")
            at += (key.width + 63) // 64

    def _dispatch(self, use: ir.ActionUse, params: str = "entry.params") -> None:
        """Runs an action with the entry's parameters after the bound ones."""
        arguments = list(use.bound)
        at = 0
        for parameter in _entry_parameters(use):
            width = t.bit_width(parameter.type)
            value = f"from_limbs<{width}>(&{params}[{at}])"
            if t.strip(parameter.type) == t.BOOL:
                value = f"({value} != 0)"
            arguments.append(ir.CallArgument("value", "in", parameter.type, ir.Var(parameter.type, value)))
            at += (width + 63) // 64
        self.write(ir.Evaluate(ir.Call(t.VOID, use.action.name, tuple(arguments))))

    # --- parsers

    def _parser(self, block: ir.Block) -> None:
        self.open("bool apply() {")
        for member in block.members:
            if member.value is not None and not (
                isinstance(member.value, ir.Const) and member.value.value is None
            ):
                self.line(f"{member.name} = {self.expr(member.value)};")
        cyclic = _has_cycle(block.states)
        if cyclic:
            self.line("unsigned steps = 0;")
        # The first state written is the start; the others are reached by goto, if at all.
        start = next(s for s in block.states if s.name == "state_start")
        states = [start, *(s for s in block.states if s is not start)]
        targets = {case.state for state in states for case in state.cases}
        for state in states:
            if state is start or state.name in targets:
                self._state_code(state, cyclic, labelled=state.name in targets)
        self.close()

    def _state_code(self, state: ir.State, cyclic: bool, labelled: bool) -> None:
        self._level -= 1
        self.open(f"{state.name}: {{" if labelled else f"{{  // {state.name}")
        if cyclic:
            # A parser that goes round without reading must end too.
            self.line("if (++steps > kMaxParserSteps) return program.packet_in.fail(kParserTimeout);")
        self.body(state.body)
        names = [f"subject_{i}" for i in range(len(state.subjects))]
        for name, subject in zip(names, state.subjects, strict=True):
            self.line(f"const {self.type(subject.type)} {name} = {self.item(subject)};")
        always = False
        for case in state.cases:
            subjects = [ir.Var(s.type, n) for n, s in zip(names, state.subjects, strict=True)]
            tests = [
                self._in_set(subjects[place:], m) if m.kind == "set" else self._match(subjects[place], m)
                for place, m in enumerate(case.matches)
                if m is not None
            ]
            go = {"accept": "return true;", "reject": "return false;"}.get(case.state, f"goto {case.state};")
            if tests:
                self.line(f"if ({' && '.join(tests)}) {go}")
            else:
                self.line(go)
                always = True
                break
        if not always:
            # BMv2 stops parsing then, without an error (ParseState::find_next_state).
            self.line("return false;")
        self.close()
        self._level += 1

    def _in_set(self, subjects: list[ir.Var], match: ir.Match) -> str:
        """The test for a value set; the key is declared in front of it."""
        value_set: ir.ValueSet = match.object
        key = f"key_{value_set.member}"
        total = sum((f.width + 63) // 64 for f in value_set.fields)
        self.line(f"std::uint64_t {key}[{total}];")
        at = 0
        for field, subject in zip(value_set.fields, subjects, strict=False):
            self.line(f"to_limbs<{field.width}>({self.expr(subject)}, {key} + {at});")
            at += (field.width + 63) // 64
        return f"program.{value_set.member}.contains({key})"

    def _match(self, subject: ir.Expr, match: ir.Match) -> str:
        if match.kind == "value":
            return self.expr(ir.Operation(t.BOOL, "==", (subject, match.operands[0])))
        if match.kind == "mask":
            value, mask = match.operands
            type_ = subject.type
            return self.expr(
                ir.Operation(
                    t.BOOL,
                    "==",
                    (ir.Operation(type_, "&", (subject, mask)), ir.Operation(type_, "&", (value, mask))),
                )
            )
        low, high = match.operands
        return self.expr(
            ir.Operation(
                t.BOOL,
                "&&",
                (ir.Operation(t.BOOL, "<=", (low, subject)), ir.Operation(t.BOOL, "<=", (subject, high))),
            )
        )

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


def _entry_parameters(use: ir.ActionUse) -> list[ir.Parameter]:
    """Parameters that an entry gives: those after the bound ones."""
    return use.action.parameters[len(use.bound) :]


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _literal(value: int, width: int) -> str:
    return byte_string(value.to_bytes((width + 7) // 8, "big"))


def _encoded(use: ir.ActionUse, arguments: list[int]) -> tuple[str, int]:
    widths = [t.bit_width(p.type) for p in _entry_parameters(use)]
    data = b"".join(v.to_bytes((w + 7) // 8, "big") for v, w in zip(arguments, widths, strict=True))
    return (byte_string(data), len(data)) if data else ("nullptr", 0)


def _serialisable(type_: t.Type) -> bool:
    if isinstance(type_, t.StructType):
        return type_.kind != "header_union" and all(
            _serialisable(f) and not t.is_header(f) for f in type_.fields.values()
        )
    return isinstance(t.strip(type_), t.BitType | t.VarbitType) or t.strip(type_) == t.BOOL


def _leaves(struct: t.StructType, prefix: str = "", offset: int = 0) -> list[tuple[str, t.Type, int]]:
    """Scalar fields with their C++ path and bit offset."""
    leaves: list[tuple[str, t.Type, int]] = []
    for name, type_ in struct.fields.items():
        path = prefix + spell_field(name)
        if isinstance(type_, t.StructType):
            leaves.extend(_leaves(type_, f"{path}.", offset))
        else:
            leaves.append((path, type_, offset))
        offset += t.bit_width(type_)
    return leaves


def _has_cycle(states: list[ir.State]) -> bool:
    after = {s.name: {c.state for c in s.cases} for s in states}
    done: set[str] = set()

    def visit(name: str, path: frozenset[str]) -> bool:
        if name in path:
            return True
        if name in done or name not in after:
            return False
        found = any(visit(n, path | {name}) for n in after[name])
        done.add(name)
        return found

    return any(visit(s.name, frozenset()) for s in states)
