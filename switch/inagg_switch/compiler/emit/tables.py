# SPDX-License-Identifier: Apache-2.0
"""Tables, as C++: their descriptions for the run time, and their apply()."""

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.emit.context import Emitter
from inagg_switch.compiler.emit.expressions import assign, exact, number
from inagg_switch.compiler.emit.externs import declare_sum
from inagg_switch.compiler.emit.literals import byte_string, c_string
from inagg_switch.compiler.emit.statements import write

# --- descriptions for the run time


def action_id(out: Emitter, use: ir.ActionUse) -> str:
    return number(out.ids["action", use.action.full_name])


def write_table_infos(out: Emitter, objects: list[ir.Object]) -> None:
    for made in objects:
        if isinstance(made, ir.ValueSet):
            fields = ", ".join(f"{{{f.width}, MatchKind::{f.kind}}}" for f in made.fields)
            out.line(f"constexpr FieldInfo {made.member}_fields[] = {{{fields}}};")
            out.line()
    for table in tables_of(objects):
        name = table.member
        if table.keys:
            fields = ", ".join(_field(out, f"{name}_mask_{i}", k) for i, k in enumerate(table.keys))
            out.line(f"constexpr FieldInfo {name}_fields[] = {{{fields}}};")
        rows = []
        for position, use in enumerate(table.actions):
            widths = [str(t.bit_width(p.type)) for p in _entry_parameters(use)]
            array = "nullptr"
            if widths:
                array = f"{name}_params_{position}"
                out.line(f"constexpr std::uint32_t {array}[] = {{{', '.join(widths)}}};")
            rows.append(
                f"{{{action_id(out, use)}, {truth(use.in_entries)}, {truth(use.as_default)}, {array}, "
                f"{len(widths)}}}"
            )
        out.open(f"constexpr ActionInfo {name}_actions[] = {{")
        for row, use in zip(rows, table.actions, strict=True):
            out.line(f"{row},  // {use.action.full_name}")
        out.close("};")
        fields = f"{name}_fields" if table.keys else "nullptr"
        out.line(
            f"constexpr TableInfo {name}_info = {{{number(out.ids['table', table.full_name])}, "
            f"{number(max(table.size, len(table.entries)))}, {fields}, {len(table.keys)}, {name}_actions, "
            f"{len(table.actions)}, {truth(table.const_entries)}, {truth(table.const_default)}}};"
        )
        if out.traced:
            _table_names(out, table)
        out.line()


def _field(out: Emitter, name: str, key: ir.KeyField) -> str:
    if key.mask is None:
        return f"{{{key.width}, MatchKind::{key.kind}}}"
    limbs = [number(key.mask >> at & (2**64 - 1)) for at in range(0, key.width, 64)]
    out.line(f"constexpr std::uint64_t {name}[] = {{{', '.join(limbs)}}};")
    return f"{{{key.width}, MatchKind::{key.kind}, {name}}}"


def _table_names(out: Emitter, table: ir.Table) -> None:
    fields = ", ".join(c_string(k.name) for k in table.keys) or "nullptr"
    out.line(f"constexpr const char* {table.member}_field_names[] = {{{fields}}};")
    out.line(
        f"constexpr TableNames {table.member}_names = {{{c_string(table.full_name)}, "
        f"{table.member}_field_names}};"
    )


def write_profile_infos(out: Emitter, objects: list[ir.Object]) -> None:
    """Describes the profiles: their members may have the actions of all tables that use them. Digests get their ids."""
    for made in objects:
        if isinstance(made, ir.Digest):
            out.line(
                f"constexpr std::uint32_t {made.member}_id = {number(out.ids['digest', made.full_name])};"
            )
        if not isinstance(made, ir.Profile):
            continue
        uses = {u.action.full_name: (table, i) for table in made.tables for i, u in enumerate(table.actions)}
        rows = ", ".join(f"{table.member}_actions[{i}]" for table, i in uses.values())
        actions = "nullptr"
        if uses:
            actions = f"{made.member}_actions"
            out.line(f"constexpr ActionInfo {actions}[] = {{{rows}}};")
        out.line(
            f"constexpr ProfileInfo {made.member}_info = {{"
            f"{number(out.ids['action_profile', made.full_name])}, {number(made.size)}, {actions}, "
            f"{len(uses)}}};"
        )
        out.line()


def declare_entry(out: Emitter, table: ir.Table, entry: ir.Entry) -> None:
    rows = []
    for (value, second, prefix), key in zip(entry.keys, table.keys, strict=True):
        if value is None:
            rows.append("{nullptr, nullptr, 0}")
            continue
        other = _literal(second, key.width) if key.kind in ("ternary", "range") else "nullptr"
        rows.append(f"{{{_literal(value, key.width)}, {other}, {prefix}}}")
    use = table.actions[entry.action]
    data, length = encoded(use, entry.arguments)
    out.open("{")
    out.line(f"const isw_match match[] = {{{', '.join(rows)}}};")
    out.line(
        f"{table.member}.declare_entry(match, {entry.priority}, {action_id(out, use)}, {data}, {length}, "
        f"{truth(entry.is_const)});"
    )
    out.close()


# --- apply


def write_apply(out: Emitter, table: ir.Table) -> None:
    member = f"program.{table.member}"
    out.open(f"ApplyResult apply_{table.member}() {{")
    if table.keys:
        _key(out, table)
        out.line(f"Entry* const found = {member}.lookup(key);")
        if table.direct_counter is not None:
            out.line("if (found != nullptr) program.count(*found);")
        _on_hit(out, table)
        out.line(f"const Entry& entry = found != nullptr ? *found : {member}.default_entry();")
    else:
        out.line("const Entry* const found = nullptr;")
        out.line(f"const Entry& entry = {member}.default_entry();")
    if out.traced:
        key = "key" if table.keys else "nullptr"
        out.line(f"program.trace.table({table.member}_info, {table.member}_names, {key}, found);")
    if table.profile is not None:
        _run_member(out, table, table.profile)
        return
    # The result is made first, so that the action cannot change it.
    out.line("const ApplyResult result{found != nullptr, entry.action};")
    out.open("switch (entry.action) {")
    for position, use in enumerate(table.actions):
        out.open(f"case {position}: {{")
        _dispatch(out, use)
        out.line("break;")
        out.close()
    out.close()
    out.line("return result;")
    out.close()
    out.line()


def _on_hit(out: Emitter, table: ir.Table) -> None:
    meter = table.direct_meter
    if meter is not None and meter.target is not None:
        out.open("if (found != nullptr) {")
        length = "program.packet_bytes" if meter.unit == "bytes" else "1"
        out.line(f"const std::uint32_t colour = found->meter.execute({length}, program.now_us);")
        value = f"resize<32, {t.bit_width(meter.target.type)}>(colour)"
        out.line(assign(out, meter.target, value) + ";")
        out.close()
    if table.support_timeout:
        out.line("if (found != nullptr) found->use.last_hit_us = program.clock_us;")


def _run_member(out: Emitter, table: ir.Table, profile: ir.Profile) -> None:
    """Runs the action of a profile's member, which the entry names or chooses from a group."""
    out.open("const ProfileMember* const member = entry.indirect.choose([&] {")
    declare_sum(out, profile.algorithm or "identity", table.selector)
    out.line("return sum;")
    out.close("});")
    out.line("ApplyResult result{found != nullptr, kNoAction};")
    out.line("if (member == nullptr) return result;")
    out.open("switch (member->action) {")
    for position, use in enumerate(table.actions):
        out.open(f"case {action_id(out, use)}: {{")
        out.line(f"result.action = {position};")
        _dispatch(out, use, "member->params")
        out.line("break;")
        out.close()
    out.close()
    out.line("return result;")
    out.close()
    out.line()


def _key(out: Emitter, table: ir.Table) -> None:
    parts = []
    wide = False
    for key in table.keys:
        if key.width > 64:
            wide = True
            break
        parts.append(f"std::uint64_t{{{exact(out, key.expr)}}}")
    if not wide:
        out.line(f"const std::uint64_t key[] = {{{', '.join(parts)}}};")
        return
    total = sum((k.width + 63) // 64 for k in table.keys)
    out.line(f"std::uint64_t key[{total}];")
    at = 0
    for key in table.keys:
        out.line(f"to_limbs<{key.width}>({exact(out, key.expr)}, key + {at});")
        at += (key.width + 63) // 64


def _dispatch(out: Emitter, use: ir.ActionUse, params: str = "entry.params") -> None:
    """Runs an action with its bound arguments, then the entry's parameters."""
    arguments = list(use.bound)
    at = 0
    for parameter in _entry_parameters(use):
        width = t.bit_width(parameter.type)
        value = f"from_limbs<{width}>(&{params}[{at}])"
        if t.strip(parameter.type) == t.BOOL:
            value = f"({value} != 0)"
        arguments.append(ir.CallArgument("value", "in", parameter.type, ir.Var(parameter.type, value)))
        at += (width + 63) // 64
    write(out, ir.Evaluate(ir.Call(t.VOID, use.action.name, tuple(arguments))))


def truth(value: bool) -> str:
    return "true" if value else "false"


def tables_of(objects: list[ir.Object]) -> list[ir.Table]:
    return [o for o in objects if isinstance(o, ir.Table)]


def _entry_parameters(use: ir.ActionUse) -> list[ir.Parameter]:
    """The parameters that an entry sets: those after the bound ones."""
    return use.action.parameters[len(use.bound) :]


def _literal(value: int, width: int) -> str:
    return byte_string(value.to_bytes((width + 7) // 8, "big"))


def encoded(use: ir.ActionUse, arguments: list[int]) -> tuple[str, int]:
    widths = [t.bit_width(p.type) for p in _entry_parameters(use)]
    data = b"".join(v.to_bytes((w + 7) // 8, "big") for v, w in zip(arguments, widths, strict=True))
    return (byte_string(data), len(data)) if data else ("nullptr", 0)
