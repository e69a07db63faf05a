# SPDX-License-Identifier: Apache-2.0
"""Decides how a call passes its arguments: by value, by reference or through a copy."""

from collections.abc import Iterable

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.lower.expressions import expression


def pass_arguments(
    scope: Scope,
    parameters: list[syntax.Parameter],
    bound: dict[str, syntax.Expression | None],
    private: bool,
    in_block: bool = False,
) -> tuple[ir.CallArgument, ...]:
    """Passes the arguments by copy-in and copy-out, or by reference where the result is the same.

    `private`: the callee sees only its parameters. Otherwise references are allowed only to the caller's own
    variables, because the callee may see other variables under another name.

    `in_block`: the callee is a parser or control. p4c inlines blocks, and only arguments that overlap get temporaries.
    Other callees get new headers from p4c: the callee does not see the fields of an invalid header, and fields that
    it writes in an invalid header are lost.
    """
    lowered = [
        (p, None if bound.get(p.name) is None else expression(scope, bound[p.name]))  # type: ignore[arg-type]
        for p in parameters
    ]
    result: list[ir.CallArgument] = []
    for parameter, expr in lowered:
        direction = parameter.direction or "in"
        # If an inout overlaps an argument that is only read, the latter is copied and the inout stays a
        # reference. An out cannot stay: it is cleared before the others are read.
        others = [
            e
            for p, e in lowered
            if p is not parameter
            and e is not None
            and (direction != "inout" or p.direction in ("out", "inout") or ir.impure(e))
        ]
        mode = _mode(scope, parameter, expr, others, private, in_block)
        result.append(ir.CallArgument(mode, direction, parameter.type, expr))
    return tuple(result)


def _mode(
    scope: Scope,
    parameter: syntax.Parameter,
    expr: ir.Expr | None,
    others: list[ir.Expr],
    private: bool,
    in_block: bool,
) -> str:
    """The mode of ir.CallArgument for an argument that must not overlap `others` to be a reference."""
    only_read = parameter.direction in ("", "in")
    compound = isinstance(parameter.type, t.StructType | t.StackType | t.TupleType | t.ExternType)
    if only_read and not compound:
        return "value"
    if isinstance(parameter.type, t.ExternType):
        return "reference"
    gets_new_header = not in_block and t.has_header(t.strip(parameter.type))
    if expr is not None and not gets_new_header and _can_refer(scope, expr, others, private):
        return "reference"
    if only_read:
        return "value"
    return "temporary" if in_block and expr is not None and _overlaps(expr, others) else "copy"


def _can_refer(scope: Scope, e: ir.Expr, others: list[ir.Expr], private: bool) -> bool:
    path = path_of(e)
    if path is None:
        return False
    if not private and path[0] not in scope.locals:
        return False
    return not _overlaps(e, others)


def path_of(e: ir.Node) -> tuple[str, ...] | None:
    """The variable and fields of an l-value that can be passed by reference; None for others."""
    if isinstance(e, ir.Var):
        return (e.name,)
    if isinstance(e, ir.Field):
        base = path_of(e.base)
        # A write to a member of a header union changes its siblings.
        return None if base is None or t.is_union(e.base.type) else (*base, e.name)
    if isinstance(e, ir.Part):
        base = path_of(e.base)
        return None if base is None else (*base, str(e.index))
    return None


def paths_in(e: ir.Node) -> list[tuple[str, ...]]:
    """The path of every variable that an expression reads."""
    own = path_of(e)
    return [own] if own is not None else [path for part in ir.children(e) for path in paths_in(part)]


def _overlaps(e: ir.Expr, others: Iterable[ir.Expr]) -> bool:
    return any(_overlap(path, other) for path in paths_in(e) for e2 in others for other in paths_in(e2))


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
