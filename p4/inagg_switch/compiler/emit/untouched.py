# SPDX-License-Identifier: Apache-2.0
"""What the second half of the pipeline leaves alone: the headers that no copy of a multicast needs anew."""

from collections.abc import Iterator, Set

from inagg_switch.compiler import ir
from inagg_switch.compiler import types as t
from inagg_switch.compiler.primitives import Emit


def mentioned_headers(program: ir.Program) -> Set[str]:
    """Fields of the headers struct that egress or the checksum update mentions. All of them if the struct is used as a
    whole."""
    callees: dict[str, ir.Block | ir.Function] = {b.name: b for b in program.blocks}
    callees |= {f.name: f for f in program.functions}
    waiting: list[ir.Block | ir.Function] = [program.pipeline["egress"], program.pipeline["update"]]
    seen: set[str] = set()
    found: set[str] = set()
    while waiting:
        code = waiting.pop()
        if code.name in seen:
            continue
        seen.add(code.name)
        for parent, node in _nodes(code):
            if isinstance(node, ir.Call) and node.callee in callees:
                waiting.append(callees[node.callee])
            if not isinstance(node, ir.Expr) or t.strip(node.type) is not program.headers:
                continue
            # What is passed on as a whole is looked at where it arrives.
            if isinstance(parent, ir.Field):
                found.add(parent.name)
            elif not isinstance(parent, ir.CallArgument) or parent.how == "copy":
                return program.headers.fields.keys()
    return found


def untouched_headers(program: ir.Program, mentioned: Set[str]) -> list[str]:
    """Fields of the headers struct, one behind the other, that are not among those mentioned: of several such runs the
    longest in bits. Empty if there is none."""
    runs: list[list[str]] = [[]]
    for name in program.headers.fields:
        if name in mentioned:
            runs.append([])
        else:
            runs[-1].append(name)
    return max(runs, key=lambda run: sum(t.bit_width(program.headers.fields[name]) for name in run))


def split_deparser(program: ir.Program, mentioned: Set[str]) -> tuple[list[ir.Stmt], list[ir.Stmt]]:
    """The deparser's statements: those that may do other things for each copy of a multicast, and the emits at its end
    of headers that are not among those mentioned."""
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
    """An emit of one of the parameter's headers that is not among those mentioned."""
    if not isinstance(statement, Emit):
        return False
    header = statement.header
    return (
        isinstance(header, ir.Field)
        and isinstance(header.base, ir.Var)
        and header.base.name in parameters
        and header.name not in mentioned
    )


def _parts(code: ir.Block | ir.Function) -> list[ir.Node]:
    """All that the code evaluates."""
    if isinstance(code, ir.Function):
        return [code.body]
    parts: list[ir.Node] = [code.body, *code.members, *(action.body for action in code.actions)]
    for table in code.tables:
        parts += [*(key.expr for key in table.keys), *table.selector]
        parts += [argument for use in table.actions for argument in use.bound]
        if table.direct_meter is not None and table.direct_meter.target is not None:
            parts.append(table.direct_meter.target)
    return parts


def _nodes(code: ir.Block | ir.Function) -> Iterator[tuple[ir.Node | None, ir.Node]]:
    """All that the code evaluates, with what it is directly part of."""
    for part in _parts(code):
        yield None, part
        for parent in ir.walk(part):
            for child in ir.children(parent):
                yield parent, child
