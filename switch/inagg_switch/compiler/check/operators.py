# SPDX-License-Identifier: Apache-2.0
"""Types and constant values of operators and casts."""

from typing import Any

from inagg_switch.compiler import fold, syntax
from inagg_switch.compiler import types as t
from inagg_switch.compiler.check.context import Checker
from inagg_switch.compiler.check.conversions import convert, describe, is_bits, plain_bits
from inagg_switch.compiler.check.types import type_of
from inagg_switch.compiler.check.values import rvalue
from inagg_switch.errors import CompileError

_ORDER = frozenset(["<", "<=", ">", ">="])


def unary(checker: Checker, e: syntax.Unary) -> syntax.Expression:
    e.operand = rvalue(checker, e.operand)
    if e.operator == "!":
        e.operand = convert(e.operand, t.BOOL, "operand of `!`")
        e.type = t.BOOL
    else:
        e.operand = plain_bits(e.operand)
        type_ = e.operand.type
        if not (is_bits(type_) or (type_ == t.INTEGER and e.operator != "~")):
            raise CompileError(f"`{e.operator}` needs bits, found {describe(e.operand)}", e.at)
        e.type = type_
    if e.operand.value is not None:
        e.value = fold.fold_unary(e.operator, e.operand.value, e.type)
    return e


def binary(checker: Checker, e: syntax.Binary) -> syntax.Expression:
    e.left, e.right = rvalue(checker, e.left), rvalue(checker, e.right)
    return typed_binary(e)


def typed_binary(e: syntax.Binary) -> syntax.Expression:
    """Finds the type and value of an operator whose operands are checked already."""
    if e.operator in ("&&", "||"):
        e.left = convert(e.left, t.BOOL, f"operand of `{e.operator}`")
        e.right = convert(e.right, t.BOOL, f"operand of `{e.operator}`")
        e.type = t.BOOL
    elif e.operator in ("==", "!="):
        _equality(e)
    elif e.operator in ("<<", ">>"):
        _shift(e)
    elif e.operator == "++" and e.left.type == e.right.type == t.STRING:
        e.type = t.STRING
    elif e.operator == "++":
        e.left, e.right = plain_bits(e.left), plain_bits(e.right)
        left, right = e.left.type, e.right.type
        if not (isinstance(left, t.BitType) and isinstance(right, t.BitType)):
            raise CompileError(f"`++` needs bits of known width, found {left} and {right}", e.at)
        e.type = fold.concatenated(left, right)
    else:
        _arithmetic(e)
    _fold(e)
    return e


def _fold(e: syntax.Binary) -> None:
    left, right = e.left.value, e.right.value
    if e.operator in ("&&", "||") and left is not None and right is None:
        # Short circuit: `false && x` is known even if x is not.
        e.value = left if left == (e.operator == "||") else None
        return
    if e.operator in ("/", "%") and right == 0:
        raise CompileError("division by zero", e.at)
    if left is None or right is None:
        return
    try:
        e.value = fold.fold_binary(e.operator, left, right, e.left.type, e.right.type)
    except fold.FoldError as error:
        raise CompileError(str(error), e.at) from None


def _equality(e: syntax.Binary) -> None:
    e.type = t.BOOL
    left, right = e.left, e.right
    if isinstance(right, syntax.ListExpression) and isinstance(left, syntax.ListExpression):
        _equal_lists(left, right)
    elif isinstance(left, syntax.InvalidHeader | syntax.ListExpression | syntax.StructExpression):
        e.left = convert(left, right.type)
    elif left.type == t.INTEGER and right.type != t.INTEGER:
        e.left = convert(left, plain_bits(right).type, "operand of a comparison")
        e.right = plain_bits(right)
    elif right.type != left.type and isinstance(left.type, t.EnumType):
        e.left = plain_bits(left)
        e.right = convert(right, e.left.type, "operand of a comparison")
    else:
        e.right = convert(right, left.type, "operand of a comparison")
    type_ = e.left.type
    uncomparable = t.CallableType | t.ExternType | t.BlockType | t.ApplyResultType | t.ActionListType
    if isinstance(type_, uncomparable) or type_ in (t.STRING, t.VOID):
        raise CompileError(f"values of type {type_} cannot be compared", e.at)


def _equal_lists(left: syntax.ListExpression, right: syntax.ListExpression) -> None:
    """Compares two lists. A number without a width takes the width of its counterpart in the other list."""
    if len(left.items) != len(right.items):
        raise CompileError(
            f"a list of {len(left.items)} values cannot be compared with a list of {len(right.items)}",
            right.at,
        )
    pairs = [
        syntax.Binary(one.at, "==", one, other) for one, other in zip(left.items, right.items, strict=True)
    ]
    for pair in pairs:
        _equality(pair)
    for one, items in ((left, [p.left for p in pairs]), (right, [p.right for p in pairs])):
        one.items, one.type = items, t.TupleType(tuple(p.left.type for p in pairs))
        one.value = tuple(i.value for i in items) if all(i.value is not None for i in items) else None


def _shift(e: syntax.Binary) -> None:
    e.left, e.right = plain_bits(e.left), plain_bits(e.right)
    left, right = e.left.type, e.right.type
    if left == t.INTEGER and right != t.INTEGER and e.right.value is None:
        raise CompileError("a number without a width can only be shifted by a constant", e.at)
    if not (is_bits(left) or left == t.INTEGER):
        raise CompileError(f"`{e.operator}` needs bits, found {describe(e.left)}", e.at)
    if isinstance(right, t.BitType):
        if right.signed and e.right.value is None:
            raise CompileError("the distance of a shift must not be signed", e.right.at)
        if e.right.value is not None and e.right.value < 0:
            raise CompileError("shift by a negative number", e.right.at)
    elif right != t.INTEGER:
        raise CompileError(f"`{e.operator}` needs a number of bits, found {describe(e.right)}", e.right.at)
    elif e.right.value is not None and e.right.value < 0:
        raise CompileError("shift by a negative number", e.right.at)
    e.type = left


def _arithmetic(e: syntax.Binary) -> None:
    e.left, e.right = plain_bits(e.left), plain_bits(e.right)
    if e.left.type == t.INTEGER and is_bits(e.right.type):
        e.left = convert(e.left, e.right.type)
    elif e.right.type == t.INTEGER and is_bits(e.left.type):
        e.right = convert(e.right, e.left.type)
    left, right = e.left.type, e.right.type
    if left != right or not (is_bits(left) or left == t.INTEGER):
        raise CompileError(
            f"`{e.operator}` needs two operands of the same bit type, found {left} and {right}", e.at
        )
    if (
        left == t.INTEGER
        and e.operator in ("|+|", "|-|", "&", "|", "^")
        and e.operator.strip("|") in ("+", "-")
    ):
        raise CompileError(f"`{e.operator}` needs operands with a width", e.at)
    if e.operator in ("/", "%") and isinstance(left, t.BitType) and left.signed:
        raise CompileError(f"`{e.operator}` is not defined for signed numbers", e.at)
    e.type = t.BOOL if e.operator in _ORDER else left


def conditional(checker: Checker, e: syntax.Conditional) -> syntax.Expression:
    e.condition = rvalue(checker, e.condition, t.BOOL, "condition of `?:`")
    e.then, e.otherwise = rvalue(checker, e.then), rvalue(checker, e.otherwise)
    if e.then.type == t.INTEGER or isinstance(e.then, syntax.ListExpression | syntax.StructExpression):
        e.then = convert(e.then, e.otherwise.type)
    e.otherwise = convert(e.otherwise, e.then.type, "second value of `?:`")
    e.type = e.then.type
    if e.condition.value is not None:
        e.value = e.then.value if e.condition.value else e.otherwise.value
    elif e.type == t.INTEGER:
        raise CompileError("the width of one of the values must be known, as in 8w1", e.then.start)
    return e


def cast(checker: Checker, e: syntax.Cast) -> syntax.Expression:
    assert e.ref is not None
    to = type_of(checker, e.ref)
    e.operand = rvalue(checker, e.operand)
    have = e.operand.type
    if isinstance(e.operand, syntax.ListExpression | syntax.StructExpression | syntax.InvalidHeader):
        return convert(e.operand, to)
    if not _castable(have, to, e.operand.value):
        raise CompileError(f"cannot cast {describe(e.operand)} to {to}", e.at)
    e.type = to
    if e.operand.value is not None:
        e.value = fold.cast_value(e.operand.value, to) if have != to else e.operand.value
    return e


def _castable(have: t.Type, to: t.Type, value: Any) -> bool:
    if have == to:
        return True
    if (isinstance(have, t.NewType) and have.base == to) or (
        isinstance(to, t.NewType) and (to.base == have or have == t.INTEGER)
    ):
        return True
    if isinstance(have, t.NewType) and isinstance(to, t.NewType):
        return t.strip(have) == t.strip(to)
    source, target = t.strip(have), t.strip(to)
    if (isinstance(have, t.EnumType) and have.base is None) or (
        isinstance(to, t.EnumType) and to.base is None
    ):
        return False
    if source == t.INTEGER:
        return isinstance(target, t.BitType) or (target == t.BOOL and value in (0, 1))
    if source == t.BOOL:
        return target == t.BitType(1)
    if isinstance(source, t.BitType):
        if target == t.BOOL:
            return source == t.BitType(1)
        if target == t.INTEGER:
            return True
        if isinstance(target, t.BitType):
            return source.signed == target.signed or source.width == target.width
    return False
