# SPDX-License-Identifier: Apache-2.0
"""The state that the modules of the emitter share: the program, its names in C++, and the lines written so far."""

from collections.abc import Callable, Mapping

from inagg_switch.compiler import ir
from inagg_switch.compiler.emit.untouched import mentioned_headers
from inagg_switch.compiler.names import Namespace, spell_field


class Emitter:
    """`ids` maps (kind, full name) to P4Info ids. A `traced` program contains the names of its tables. `leave` is the
    statement by which the present body returns early. `call` writes a call: expressions contain calls, and calls
    contain expressions, so `expressions` cannot import it.
    """

    def __init__(
        self,
        program: ir.Program,
        ids: Mapping[tuple[str, str], int],
        call: "Callable[[Emitter, ir.Call], str]",
        *,
        traced: bool,
    ) -> None:
        names = Namespace(spell_field)
        self.program = program
        self.ids = ids
        self.call = call
        self.traced = traced
        self.struct_names = {id(s): names.unique(s.name) for s in program.structs}
        self.functions = frozenset(f.name for f in program.functions)
        self.blocks = {b.name: b for b in program.blocks}
        self.mentioned_headers = mentioned_headers(program)
        self.lines: list[str] = []
        self.level = 0
        self.leave = "return;"

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.level + text if text else "")

    def open(self, text: str) -> None:
        self.line(text)
        self.level += 1

    def close(self, text: str = "}") -> None:
        self.level -= 1
        self.line(text)
