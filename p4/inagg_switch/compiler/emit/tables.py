"""Tables, as C++: what the run time must know of them, and their apply()."""

from collections.abc import Mapping

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.expressions import number
from inagg_switch.compiler.emit.literals import byte_string, c_string
from inagg_switch.compiler.emit.parsers import ParserEmitter

_KINDS = {"exact": "exact", "lpm": "lpm", "ternary": "ternary", "range": "range", "optional": "optional"}


class TableEmitter(ParserEmitter):
    """`ids` maps (kind, full name) to P4Info ids; a traced program has the names of its tables."""

    def __init__(
        self, struct_names: dict[int, str], ids: Mapping[tuple[str, str], int], traced: bool
    ) -> None:
        super().__init__(struct_names)
        self._ids = ids
        self._traced = traced

    # --- what the run time must know

    def action_id(self, use: ir.ActionUse) -> str:
        return number(self._ids["action", use.action.full_name])

    def table_infos(self, objects: list[ir.Object]) -> None:
        for made in objects:
            if isinstance(made, ir.ValueSet):
                fields = ", ".join(f"{{{f.width}, MatchKind::{_KINDS[f.kind]}}}" for f in made.fields)
                self.line(f"constexpr FieldInfo {made.member}_fields[] = {{{fields}}};")
                self.line()
        for table in tables_of(objects):
            name = table.member
            if table.keys:
                fields = ", ".join(self._field(f"{name}_mask_{i}", k) for i, k in enumerate(table.keys))
                self.line(f"constexpr FieldInfo {name}_fields[] = {{{fields}}};")
            rows = []
            for position, use in enumerate(table.actions):
                widths = [str(t.bit_width(p.type)) for p in _entry_parameters(use)]
                array = "nullptr"
                if widths:
                    array = f"{name}_params_{position}"
                    self.line(f"constexpr std::uint32_t {array}[] = {{{', '.join(widths)}}};")
                rows.append(
                    f"{{{self.action_id(use)}, {truth(use.in_entries)}, {truth(use.as_default)}, {array}, "
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
                f"{len(table.actions)}, {truth(table.const_entries)}, {truth(table.const_default)}}};"
            )
            if self._traced:
                self._table_names(table)
            self.line()

    def _field(self, name: str, key: ir.KeyField) -> str:
        if key.mask is None:
            return f"{{{key.width}, MatchKind::{_KINDS[key.kind]}}}"
        limbs = [number(key.mask >> at & (2**64 - 1)) for at in range(0, key.width, 64)]
        self.line(f"constexpr std::uint64_t {name}[] = {{{', '.join(limbs)}}};")
        return f"{{{key.width}, MatchKind::{_KINDS[key.kind]}, {name}}}"

    def _table_names(self, table: ir.Table) -> None:
        fields = ", ".join(c_string(k.name) for k in table.keys) or "nullptr"
        self.line(f"constexpr const char* {table.member}_field_names[] = {{{fields}}};")
        self.line(
            f"constexpr TableNames {table.member}_names = {{{c_string(table.full_name)}, "
            f"{table.member}_field_names}};"
        )

    def profile_infos(self, objects: list[ir.Object]) -> None:
        """The actions of all tables that use a profile, as its members may have them."""
        for made in objects:
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

    def declare_entry(self, table: ir.Table, entry: ir.Entry) -> None:
        rows = []
        for (value, second, prefix), key in zip(entry.keys, table.keys, strict=True):
            if value is None:
                rows.append("{nullptr, nullptr, 0}")
                continue
            other = _literal(second, key.width) if key.kind in ("ternary", "range") else "nullptr"
            rows.append(f"{{{_literal(value, key.width)}, {other}, {prefix}}}")
        use = table.actions[entry.action]
        data, length = encoded(use, entry.arguments)
        self.open("{")
        self.line(f"const isw_match match[] = {{{', '.join(rows)}}};")
        self.line(
            f"{table.member}.declare_entry(match, {entry.priority}, {self.action_id(use)}, {data}, {length}, "
            f"{truth(entry.is_const)});"
        )
        self.close()

    # --- apply

    def apply_table(self, table: ir.Table) -> None:
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
        self._sum(profile.algorithm or "identity", table.selector)
        self.line("return sum;")
        self.close("});")
        self.line("ApplyResult result{found != nullptr, kNoAction};")
        self.line("if (member == nullptr) return result;")
        self.open("switch (member->action) {")
        for position, use in enumerate(table.actions):
            self.open(f"case {self.action_id(use)}: {{")
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


def truth(value: bool) -> str:
    return "true" if value else "false"


def tables_of(objects: list[ir.Object]) -> list[ir.Table]:
    return [o for o in objects if isinstance(o, ir.Table)]


def _entry_parameters(use: ir.ActionUse) -> list[ir.Parameter]:
    """Parameters that an entry gives: those after the bound ones."""
    return use.action.parameters[len(use.bound) :]


def _literal(value: int, width: int) -> str:
    return byte_string(value.to_bytes((width + 7) // 8, "big"))


def encoded(use: ir.ActionUse, arguments: list[int]) -> tuple[str, int]:
    widths = [t.bit_width(p.type) for p in _entry_parameters(use)]
    data = b"".join(v.to_bytes((w + 7) // 8, "big") for v, w in zip(arguments, widths, strict=True))
    return (byte_string(data), len(data)) if data else ("nullptr", 0)
