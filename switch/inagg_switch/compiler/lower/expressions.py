# SPDX-License-Identifier: Apache-2.0
"""Lowers expressions."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from inagg_switch.compiler import fold, ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.constants import constant, evaluate, known_number, zero
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.lower.integers import cast_number, compare_numbers
from inagg_switch.errors import CompileError, Position


def expression(scope: Scope, e: syntax.Expression) -> ir.Expr:
    if id(e) in scope.known:
        return scope.known[id(e)]
    if e.value is not None and not isinstance(e, syntax.Call):
        return constant(e.value, e.type)
    if isinstance(e, syntax.Call) and e.value is not None and e.type == t.INTEGER:
        return constant(e.value, e.type)
    if _has_int_operand(e):
        return _int_operation(scope, e)
    return _LOWERERS[type(e)](scope, e)


def _int_operation(scope: Scope, e: syntax.Expression) -> ir.Expr:
    known = evaluate(scope, e)
    if known is not None:
        return constant(known, e.type)
    if isinstance(e, syntax.Cast):
        return cast_number(scope, e.operand, e.type)
    if isinstance(e, syntax.Binary) and e.type == t.BOOL:
        return compare_numbers(scope, e)
    raise CompileError("this number must be known at compile time, or have a width", e.start)


def _name(scope: Scope, e: syntax.Name) -> ir.Expr:
    value = scope.values.get(id(e.declaration))
    if not isinstance(value, ir.Expr):
        raise CompileError(f"`{e.name}` cannot be used as a value here", e.at)
    return value


def _member(scope: Scope, e: syntax.Member) -> ir.Expr:
    base = e.base.type
    if isinstance(base, t.ApplyResultType):
        apply = expression(scope, e.base)
        assert isinstance(apply, ir.TableApply)
        if e.name == "action_run":
            return ir.Operation(t.BitType(32), "action_run", (apply,))
        return ir.TableHit(t.BOOL, apply, e.name == "miss")
    lowered = expression(scope, e.base)
    if isinstance(base, t.StackType):
        if e.name == "next":
            return ir.StackNext(e.type, lowered)
        if e.name == "last":
            return ir.StackLast(e.type, lowered)
        return ir.Operation(e.type, "last_index", (lowered,))
    return ir.Field(e.type, lowered, e.name)


def _index(scope: Scope, e: syntax.Index) -> ir.Expr:
    base = expression(scope, e.base)
    if isinstance(e.base.type, t.TupleType):
        return ir.Part(e.type, base, e.index.value)
    if e.index.type == t.INTEGER and evaluate(scope, e.index) is None:
        return ir.Element(e.type, base, cast_number(scope, e.index, t.BitType(64, True)))
    if e.index.type == t.INTEGER:
        place = known_number(scope, e.index, "the index")
        assert isinstance(e.base.type, t.StackType)
        if not 0 <= place < e.base.type.size:
            raise CompileError(f"index {place} is outside {e.base.type}", e.index.at)
        return ir.Element(e.type, base, ir.Const(t.BitType(32), place))
    return ir.Element(e.type, base, expression(scope, e.index))


def _slice(scope: Scope, e: syntax.Slice) -> ir.Expr:
    return ir.Slice(e.type, expression(scope, e.base), e.high.value, e.low.value)


def _unary(scope: Scope, e: syntax.Unary) -> ir.Expr:
    operand = expression(scope, e.operand)
    if e.operator == "+":
        return operand
    return ir.Operation(e.type, "neg" if e.operator == "-" else e.operator, (operand,))


def _binary(scope: Scope, e: syntax.Binary) -> ir.Expr:
    if e.operator in ("/", "%"):
        return _division(scope, e)
    return ir.Operation(e.type, e.operator, (expression(scope, e.left), _shift_distance(scope, e)))


def _division(scope: Scope, e: syntax.Binary) -> ir.Expr:
    """Lowers `/` and `%`. BMv2 has no division: p4c accepts only constants and division by a power of two."""
    known = evaluate(scope, e)
    if known is not None:
        return constant(known, e.type)
    if evaluate(scope, e.left) == 0:
        # Calls in the divisor still run.
        return ir.Operation(e.type, "&", (ir.Const(e.type, 0), expression(scope, e.right)))
    divisor = evaluate(scope, e.right)
    if not isinstance(divisor, int) or divisor <= 0 or divisor & (divisor - 1):
        raise CompileError(
            f"`{e.operator}` needs values known at compile time, or a power of two on its right", e.at
        )
    left = expression(scope, e.left)
    if e.operator == "%":
        return ir.Operation(e.type, "&", (left, ir.Const(e.type, divisor - 1)))
    return ir.Operation(e.type, ">>", (left, ir.Const(t.BitType(32), divisor.bit_length() - 1)))


def _shift_distance(scope: Scope, e: syntax.Binary) -> ir.Expr:
    if e.operator in ("<<", ">>") and e.right.type == t.INTEGER:
        distance = known_number(scope, e.right, "the distance of a shift")
        if distance < 0:
            raise CompileError("shift by a negative number", e.right.at)
        return ir.Const(t.BitType(32), min(distance, fold.MAX_SHIFT))
    return expression(scope, e.right)


def _conditional(scope: Scope, e: syntax.Conditional) -> ir.Expr:
    if e.condition.value is not None:
        return expression(scope, e.then if e.condition.value else e.otherwise)
    return ir.Operation(
        e.type, "conditional", tuple(expression(scope, x) for x in (e.condition, e.then, e.otherwise))
    )


def _cast(scope: Scope, e: syntax.Cast) -> ir.Expr:
    operand = expression(scope, e.operand)
    if t.strip(e.type) == t.strip(e.operand.type):
        return operand
    return ir.Operation(e.type, "cast", (operand,))


def _list(scope: Scope, e: syntax.ListExpression) -> ir.Expr:
    if isinstance(e.type, t.StructType | t.StackType):
        scope.stage.use_type(e.type, e.at)
    else:
        _check_widths(e.items)
    return ir.Construct(e.type, tuple(expression(scope, i) for i in e.items))


def _check_widths(items: Iterable[syntax.Expression]) -> None:
    for item in items:
        if item.type == t.INTEGER:
            raise CompileError("the width of this number is not known; write it as in 8w1", item.start)


def _record(scope: Scope, e: syntax.StructExpression) -> ir.Expr:
    if isinstance(e.type, t.RecordType):
        _check_widths((v for _, v in e.fields))
        return ir.Construct(
            t.TupleType(tuple(f for _, f in e.type.fields)),
            tuple(expression(scope, v) for _, v in e.fields),
        )
    scope.stage.use_type(e.type, e.at)
    return ir.Construct(e.type, tuple(expression(scope, v) for _, v in e.fields))


def stable(scope: Scope, target: ir.Expr, at: Position) -> ir.Expr:
    """The l-value, its indices computed beforehand if that has side effects."""
    if isinstance(target, ir.Field | ir.Slice | ir.Part):
        return replace(target, base=stable(scope, target.base, at))
    if isinstance(target, ir.Element):
        base, index = stable(scope, target.base, at), target.index
        if ir.impure(index):
            scope.pending.append(ir.Declare(scope.temporary(index.type, at, "index"), index.type, index))
            index = ir.Var(index.type, scope.pending[-1].name)  # type: ignore[attr-defined]
        return ir.Element(target.type, base, index)
    return target


def _has_int_operand(e: syntax.Expression) -> bool:
    """True if the operands are numbers without a width."""
    operand = e.left if isinstance(e, syntax.Binary) else getattr(e, "operand", None)
    return operand is not None and operand.type == t.INTEGER


_LOWERERS: dict[type[syntax.Expression], Callable[[Scope, Any], ir.Expr]] = {
    syntax.Name: _name,
    syntax.Member: _member,
    syntax.Index: _index,
    syntax.Slice: _slice,
    syntax.Unary: _unary,
    syntax.Binary: _binary,
    syntax.Conditional: _conditional,
    syntax.Cast: _cast,
    syntax.Call: lambda scope, e: scope.stage.lowerers.call(scope, e),
    syntax.ListExpression: _list,
    syntax.StructExpression: _record,
    syntax.DefaultValue: lambda scope, e: zero(e.type),
    syntax.InvalidHeader: lambda scope, e: zero(e.type),
}
