# SPDX-License-Identifier: Apache-2.0
"""Finds the headers that egress does not touch: the copies of a multicast share them."""

from collections.abc import Iterable, Iterator, Set

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.primitives import Emit

Code = ir.Block | ir.Function


def mentioned_headers(program: ir.Program) -> Set[str]:
    """The fields of the headers struct that egress or the checksum update mentions: all, if they use the whole
    struct."""
    found = mentioned_fields(program.headers, codes(program, "egress", "update"))
    return program.headers.fields.keys() if found is None else found


def mentioned_fields(struct: t.Type, of: Iterable[Code]) -> Set[str] | None:
    """The fields of a struct that the code mentions; None if it uses the whole struct. `of`: from codes()."""
    found: set[str] = set()
    for code in of:
        for parent, node in nodes(code):
            if not isinstance(node, ir.Expr) or t.strip(node.type) is not struct:
                continue
            # If the struct is passed to a callee, the callee's code decides. An `out` argument is cleared before.
            if isinstance(parent, ir.Field):
                found.add(parent.name)
            elif (
                not isinstance(parent, ir.CallArgument) or parent.mode == "copy" or parent.direction == "out"
            ):
                return None
    return found


def codes(program: ir.Program, *blocks: str) -> list[Code]:
    """Blocks of the pipeline, and the blocks and functions that they call, directly or not."""
    callees: dict[str, Code] = {b.name: b for b in program.blocks}
    callees |= {f.name: f for f in program.functions}
    waiting: list[Code] = [program.pipeline[name] for name in blocks]
    found: dict[str, Code] = {}
    while waiting:
        code = waiting.pop()
        if code.name not in found:
            found[code.name] = code
            calls = (node for _, node in nodes(code) if isinstance(node, ir.Call))
            waiting += [callees[call.callee] for call in calls if call.callee in callees]
    return list(found.values())


def untouched_headers(program: ir.Program, mentioned: Set[str]) -> list[str]:
    """The longest run (in bits) of consecutive fields of the headers struct that are not mentioned; may be empty."""
    runs: list[list[str]] = [[]]
    for name in program.headers.fields:
        if name in mentioned:
            runs.append([])
        else:
            runs[-1].append(name)
    return max(runs, key=lambda run: sum(t.bit_width(program.headers.fields[name]) for name in run))


def split_deparser(program: ir.Program, mentioned: Set[str]) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """Splits the deparser's statements: those whose result may differ between the copies of a multicast, then the emits
    at the end, of headers that are not mentioned."""
    block = program.pipeline["deparser"]
    body: tuple[ir.Stmt, ...] = (block.body,)
    while len(body) == 1 and isinstance(body[0], ir.Group):
        body = body[0].body
    parameters = {p.name for p in block.parameters}
    first = len(body)
    while first > 0 and _emits_other_than(mentioned, parameters, body[first - 1]):
        first -= 1
    return list(body[:first]), list(body[first:])


def _emits_other_than(mentioned: Set[str], parameters: set[str], statement: ir.Stmt) -> bool:
    """True for an emit of a header that is a field of the parameter and is not mentioned."""
    if not isinstance(statement, Emit):
        return False
    header = statement.header
    return (
        isinstance(header, ir.Field)
        and isinstance(header.base, ir.Var)
        and header.base.name in parameters
        and header.name not in mentioned
    )


def parts(code: Code) -> list[ir.Node]:
    """The code of a block with its tables and actions, or of a function."""
    if isinstance(code, ir.Function):
        return [code.body]
    found: list[ir.Node] = [code.body, *code.members, *(action.body for action in code.actions)]
    for table in code.tables:
        found += [*(key.expr for key in table.keys), *table.selector]
        found += [argument for use in table.actions for argument in use.bound]
        if table.direct_meter is not None and table.direct_meter.target is not None:
            found.append(table.direct_meter.target)
    return found


def nodes(code: Code) -> Iterator[tuple[ir.Node | None, ir.Node]]:
    """All nodes of the code, each with its parent."""
    for part in parts(code):
        yield None, part
        for parent in ir.walk(part):
            for child in ir.children(parent):
                yield parent, child
