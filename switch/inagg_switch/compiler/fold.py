# SPDX-License-Identifier: Apache-2.0
"""Computes operators on constants (P4-16 specification, section 8).

Values are Python's: int for bit<W> (0 <= v < 2^W), int<W> (-2^(W-1) <= v < 2^(W-1)), int, enums and errors; bool; str;
and a tuple of these for lists, tuples, structs and headers.
"""

import operator as op
from collections.abc import Callable
from typing import Any

from inagg_switch.compiler.types import BOOL, BitType, Type, strip

MAX_SHIFT = 1 << 16
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": op.eq,
    "!=": op.ne,
    "<": op.lt,
    "<=": op.le,
    ">": op.gt,
    ">=": op.ge,
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
}
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": op.add,
    "-": op.sub,
    "*": op.mul,
    "/": op.floordiv,
    "%": op.mod,
    "&": op.and_,
    "|": op.or_,
    "^": op.xor,
}


class FoldError(ValueError):
    """The operation has no value, e.g. a division by zero."""


def wrap(number: int, type_: Type) -> int:
    """The number modulo 2^W as a value of bit<W> or int<W>; unchanged for any other type."""
    type_ = strip(type_)
    if not isinstance(type_, BitType):
        return number
    number &= (1 << type_.width) - 1
    if type_.signed and number >> (type_.width - 1):
        number -= 1 << type_.width
    return number


def limits(type_: BitType) -> tuple[int, int]:
    """The smallest and the largest value of the type."""
    if type_.signed:
        return -(1 << (type_.width - 1)), (1 << (type_.width - 1)) - 1
    return 0, (1 << type_.width) - 1


def fold_unary(operator: str, value: Any, type_: Type) -> Any:
    if operator == "!":
        return not value
    if operator == "~":
        return wrap(~value, type_)
    return wrap(-value if operator == "-" else value, type_)


def fold_binary(operator: str, left: Any, right: Any, type_: Type, right_type: Type) -> Any:
    """`type_` is the left operand's type; the right operand has the same, except for shifts and ++. Raises
    FoldError."""
    if operator in _COMPARISONS:
        return bool(_COMPARISONS[operator](left, right))
    if operator in ("/", "%"):
        if right == 0:
            raise FoldError("division by zero")
        if left < 0 or right < 0:
            raise FoldError(f"`{operator}` of a negative number")
    if operator in ("<<", ">>"):
        return _shift(operator, left, right, type_)
    if operator == "++" and isinstance(left, str):
        return left + right
    if operator == "++":
        right_bits = strip(right_type)
        assert isinstance(right_bits, BitType)
        return wrap(
            (left << right_bits.width) | (right & ((1 << right_bits.width) - 1)),
            concatenated(strip(type_), right_bits),
        )
    if operator in ("|+|", "|-|"):
        bits = strip(type_)
        assert isinstance(bits, BitType)
        low, high = limits(bits)
        return max(low, min(high, left + right if operator == "|+|" else left - right))
    return wrap(_ARITHMETIC[operator](left, right), type_)


def concatenated(left: Type, right: Type) -> BitType:
    """The type of left ++ right: signed if the left operand is."""
    assert isinstance(left, BitType)
    assert isinstance(right, BitType)
    return BitType(left.width + right.width, left.signed)


def _shift(operator: str, left: int, right: int, type_: Type) -> int:
    if right < 0:
        raise FoldError("shift by a negative number")
    if right > MAX_SHIFT:
        if isinstance(strip(type_), BitType):
            return -1 if operator == ">>" and left < 0 else 0
        raise FoldError(f"shift by more than {MAX_SHIFT}")
    return wrap(left << right if operator == "<<" else left >> right, type_)


def cast_value(value: Any, to: Type) -> Any:
    """A constant's value after a cast between scalar types."""
    target = strip(to)
    if target == BOOL:
        return bool(value)
    return wrap(int(value), target)


def slice_value(value: int, high: int, low: int) -> int:
    return (value >> low) & ((1 << (high - low + 1)) - 1)
