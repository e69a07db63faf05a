# SPDX-License-Identifier: Apache-2.0
"""Lowers numbers without a width that are not known at compile time, such as `(int) x + 1`.

They are computed in as many bits as they can need, so no bit is lost before they are cast to a width or compared.
"""

from dataclasses import dataclass

from inagg_switch.compiler import fold, ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.constants import evaluate
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.compiler.parse.lexer import MAX_WIDTH
from inagg_switch.errors import CompileError

_BITWISE = ("&", "|", "^")


@dataclass(frozen=True)
class _Number:
    """An expression of type int<W>, and the smallest and largest value it can have."""

    expr: ir.Expr
    low: int
    high: int


def cast_number(scope: Scope, e: syntax.Expression, to: t.Type) -> ir.Expr:
    """The number cast to bit<W> or int<W>: modulo 2^W."""
    return _resized(_number(scope, e).expr, to)


def compare_numbers(scope: Scope, e: syntax.Binary) -> ir.Expr:
    left, right = _number(scope, e.left), _number(scope, e.right)
    type_ = _type(e, left, right)
    return ir.Operation(t.BOOL, e.operator, (_resized(left.expr, type_), _resized(right.expr, type_)))


def _number(scope: Scope, e: syntax.Expression) -> _Number:
    known = evaluate(scope, e)
    if known is not None:
        value = int(known)
        found = _Number(ir.Const(t.ERROR, None), value, value)
        return _Number(ir.Const(_type(e, found), value), value, value)
    if isinstance(e, syntax.Cast):
        operand = scope.stage.lowerers.expression(scope, e.operand)
        bits = t.strip(operand.type)
        assert isinstance(bits, t.BitType)
        found = _Number(operand, *fold.limits(bits))
        return _Number(_resized(operand, _type(e, found)), found.low, found.high)
    if isinstance(e, syntax.Unary):
        operand_ = _number(scope, e.operand)
        return operand_ if e.operator == "+" else _negative(e, operand_)
    if isinstance(e, syntax.Binary) and e.operator in ("<<", ">>"):
        return _shifted(scope, e)
    if isinstance(e, syntax.Binary) and e.operator in ("+", "-", "*", *_BITWISE):
        return _combined(scope, e)
    raise CompileError("this number must be known at compile time, or have a width", e.start)


def _negative(e: syntax.Unary, of: _Number) -> _Number:
    made = _Number(of.expr, -of.high, -of.low)
    type_ = _type(e, of, made)
    return _Number(ir.Operation(type_, "neg", (_resized(of.expr, type_),)), made.low, made.high)


def _combined(scope: Scope, e: syntax.Binary) -> _Number:
    left, right = _number(scope, e.left), _number(scope, e.right)
    made = _Number(left.expr, *_bounds(e.operator, left, right))
    type_ = _type(e, left, right, made)
    operands = (_resized(left.expr, type_), _resized(right.expr, type_))
    return _Number(ir.Operation(type_, e.operator, operands), made.low, made.high)


def _shifted(scope: Scope, e: syntax.Binary) -> _Number:
    distance = evaluate(scope, e.right)
    if distance is None or not 0 <= distance <= MAX_WIDTH:
        raise CompileError("the distance of this shift must be known at compile time", e.right.start)
    value = _number(scope, e.left)
    low, high = (v << distance if e.operator == "<<" else v >> distance for v in (value.low, value.high))
    made = _Number(value.expr, low, high)
    type_ = _type(e, value, made)
    operands = (_resized(value.expr, type_), ir.Const(t.BitType(32), distance))
    return _Number(ir.Operation(type_, e.operator, operands), low, high)


def _bounds(operator: str, left: _Number, right: _Number) -> tuple[int, int]:
    if operator == "+":
        return left.low + right.low, left.high + right.high
    if operator == "-":
        return left.low - right.high, left.high - right.low
    if operator == "*":
        corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
        return min(corners), max(corners)
    bits = max(v.bit_length() for v in (left.low, left.high, right.low, right.high))
    return (0 if left.low >= 0 and right.low >= 0 else -(1 << bits)), (1 << bits) - 1


def _type(e: syntax.Expression, *numbers: _Number) -> t.BitType:
    """The narrowest int<W> that holds all the numbers."""
    width = max(2, *(1 + max(_bits(n.low), _bits(n.high)) for n in numbers))
    if width > MAX_WIDTH:
        raise CompileError(f"this number may need more than {MAX_WIDTH} bits", e.start)
    return t.BitType(width, True)


def _bits(value: int) -> int:
    """The bits of a number in two's complement, without the sign."""
    return (~value if value < 0 else value).bit_length()


def _resized(e: ir.Expr, to: t.Type) -> ir.Expr:
    return e if t.strip(e.type) == t.strip(to) else ir.Operation(to, "cast", (e,))
