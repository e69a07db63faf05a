# SPDX-License-Identifier: Apache-2.0
"""A whole generated program: prints itself as v1model P4_16 and says what leaves for a frame.

Headers: `i` (input), `a` and `b` (of one type), a stack `s`, and `o`, which the end of the ingress fills with every
variable and the parser's error. Everything valid is emitted, `o` first.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from fuzz_expressions import BOOL, Environment, Type
from fuzz_parsers import ERRORS, PACKET, Header, Packet, Parser
from fuzz_statements import Block, ExitControl, ReturnFrom, Routine, Table

STACK = 3
_TEMPLATE = """\
#include <core.p4>
#include <v1model.p4>
error {{ Mine }}
{headers}
header out_t {{ {out} }}
struct headers_t {{ out_t o; i_t i; h_t a; h_t b; s_t[{stack}] s; }}
struct metadata_t {{ bit<8> m0; int<16> m1; bool m2; bit<33> m3; }}
{functions}
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {{
{parser}
}}
control V(inout headers_t hdr, inout metadata_t meta) {{ apply {{ }} }}
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
control C(inout headers_t hdr, inout metadata_t meta) {{ apply {{ }} }}
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
    parser: Parser
    variables: list[tuple[str, Type, int]]
    functions: list[Routine]
    actions: list[Routine]
    tables: list[Table]
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
        local = [line for a in actions for line in a.p4()] + [line for t in tables for line in t.p4()]
        return _TEMPLATE.format(
            headers="\n".join(h.p4() for h in (self.i, self.h, self.s)),
            out=" ".join(f"bit<{w}> r{n};" for n, w in enumerate(self._out_widths())),
            stack=STACK,
            functions="\n".join(line for f in functions for line in f.p4()),
            parser="\n".join("    " + line for line in self.parser.p4()),
            locals="\n".join("    " + line for line in local),
            body="\n".join(" " * 8 + line for line in self._initial() + self.body.p4()[1:-1]),
            results="\n".join(" " * 8 + line for line in self._results()),
        ).replace(
            "bit<33> m3; }",
            "bit<33> m3; " + " ".join(f"{t.p4} {n[5:]};" for n, t, _ in self.variables) + " }",
        )

    def _initial(self) -> list[str]:
        from fuzz_expressions import Const

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
        for n, (name, type_) in enumerate(self._shown(), 1):
            lines.append(
                f"if ({name}) {{ hdr.o.r{n} = 1; }}" if type_ == BOOL
                else f"hdr.o.r{n} = {f'(bit<{type_.width}>) ' if type_.signed else ''}{name};"
            )  # fmt: skip
        return lines

    # --- in Python

    def evaluate(self, frame: bytes) -> list[tuple[int, bytes]]:
        """What leaves for a frame."""
        packet = Packet(frame)
        env: Environment = {PACKET: packet, "hdr.s.$next": 0}
        for path, header in self.headers():
            env[f"{path}.$valid"] = False
            env.update({f"{path}.{name}": False if t == BOOL else 0 for name, t in header.fields})
        env.update({name: False if t == BOOL else 0 for name, t in METADATA.items()})
        env.update({name: bool(v) if t == BOOL else v for name, t, v in self.variables})
        error = self.parser.run(env)
        with suppress(ExitControl, ReturnFrom):
            self.body.run(env)
        bits = f"{ERRORS.index(error):08b}"
        for name, type_ in self._shown():
            bits += f"{type_.unsigned(env[name]):0{max(1, type_.width)}b}"
        bits += "0" * (-len(bits) % 8)
        for path, header in self.headers():
            if env[f"{path}.$valid"]:
                for name, type_ in header.fields:
                    bits += f"{type_.unsigned(env[f'{path}.{name}']):0{max(1, type_.width)}b}"
        out = int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:]
        return [(1, out + packet.rest())]

    def headers(self) -> list[tuple[str, Header]]:
        """Path and type of every header, in the order of the deparser, without `o`."""
        stack = [(f"hdr.s[{n}]", self.s) for n in range(STACK)]
        return [("hdr.i", self.i), ("hdr.a", self.h), ("hdr.b", self.h), *stack]
