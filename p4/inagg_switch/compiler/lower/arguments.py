# SPDX-License-Identifier: Apache-2.0
"""How a call passes its arguments: by value, by reference or through a copy."""

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
    """Copy-in and copy-out, or references where nobody can tell the difference.

    `private`: the callee sees nothing of this block but its parameters. Otherwise only the caller's own
    variables may be referred to, because the callee might see the rest under another name.

    `in_block`: the callee is a parser or control. To others p4c gives new headers: of one that is invalid the
    callee sees no fields, and what is written to one while it is invalid does not come back. Blocks are
    inlined: only arguments that overlap get temporaries.
    """
    lowered = [
        (p, None if bound.get(p.name) is None else expression(scope, bound[p.name]))  # type: ignore[arg-type]
        for p in parameters
    ]
    result: list[ir.CallArgument] = []
    for parameter, expr in lowered:
        how = "value"
        direction = parameter.direction or "in"
        whole = isinstance(parameter.type, t.StructType | t.StackType | t.TupleType | t.ExternType)
        if direction != "in" or whole:
            # What is only read is copied, if it overlaps: an inout stays where it is. An out cannot, as it is
            # cleared before the others are read.
            others = [
                e
                for p, e in lowered
                if p is not parameter
                and e is not None
                and (direction != "inout" or p.direction in ("out", "inout") or ir.impure(e))
            ]
            anew = not in_block and t.has_header(t.strip(parameter.type))
            alone = expr is not None and not anew and _can_refer(scope, expr, others, private)
            how = "reference" if alone or isinstance(parameter.type, t.ExternType) else "copy"
            if how == "copy" and in_block and expr is not None and _overlaps(expr, others):
                how = "temporary"
        if how in ("copy", "temporary") and direction == "in":
            how = "value"
        result.append(ir.CallArgument(how, direction, parameter.type, expr))
    return tuple(result)


def _can_refer(scope: Scope, e: ir.Expr, others: list[ir.Expr], private: bool) -> bool:
    path = path_of(e)
    if path is None:
        return False
    if not private and path[0] not in scope.locals:
        return False
    return not _overlaps(e, others)


def path_of(e: ir.Node) -> tuple[str, ...] | None:
    """Variable and fields of an l-value that a reference can stand for."""
    if isinstance(e, ir.Var):
        return (e.name,)
    if isinstance(e, ir.Field):
        base = path_of(e.base)
        # A member of a header union is not independent of its siblings.
        return None if base is None or t.is_union(e.base.type) else (*base, e.name)
    if isinstance(e, ir.Part):
        base = path_of(e.base)
        return None if base is None else (*base, str(e.index))
    return None


def paths_in(e: ir.Node) -> list[tuple[str, ...]]:
    """Every variable that an expression looks at."""
    own = path_of(e)
    return [own] if own is not None else [path for part in ir.children(e) for path in paths_in(part)]


def _overlaps(e: ir.Expr, others: Iterable[ir.Expr]) -> bool:
    return any(_overlap(path, other) for path in paths_in(e) for e2 in others for other in paths_in(e2))


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
