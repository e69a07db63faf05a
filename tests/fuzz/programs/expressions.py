# SPDX-License-Identifier: Apache-2.0
"""Expressions of generated programs. Every node prints itself as P4 and evaluates itself in Python, by the
definitions of the P4_16 specification (8.6 to 8.10), with no thought for speed.

Values are Python's: int in the range of the type, bool. The environment maps the text of a scalar (`hdr.h.a`, `v3`) to
its value, and `HEADER.$valid` to a header's validity.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Value = int | bool
Environment = dict[str, Any]


@dataclass(frozen=True)
class Type:
    """bit<width>, int<width>, or bool with width 0; `alias` is the name of a typedef."""

    width: int
    signed: bool = False
    alias: str = field(default="", compare=False)

    @property
    def p4(self) -> str:
        if self.alias:
            return self.alias
        if self.width == 0:
            return "bool"
        return f"{'int' if self.signed else 'bit'}<{self.width}>"

    def wrap(self, value: int) -> int:
        """`value` modulo 2^width, in the type's range."""
        value &= (1 << self.width) - 1
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) else value

    def clamp(self, value: int) -> int:
        low = -(1 << (self.width - 1)) if self.signed else 0
        return max(low, min(value, low + (1 << self.width) - 1))

    def unsigned(self, value: int) -> int:
        """The bits of a value."""
        return int(value) & (1 << max(1, self.width)) - 1

    def load(self, env: Environment, path: str) -> Any:
        """The value of a variable of this type."""
        return env[path]

    def store(self, env: Environment, path: str, value: Any) -> None:
        env[path] = value


BOOL = Type(0)


class Expression:
    """Base of all nodes."""

    type: Type

    def p4(self) -> str:
        raise NotImplementedError

    def value(self, env: Environment) -> Any:
        raise NotImplementedError

    def children(self) -> list["Expression"]:
        return [v for v in vars(self).values() if isinstance(v, Expression)]


@dataclass
class Const(Expression):
    type: Type
    constant: int

    def p4(self) -> str:
        if self.type == BOOL:
            return "true" if self.constant else "false"
        text = f"{self.type.width}w{self.type.unsigned(self.constant):#x}"
        return f"({self.type.p4}) {text}" if self.type.signed else text

    def value(self, env: Environment) -> Any:
        return bool(self.constant) if self.type == BOOL else self.constant


@dataclass
class Ref(Expression):
    """A variable or a field; an l-value."""

    type: Type
    path: str

    def p4(self) -> str:
        return self.path

    def value(self, env: Environment) -> Any:
        return self.type.load(env, self.path)


@dataclass
class Valid(Expression):
    header: str
    type: Type = BOOL

    def p4(self) -> str:
        return f"{self.header}.isValid()"

    def value(self, env: Environment) -> Any:
        return env[f"{self.header}.$valid"]


@dataclass
class Unary(Expression):
    type: Type
    operator: str
    operand: Expression

    def p4(self) -> str:
        return f"{self.operator}({self.operand.p4()})"

    def value(self, env: Environment) -> Any:
        operand = self.operand.value(env)
        if self.operator == "!":
            return not operand
        return self.type.wrap(-operand if self.operator == "-" else ~operand)


class Infix(Expression):
    """An operator between its operands."""

    operator: str
    left: Expression
    right: Expression

    def p4(self) -> str:
        return f"({self.left.p4()} {self.operator} {self.right.p4()})"


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ARITHMETIC = (*_ARITHMETIC, "|+|", "|-|")
COMPARISONS = tuple(_COMPARE)


def arithmetic(type_: Type, operator: str, a: int, b: int) -> int:
    """`a operator b` for operands of one type."""
    if operator in ("|+|", "|-|"):
        return type_.clamp(a + b if operator == "|+|" else a - b)
    return type_.wrap(_ARITHMETIC[operator](a, b))


@dataclass
class Arithmetic(Infix):
    type: Type
    operator: str
    left: Expression
    right: Expression

    def value(self, env: Environment) -> Any:
        left = self.left.value(env)
        return arithmetic(self.type, self.operator, left, self.right.value(env))


@dataclass
class Compare(Infix):
    operator: str
    left: Expression
    right: Expression
    type: Type = BOOL

    def value(self, env: Environment) -> Any:
        left = self.left.value(env)
        return _COMPARE[self.operator](left, self.right.value(env))


@dataclass
class Logic(Infix):
    """&& and ||, which leave out their right operand where the left one decides."""

    operator: str
    left: Expression
    right: Expression
    type: Type = BOOL

    def value(self, env: Environment) -> Any:
        if self.operator == "&&":
            return self.left.value(env) and self.right.value(env)
        return self.left.value(env) or self.right.value(env)


@dataclass
class Shift(Infix):
    """Shifts by a bit<N>: logical, or arithmetic to the right of an int<W>."""

    type: Type
    operator: str
    left: Expression
    right: Expression

    def value(self, env: Environment) -> Any:
        left = self.left.value(env)
        distance = self.right.value(env)
        return self.type.wrap(left << distance if self.operator == "<<" else left >> distance)


@dataclass
class Choice(Expression):
    type: Type
    condition: Expression
    then: Expression
    other: Expression

    def p4(self) -> str:
        return f"({self.condition.p4()} ? {self.then.p4()} : {self.other.p4()})"

    def value(self, env: Environment) -> Any:
        return (self.then if self.condition.value(env) else self.other).value(env)


@dataclass
class Slice(Expression):
    operand: Expression
    high: int
    low: int
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        self.type = Type(self.high - self.low + 1)

    def p4(self) -> str:
        text = self.operand.p4()
        return f"{text if isinstance(self.operand, Ref) else f'({text})'}[{self.high}:{self.low}]"

    def value(self, env: Environment) -> Any:
        return self.type.wrap(self.operand.value(env) >> self.low)


@dataclass
class Concat(Expression):
    left: Expression
    right: Expression
    type: Type = field(init=False)

    def __post_init__(self) -> None:
        self.type = Type(self.left.type.width + self.right.type.width)

    def p4(self) -> str:
        return f"({self.left.p4()} ++ {self.right.p4()})"

    def value(self, env: Environment) -> Any:
        left = self.left.value(env)
        return left << self.right.type.width | self.right.value(env)


@dataclass
class Cast(Expression):
    """Between bit<W> and bit<X>, int<W> and int<X>, bit<W> and int<W>, bool and bit<1>."""

    type: Type
    operand: Expression

    def p4(self) -> str:
        return f"(({self.type.p4}) ({self.operand.p4()}))"

    def value(self, env: Environment) -> Any:
        value = self.operand.value(env)
        if self.type == BOOL:
            return value == 1
        return self.type.wrap(int(value))


def literal(value: int) -> str:
    """A number as keysets and entries have it."""
    return f"{value:#x}"
