# SPDX-License-Identifier: Apache-2.0
"""Headers of generated programs, also in unions and stacks and with a varbit field, and the statements that change them
as a whole. In the environment a header is its fields (`hdr.a.f0`) and `hdr.a.$valid`; the value of a varbit field is a
text of its bits."""

from dataclasses import dataclass
from typing import Any

from tests.fuzz.programs.expressions import BOOL, Environment, Expression, Ref, Type
from tests.fuzz.programs.statements import Statement

UNIONS = "$unions"  # in the environment: for each member of a union, the other members


@dataclass(frozen=True)
class Varbit(Type):
    """varbit<width>"""

    @property
    def p4(self) -> str:
        return f"varbit<{self.width}>"


def zero(type_: Type) -> Any:
    return "" if isinstance(type_, Varbit) else False if type_ == BOOL else 0


def bits_of(type_: Type, value: Any) -> str:
    """As they lie in a packet."""
    return value if isinstance(type_, Varbit) else f"{type_.unsigned(value):0{max(1, type_.width)}b}"


@dataclass
class Header:
    """A header type. A varbit field counts nothing in `width`."""

    name: str
    fields: list[tuple[str, Type]]

    @property
    def width(self) -> int:
        return sum(max(1, t.width) for _, t in self.fields if not isinstance(t, Varbit))

    def p4(self) -> str:
        return f"header {self.name} {{ {' '.join(f'{t.p4} {n};' for n, t in self.fields)} }}"

    def names(self) -> list[str]:
        return [name for name, _ in self.fields]

    def refs(self, path: str) -> list[Ref]:
        """The fields that are numbers or bool."""
        return [Ref(t, f"{path}.{n}") for n, t in self.fields if not isinstance(t, Varbit)]

    def bits(self, env: Environment, path: str) -> str:
        """What the deparser emits."""
        if not env[f"{path}.$valid"]:
            return ""
        return "".join(bits_of(t, env[f"{path}.{n}"]) for n, t in self.fields)


def set_validity(env: Environment, header: str, valid: bool) -> None:
    """A member of a union that becomes valid ends the others."""
    if valid:
        for other in env[UNIONS].get(header, ()):
            env[f"{other}.$valid"] = False
    env[f"{header}.$valid"] = valid


@dataclass
class SetValid(Statement):
    """setValid makes the fields of an invalid header zero, as BMv2 does; setInvalid leaves them."""

    header: str
    valid: bool
    fields: list[str]

    def p4(self) -> list[str]:
        return [f"{self.header}.{'setValid' if self.valid else 'setInvalid'}();"]

    def run(self, env: Environment) -> None:
        if self.valid and not env[f"{self.header}.$valid"]:
            for name in self.fields:
                env[f"{self.header}.{name}"] = 0
        set_validity(env, self.header, self.valid)


@dataclass
class CopyHeader(Statement):
    """An assignment of headers of one type. An invalid one makes the target invalid and leaves its fields."""

    target: str
    source: str
    fields: list[str]

    def p4(self) -> list[str]:
        return [f"{self.target} = {self.source};"]

    def run(self, env: Environment) -> None:
        valid = env[f"{self.source}.$valid"]
        set_validity(env, self.target, valid)
        if valid:
            for name in self.fields:
                env[f"{self.target}.{name}"] = env[f"{self.source}.{name}"]


@dataclass
class CopyUnion(Statement):
    """An assignment of unions of one type."""

    target: str
    source: str
    members: dict[str, Header]

    def p4(self) -> list[str]:
        return [f"{self.target} = {self.source};"]

    def run(self, env: Environment) -> None:
        for member, header in self.members.items():
            env[f"{self.target}.{member}.$valid"] = env[f"{self.source}.{member}.$valid"]
            if env[f"{self.source}.{member}.$valid"]:
                for name in header.names():
                    env[f"{self.target}.{member}.{name}"] = env[f"{self.source}.{member}.{name}"]


@dataclass
class CopyVarbit(Statement):
    """An assignment of a varbit field."""

    target: str
    source: str

    def p4(self) -> list[str]:
        return [f"{self.target} = {self.source};"]

    def run(self, env: Environment) -> None:
        env[self.target] = env[self.source]


@dataclass
class Move(Statement):
    """push_front or pop_front of a stack, also by more than its size; what comes in is invalid."""

    stack: str
    size: int
    how: str
    count: int
    fields: list[str]

    def p4(self) -> list[str]:
        return [f"{self.stack}.{self.how}({self.count});"]

    def run(self, env: Environment) -> None:
        names = ["$valid", *self.fields]
        before = [[env[f"{self.stack}[{n}].{name}"] for name in names] for n in range(self.size)]
        for n in range(self.size):
            source = n - self.count if self.how == "push_front" else n + self.count
            values = before[source] if 0 <= source < self.size else [False] + [0] * len(self.fields)
            for name, value in zip(names, values, strict=True):
                env[f"{self.stack}[{n}].{name}"] = value


@dataclass
class MoveUnions(Statement):
    """The same of a stack of unions: in BMv2 they change places, and none becomes invalid."""

    stack: str
    size: int
    how: str
    count: int
    members: dict[str, Header]

    def p4(self) -> list[str]:
        return [f"{self.stack}.{self.how}({self.count});"]

    def run(self, env: Environment) -> None:
        parts = [f"{m}.{name}" for m, h in self.members.items() for name in ("$valid", *h.names())]
        low = range(max(0, self.size - self.count))
        for n in reversed(low) if self.how == "push_front" else low:
            for part in parts:
                one, other = f"{self.stack}[{n}].{part}", f"{self.stack}[{n + self.count}].{part}"
                env[one], env[other] = env[other], env[one]


@dataclass
class UnionValid(Expression):
    """isValid() of a union: true if any member is valid."""

    union: str
    members: list[str]
    type: Type = BOOL

    def p4(self) -> str:
        return f"{self.union}.isValid()"

    def value(self, env: Environment) -> Any:
        return any(env[f"{self.union}.{member}.$valid"] for member in self.members)


@dataclass
class SameHeader(Expression):
    """`==` or `!=` of headers of one type. They are equal if both are invalid, or both valid with the same fields. A
    varbit field is compared as a number, as in BMv2."""

    left: str
    right: str
    operator: str
    fields: list[str]
    type: Type = BOOL

    def p4(self) -> str:
        return f"({self.left} {self.operator} {self.right})"

    def value(self, env: Environment) -> Any:
        return self._same(env) == (self.operator == "==")

    def _same(self, env: Environment) -> bool:
        valid = [env[f"{header}.$valid"] for header in (self.left, self.right)]
        if not all(valid):
            return not any(valid)
        return all(
            _number(env[f"{self.left}.{name}"]) == _number(env[f"{self.right}.{name}"])
            for name in self.fields
        )


def _number(value: Any) -> Any:
    return int(value or "0", 2) if isinstance(value, str) else value


@dataclass
class Element(Expression):
    """A field of the element of a stack at a computed index."""

    type: Type
    stack: str
    index: Expression
    name: str

    def p4(self) -> str:
        return f"{self.stack}[{self.index.p4()}].{self.name}"

    def value(self, env: Environment) -> Any:
        return env[f"{self.stack}[{self.index.value(env)}].{self.name}"]


@dataclass
class AssignElement(Statement):
    target: Element
    expression: Expression

    def p4(self) -> list[str]:
        return [f"{self.target.p4()} = {self.expression.p4()};"]

    def run(self, env: Environment) -> None:
        place = self.target.index.value(env)
        env[f"{self.target.stack}[{place}].{self.target.name}"] = self.expression.value(env)
