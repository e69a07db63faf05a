# SPDX-License-Identifier: Apache-2.0
"""A whole generated program, which prints itself as v1model P4_16 and makes the vectors of its control plane.

Headers: `i` (input), `a` and `b` (of one type), a stack `s`, unions `u` and `w` and a stack of unions `us`, `v` and `x`
with a varbit field, and `o`. The egress fills `o` with all variables, the parser's error, the checksum error, and where
the packet comes from and goes to. The deparser emits all valid headers, `o` first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from inagg_switch import Group, Member
from inagg_switch.vectors import format as pv
from tests.fuzz.programs.blocks import CallParser, Control, Instance, SubParser
from tests.fuzz.programs.expressions import BOOL, Expression, Ref, Type
from tests.fuzz.programs.headers import Header
from tests.fuzz.programs.objects import Counter, Meter, Register
from tests.fuzz.programs.parsers import ERRORS, Parser
from tests.fuzz.programs.pipeline import GROUPS, SESSIONS
from tests.fuzz.programs.statements import Block, Routine
from tests.fuzz.programs.tables import Entry, Table
from tests.fuzz.programs.types import Named, Struct

STACK = 3
UNION_STACK = 2
_TEMPLATE = """\
#include <core.p4>
#include <v1model.p4>
error {{ Mine }}
{types}
{headers}
header_union u_t {{ h_t h; s_t s; }}
header out_t {{ {out} }}
struct headers_t {{ out_t o; i_t i; h_t a; h_t b; s_t[{stack}] s; u_t u; u_t w; u_t[{union_stack}] us; v_t v; v_t x; }}
struct metadata_t {{
{metadata}
}}
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
        meta.rounds = meta.rounds + 1;
{body}
    }}
}}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
    apply {{
        meta.rounds = meta.rounds + 1;
{egress}
        hdr.o.setValid();
{results}
{tail}
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
# How many blocks a packet has been through; clones, resubmitted and recirculated packets keep it.
ROUNDS = Ref(Type(8), "meta.rounds")
METADATA = {"meta.m0": Type(8), "meta.m1": Type(16, True), "meta.m2": BOOL, "meta.m3": Type(33)}


@dataclass
class Types:
    """The declared types: typedefs, named types and enums, structs."""

    aliases: list[Type] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    structs: list[Struct] = field(default_factory=list)

    def p4(self) -> list[str]:
        typedefs = [f"typedef {Type(t.width, t.signed).p4} {t.alias};" for t in self.aliases]
        named, structs = ([t.declaration() for t in declared] for declared in (self.named, self.structs))
        return typedefs + named + structs


@dataclass
class GeneratedProgram:
    """`variables`: metadata `meta.v*`, each with its first value. `field_lists`: metadata by list. `tail` runs after
    the egress has filled `o`."""

    i: Header
    h: Header
    s: Header
    v: Header
    types: Types
    parser: Parser
    sub_parsers: list[SubParser]
    variables: list[tuple[Ref, Expression]]
    field_lists: dict[int, list[str]]
    functions: list[Routine]
    controls: list[Control]
    instances: list[Instance]
    actions: list[Routine]
    tables: list[Table]
    registers: list[Register]
    counters: list[Counter]
    meters: list[Meter]
    verify: Block
    update: Block
    body: Block = field(default_factory=Block)
    egress: Block = field(default_factory=Block)
    tail: Block = field(default_factory=Block)

    # --- as P4

    def used(self) -> set[int]:
        """The id() of everything that the program runs."""
        seen: set[int] = set()

        def visit(node: object) -> None:
            if isinstance(node, list | tuple):
                for one in node:
                    visit(one)
            elif hasattr(node, "__dict__") and id(node) not in seen:
                seen.add(id(node))
                for one in vars(node).values():
                    visit(one)

        visit([self.body, self.egress, self.tail])
        return seen

    def used_tables(self) -> list[Table]:
        used = self.used()
        return [t for t in self.tables if id(t) in used]

    def p4(self) -> str:
        used = self.used()
        objects: list[Register | Counter | Meter] = [*self.registers, *self.counters, *self.meters]
        parts: list[Routine | Table] = [*self.instances, *self.actions, *self.tables]
        above: list[Routine | Control] = [*self.functions, *self.controls]
        local_lines = [o.p4() for o in objects]
        local_lines += [line for part in parts if id(part) in used for line in part.p4()]
        headers = [h.p4() for h in (self.i, self.h, self.s, self.v)]
        calls = [s for state in self.parser.states for s in state.statements if isinstance(s, CallParser)]
        called = [p for p in self.sub_parsers if any(c.parser is p for c in calls)]
        global_lines = [line for part in above if id(part) in used for line in part.p4()]
        global_lines += [line for parser in called for line in parser.p4()]
        return _TEMPLATE.format(
            types="\n".join(self.types.p4()),
            headers="\n".join(headers + [v.struct for v in self.parser.value_sets if v.struct]),
            out=" ".join(f"bit<{w}> r{n};" for n, w in enumerate(self._out_widths())),
            stack=STACK,
            union_stack=UNION_STACK,
            metadata=_indented(list(self._metadata()), 4),
            functions="\n".join(global_lines),
            parser=_indented([c.declaration() for c in calls] + self.parser.p4(), 4),
            verify=_indented(self.verify.p4()[1:-1], 4),
            locals=_indented(local_lines, 4),
            body=_indented(self._initial(), 8) + "\n" + _indented(self.body.p4()[1:-1], 4),
            egress=_indented(self.egress.p4()[1:-1], 4),
            results=_indented(self._results(), 8),
            tail=_indented(self.tail.p4()[1:-1], 4),
            update=_indented(self.update.p4()[1:-1], 4),
        )

    def _metadata(self) -> Iterator[str]:
        for ref in (ROUNDS, *(Ref(t, n) for n, t in METADATA.items()), *(r for r, _ in self.variables)):
            lists = [n for n, kept in self.field_lists.items() if ref.path in kept]
            kept = f"@field_list({', '.join(map(str, lists))}) " if lists else ""
            yield f"{kept}{ref.type.p4} {ref.path.removeprefix('meta.')};"

    def _initial(self) -> list[str]:
        return [f"{r.p4()} = {value.p4()};" for r, value in self.variables]

    def shown(self) -> list[Ref]:
        """The scalars that the egress writes to `o`."""
        refs = [r for r, _ in self.variables] + [Ref(t, n) for n, t in METADATA.items()]
        return [leaf for ref in refs for leaf in leaves_of(ref)]

    def _out_widths(self) -> list[int]:
        widths = [8, 16] + [_out_width(r.type) for r in self.shown()]
        return widths + ([-sum(widths) % 8] if sum(widths) % 8 else [])

    def _results(self) -> list[str]:
        lines = ["hdr.o.r0 = 0;"] + [
            f"if (sm.parser_error == error.{e}) {{ hdr.o.r0 = {n}; }}" for n, e in enumerate(ERRORS) if n
        ]
        lines.append("if (sm.checksum_error == 1) { hdr.o.r0 = hdr.o.r0 | 0x80; }")
        lines.append("hdr.o.r1 = sm.instance_type[3:0] ++ sm.egress_rid[3:0] ++ sm.egress_port[7:0];")
        for n, ref in enumerate(self.shown(), 2):
            name, type_ = ref.path, ref.type
            if isinstance(type_, Named) and not type_.numeric:
                lines.append(f"hdr.o.r{n} = 0;")
                for place in range(1, len(type_.members)):
                    lines.append(f"if ({name} == {type_.name}.m{place}) {{ hdr.o.r{n} = {place}; }}")
            elif type_ == BOOL:
                lines.append(f"if ({name}) {{ hdr.o.r{n} = 1; }} else {{ hdr.o.r{n} = 0; }}")
            else:
                plain = isinstance(type_, Type) and not type_.signed and not isinstance(type_, Named)
                lines.append(f"hdr.o.r{n} = {'' if plain else f'(bit<{type_.width}>) '}{name};")
        return lines

    # --- for the control plane

    def vectors(self) -> pv.Vectors:
        """Entries, profile members and groups, value sets, meters, multicast groups and clone sessions; no packets."""
        made = pv.Vectors()
        for table in self.used_tables():
            if table.profile is not None:
                self._add_profile(made, table)
            if not table.const:
                for place, entry in enumerate(table.entries):
                    made.inserts.append(_insert(table, place, entry))
        for known in self.parser.value_sets:
            for member in known.members:
                match: dict[str, pv.Key] = {f"f{n}": value for n, value in enumerate(member)}
                made.value_sets.append(pv.SetMember(f"P.{known.name}", match if known.struct else member[0]))
        for meter in self.meters:
            for index, bursts in enumerate(meter.bursts):
                if bursts is not None:
                    rates = (0, bursts[0], 0, bursts[1])
                    made.meters.append(pv.Rates(f"I.{meter.name}", index, rates))
        made.groups = [pv.Replicas(n, ports) for n, ports in GROUPS.items()]
        made.clones = [pv.Replicas(n, ports) for n, ports in SESSIONS.items()]
        return made

    def _add_profile(self, made: pv.Vectors, table: Table) -> None:
        assert table.profile is not None
        name = f"I.{table.profile.name}"
        for number, (action, arguments) in enumerate(table.profile.members):
            params = _params(action, arguments)
            made.members.append(pv.ProfileMember(name, number, f"I.{action.name}", params))
        for number, members in enumerate(table.profile.groups):
            made.member_groups.append(pv.ProfileGroup(name, number, members))

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
    """An entry of a table. Keys that match anything are omitted."""
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


def leaves_of(ref: Ref) -> list[Ref]:
    return list(ref.type.leaves(ref.path)) if isinstance(ref.type, Struct) else [ref]


def _out_width(type_: Type) -> int:
    return 8 if isinstance(type_, Named) and not type_.numeric else max(1, type_.width)


def _params(action: Routine, arguments: list[int]) -> dict[str, int]:
    return {p.name: a for p, a in zip(action.parameters, arguments, strict=True)}
