# SPDX-License-Identifier: Apache-2.0
"""Values known at compile time: constants, constructor parameters, and expressions of them."""

from typing import Any

from inagg_switch.compiler import fold, ir, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.lower.context import Scope
from inagg_switch.errors import CompileError


def known_value(scope: Scope, e: syntax.Expression, what: str) -> Any:
    """The value of an expression of constants and constructor parameters."""
    value = evaluate(scope, e)
    if value is None:
        raise CompileError(f"{what} must be known at compile time", e.start)
    return value


def known_number(scope: Scope, e: syntax.Expression, what: str) -> int:
    """The value of an expression of constants and constructor parameters."""
    value = evaluate(scope, e)
    if isinstance(value, bool) or not isinstance(value, int):
        raise CompileError(f"{what} must be a number known at compile time", e.at)
    return value


def member_name(scope: Scope, e: syntax.Expression, what: str) -> str:
    """The name of the enum member that the expression stands for. Raises CompileError if it is not a known member."""
    if not isinstance(e.type, t.EnumType):
        raise CompileError(f"{what} must be a member of an enum", e.start)
    name: str = list(e.type.members)[known_value(scope, e, what)]
    return name


def evaluate(scope: Scope, e: syntax.Expression) -> Any:
    """The value of an expression of constants and constructor parameters; None if it is not known at compile time."""
    if e.value is not None:
        return e.value
    if isinstance(e, syntax.Name):
        known = scope.values.get(id(e.declaration))
        return known.value if isinstance(known, ir.Const) else None
    if isinstance(e, syntax.Cast):
        inner = evaluate(scope, e.operand)
        return None if inner is None else fold.cast_value(inner, e.type)
    if isinstance(e, syntax.Slice):
        inner = evaluate(scope, e.base)
        high, low = known_number(scope, e.high, "the bounds"), known_number(scope, e.low, "the bounds")
        return None if inner is None else fold.slice_value(inner, high, low)
    if isinstance(e, syntax.Unary):
        inner = evaluate(scope, e.operand)
        return None if inner is None else fold.fold_unary(e.operator, inner, e.type)
    if isinstance(e, syntax.Conditional):
        condition = evaluate(scope, e.condition)
        return None if condition is None else evaluate(scope, e.then if condition else e.otherwise)
    if isinstance(e, syntax.Binary):
        left, right = evaluate(scope, e.left), evaluate(scope, e.right)
        if left is None or right is None:
            return None
        try:
            return fold.fold_binary(e.operator, left, right, e.left.type, e.right.type)
        except fold.FoldError as error:
            raise CompileError(str(error), e.at) from None
    return None


def constant(value: Any, type_: t.Type) -> ir.Expr:
    """A value known at compile time, as IR."""
    if isinstance(type_, t.StructType) and isinstance(value, tuple):
        return ir.Construct(
            type_, tuple(constant(v, f) for v, f in zip(value, type_.fields.values(), strict=True))
        )
    if isinstance(type_, t.StackType) and isinstance(value, tuple):
        return ir.Construct(type_, tuple(constant(v, type_.element) for v in value))
    if isinstance(type_, t.TupleType) and isinstance(value, tuple):
        return ir.Construct(type_, tuple(constant(v, f) for v, f in zip(value, type_.elements, strict=True)))
    return ir.Const(type_, value)


def zero(type_: t.Type) -> ir.Expr:
    """The default value of a type: zero, false, the first member, an invalid header."""
    return ir.Const(type_, None)
