# SPDX-License-Identifier: Apache-2.0
"""A whole generated program: prints itself as v1model P4_16 and says what leaves for a frame.

Headers: `i` (input), `a` and `b` (of one type), a stack `s`, unions `u` and `w` and a stack of them `us`, `v` and `x`
with a varbit field, and `o`, which the egress fills with every variable, the parser's error and the checksums'.
Everything valid is emitted, `o` first.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fuzz_expressions import BOOL, Const, Environment, Type
from fuzz_externs import CHECKSUM_ERROR, REGISTERS, Register
from fuzz_headers import UNIONS, Header, bits_of, zero
from fuzz_parsers import ERRORS, PACKET, Packet, Parser
from fuzz_statements import Block, ExitControl, ReturnFrom, Routine
from fuzz_tables import Entry, Table

from inagg_switch import Group, Member
from inagg_switch import vectors as pv

STACK = 3
UNION_STACK = 2
_TEMPLATE = """\
#include <core.p4>
#include <v1model.p4>
error {{ Mine }}
{headers}
header_union u_t {{ h_t h; s_t s; }}
header out_t {{ {out} }}
struct headers_t {{ out_t o; i_t i; h_t a; h_t b; s_t[{stack}] s; u_t u; u_t w; u_t[{union_stack}] us; v_t v; v_t x; }}
struct metadata_t {{ {metadata} }}
{functions}
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
{parser}
}}
control V(inout headers_t hdr, inout metadata_t meta) {{
    apply {{
{verify}
    }}
}}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
{locals}
    apply {{
        sm.egress_spec = 1;
{body}
    }}
}}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
    apply {{
        hdr.o.setValid();
{results}
    }}
}}
control C(inout headers_t hdr, inout metadata_t meta) {{
    apply {{
{update}
    }}
}}
control D(packet_out packet, in headers_t hdr) {{ apply {{ packet.emit(hdr); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""
METADATA = {"meta.m0": Type(8), "meta.m1": Type(16, True), "meta.m2": BOOL, "meta.m3": Type(33)}


@dataclass
class GeneratedProgram:
    """`variables`: metadata `meta.v*` by name, with type and first value."""

    i: Header
    h: Header
    s: Header
    v: Header
    parser: Parser
    variables: list[tuple[str, Type, int]]
    functions: list[Routine]
    actions: list[Routine]
    tables: list[Table]
    registers: list[Register]
    verify: Block
    update: Block
    body: Block = field(default_factory=Block)

    # --- as P4

    def used(self) -> tuple[list[Routine], list[Routine], list[Table]]:
        """Functions, actions and tables that the program runs, in the order of their declaration."""
        seen: set[int] = set()

        def visit(node: object) -> None:
            if isinstance(node, Routine | Table):
                if id(node) in seen:
                    return
                seen.add(id(node))
            if isinstance(node, list | tuple):
                for one in node:
                    visit(one)
            elif hasattr(node, "__dict__"):
                for one in vars(node).values():
                    visit(one)

        visit(self.body)
        return (
            [f for f in self.functions if id(f) in seen],
            [a for a in self.actions if id(a) in seen],
            [t for t in self.tables if id(t) in seen],
        )

    def p4(self) -> str:
        functions, actions, tables = self.used()
        local = [r.p4() for r in self.registers]
        local += [line for part in (*actions, *tables) for line in part.p4()]
        headers = [h.p4() for h in (self.i, self.h, self.s, self.v)]
        metadata = list(METADATA.items()) + [(n, t) for n, t, _ in self.variables]
        return _TEMPLATE.format(
            headers="\n".join(headers + [v.struct for v in self.parser.value_sets if v.struct]),
            out=" ".join(f"bit<{w}> r{n};" for n, w in enumerate(self._out_widths())),
            stack=STACK,
            union_stack=UNION_STACK,
            metadata=" ".join(f"{t.p4} {n.removeprefix('meta.')};" for n, t in metadata),
            functions="\n".join(line for f in functions for line in f.p4()),
            parser=_indented(self.parser.p4(), 4),
            verify=_indented(self.verify.p4()[1:-1], 4),
            locals=_indented(local, 4),
            body=_indented(self._initial(), 8) + "\n" + _indented(self.body.p4()[1:-1], 4),
            results=_indented(self._results(), 8),
            update=_indented(self.update.p4()[1:-1], 4),
        )

    def _initial(self) -> list[str]:
        return [f"{n} = {Const(t, v).p4()};" for n, t, v in self.variables]

    def _shown(self) -> list[tuple[str, Type]]:
        return [(n, t) for n, t, _ in self.variables] + list(METADATA.items())

    def _out_widths(self) -> list[int]:
        widths = [8] + [max(1, t.width) for _, t in self._shown()]
        return widths + ([-sum(widths) % 8] if sum(widths) % 8 else [])

    def _results(self) -> list[str]:
        lines = [
            f"if (sm.parser_error == error.{e}) {{ hdr.o.r0 = {n}; }}" for n, e in enumerate(ERRORS) if n
        ]
        lines.append("if (sm.checksum_error == 1) { hdr.o.r0 = hdr.o.r0 | 0x80; }")
        for n, (name, type_) in enumerate(self._shown(), 1):
            lines.append(
                f"if ({name}) {{ hdr.o.r{n} = 1; }}" if type_ == BOOL
                else f"hdr.o.r{n} = {f'(bit<{type_.width}>) ' if type_.signed else ''}{name};"
            )  # fmt: skip
        return lines

    # --- for the control plane

    def vectors(self) -> pv.Vectors:
        """Entries, members, groups and members of value sets, without packets."""
        made = pv.Vectors()
        for table in self.used()[2]:
            if table.profile is not None:
                self._add_profile(made, table)
            if not table.const:
                for place, entry in enumerate(table.entries):
                    made.inserts.append(_insert(table, place, entry))
        for known in self.parser.value_sets:
            for member in known.members:
                match: dict[str, pv.Key] = {f"f{n}": value for n, value in enumerate(member)}
                made.value_sets.append(pv.SetMember(f"P.{known.name}", match if known.struct else member[0]))
        return made

    def _add_profile(self, made: pv.Vectors, table: Table) -> None:
        assert table.profile is not None
        name = f"I.{table.profile.name}"
        for number, (action, arguments) in enumerate(table.profile.members):
            params = _params(action, arguments)
            made.members.append(pv.ProfileMember(name, number, f"I.{action.name}", params))
        for number, members in enumerate(table.profile.groups):
            made.member_groups.append(pv.ProfileGroup(name, number, members))

    # --- in Python

    def start(self, frame: bytes, registers: dict[Any, int]) -> Environment:
        """As it is before the parser. `registers` lasts from packet to packet."""
        env: Environment = {
            PACKET: Packet(frame), REGISTERS: registers, CHECKSUM_ERROR: 0, "hdr.s.$next": 0, "hdr.us.$next": 0,
        }  # fmt: skip
        env[UNIONS] = {f"{u}.{m}": [f"{u}.{o}"] for u in self.unions() for m, o in ("hs", "sh")}
        for path, header in self.headers():
            env[f"{path}.$valid"] = False
            env.update({f"{path}.{name}": zero(t) for name, t in header.fields})
        env.update({name: zero(t) for name, t in METADATA.items()})
        return env

    def evaluate(self, frame: bytes, registers: dict[Any, int]) -> pv.Output:
        """What leaves for a frame."""
        env = self.start(frame, registers)
        error = self.parser.run(env)
        self.verify.run(env)
        env.update({name: bool(v) if t == BOOL else v for name, t, v in self.variables})
        with suppress(ExitControl, ReturnFrom):
            self.body.run(env)
        self.update.run(env)
        bits = f"{ERRORS.index(error) | env[CHECKSUM_ERROR] << 7:08b}"
        for name, type_ in self._shown():
            bits += bits_of(type_, env[name])
        bits += "0" * (-len(bits) % 8)
        bits += "".join(header.bits(env, path) for path, header in self.headers())
        out = int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:]
        return [(1, out + env[PACKET].rest())]

    def headers(self) -> list[tuple[str, Header]]:
        """Path and type of every header, in the order of the deparser, without `o`."""
        stack = [(f"hdr.s[{n}]", self.s) for n in range(STACK)]
        unions = [(f"{u}.{m}", h) for u in self.unions() for m, h in (("h", self.h), ("s", self.s))]
        return [
            ("hdr.i", self.i), ("hdr.a", self.h), ("hdr.b", self.h), *stack, *unions,
            ("hdr.v", self.v), ("hdr.x", self.v),
        ]  # fmt: skip

    def unions(self) -> list[str]:
        return ["hdr.u", "hdr.w", *(f"hdr.us[{n}]" for n in range(UNION_STACK))]


def _indented(lines: list[str], blanks: int) -> str:
    return "\n".join(" " * blanks + line for line in lines)


def _insert(table: Table, place: int, entry: Entry) -> pv.Insert:
    """Keys that match anything are left out."""
    match = {
        table.key_name(i): key
        for i, (key, (_, kind)) in enumerate(zip(entry.keys, table.keys, strict=True))
        if key is not None and not (isinstance(key, tuple) and key[1] == 0 and kind in ("lpm", "ternary"))
    }
    priority = 1000 - place if table.by_priority() else 0
    if isinstance(entry.action, Routine):
        params = _params(entry.action, entry.arguments)
        return pv.Insert(f"I.{table.name}", match, f"I.{entry.action.name}", params, priority)
    kind, number = entry.action
    target = Group(number) if kind == "_group" else Member(number)
    return pv.Insert(f"I.{table.name}", match, target, {}, priority)


def _params(action: Routine, arguments: list[int]) -> dict[str, int]:
    return {p.name: a for p, a in zip(action.parameters, arguments, strict=True)}
