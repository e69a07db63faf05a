# SPDX-License-Identifier: Apache-2.0
"""Lowers parser states and value sets."""

from inagg_switch.compiler import ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.types import set_fields
from inagg_switch.compiler.lower.constants import known_number
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.lower.expressions import expression
from inagg_switch.compiler.lower.statements import lower_sequence
from inagg_switch.compiler.names import spell
from inagg_switch.errors import CompileError


def lower_value_set(scope: Scope, local: syntax.ValueSet, full_name: str, member: str) -> ir.ValueSet:
    fields = [
        ir.SetField(name, _match_kind(field), type_, t.bit_width(type_), field.annotations if field else ())
        for name, type_, field in set_fields(local.type)
    ]
    size = known_number(scope, local.size, "the size of a value set")
    if not 0 <= size < 1 << 31:
        raise CompileError(f"size {size} of a value set is too large", local.size.start)
    made = ir.ValueSet(member, full_name, local, fields, size)
    scope.values[id(local)] = made
    return made


def lower_state(scope: Scope, state: syntax.State) -> ir.State:
    body = list(lower_sequence(scope, state.body))
    name = f"state_{spell(state.name)}"
    if state.transition is None:
        return ir.State(name, tuple(body), (), (ir.Case((), "reject"),))
    if isinstance(state.transition, str):
        return ir.State(name, tuple(body), (), (ir.Case((), _label(state.transition)),))
    subjects = tuple(expression(scope, s) for s in state.transition.subjects)
    cases = tuple(
        ir.Case(tuple(_match(scope, k) for k in c.keys), _label(c.state)) for c in state.transition.cases
    )
    body.extend(scope.pending)
    scope.pending = []
    return ir.State(name, tuple(body), subjects, cases)


def _match(scope: Scope, key: syntax.Expression) -> ir.Match | None:
    if isinstance(key, syntax.Anything | syntax.DefaultValue):
        return None
    if isinstance(key, syntax.Name) and isinstance(key.declaration, syntax.ValueSet):
        return ir.Match("set", (), scope.values[id(key.declaration)])
    if isinstance(key, syntax.Mask):
        return ir.Match("mask", (expression(scope, key.left), expression(scope, key.mask)))
    if isinstance(key, syntax.Range):
        return ir.Match("range", (expression(scope, key.low), expression(scope, key.high)))
    return ir.Match("value", (expression(scope, key),))


def _match_kind(field: syntax.Field | None) -> str:
    """The match kind in `@match(...)` of a field; exact without one."""
    annotation = None if field is None else field.annotation("match")
    if annotation is None:
        return "exact"
    kind = str(annotation.arguments[0]) if annotation.arguments else ""
    if kind not in ("exact", "lpm", "ternary", "range", "optional"):
        raise CompileError(f"`{kind}` is not a match kind of a value set", annotation.at)
    return kind


def _label(state: str) -> str:
    return state if state in ("accept", "reject") else f"state_{spell(state)}"
