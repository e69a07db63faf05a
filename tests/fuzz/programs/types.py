# SPDX-License-Identifier: Apache-2.0
"""Types that generated programs declare: `type`, enums, structs and tuples, and the expressions on them. A struct's
value is a tuple of the values of its scalars. In the environment each scalar has its own name (`meta.p0.q.f1`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz.programs.expressions import Cast, Environment, Expression, Ref, Type


@dataclass(frozen=True)
class Named(Type):
    """A `type`; with `members` (their values), an enum, which is serialisable if it has a width."""

    name: str = ""
    members: tuple[int, ...] = ()

    @property
    def p4(self) -> str:
        return self.name

    @property
    def numeric(self) -> bool:
        """Whether the type can be cast to and from a number."""
        return self.width > 0

    def declaration(self) -> str:
        below = Type(self.width, self.signed).p4
        if not self.members:
            return f"type {below} {self.name};"
        names = ", ".join(f"m{n} = {v:#x}" if self.numeric else f"m{n}" for n, v in enumerate(self.members))
        return f"enum {f'{below} ' if self.numeric else ''}{self.name} {{ {names} }}"


@dataclass
class NamedConst(Expression):
    type: Named
    constant: int

    def p4(self) -> str:
        if self.constant in self.type.members:
            return f"{self.type.name}.m{self.type.members.index(self.constant)}"
        return Cast(self.type, _Number(Type(self.type.width), self.constant)).p4()

    def value(self, env: Environment) -> Any:
        return self.constant


@dataclass
class _Number(Expression):
    type: Type
    number: int

    def p4(self) -> str:
        return f"{self.type.width}w{self.number:#x}"


@dataclass(frozen=True)
class Struct(Type):
    """`fields` may be structs."""

    name: str = ""
    fields: tuple[tuple[str, Type], ...] = ()

    @property
    def p4(self) -> str:
        return self.name

    def declaration(self) -> str:
        return f"struct {self.name} {{ {' '.join(f'{t.p4} {n};' for n, t in self.fields)} }}"

    def leaves(self, path: str) -> Iterator[Ref]:
        """The scalars of the struct, in order."""
        for name, type_ in self.fields:
            inner = f"{path}.{name}"
            yield from type_.leaves(inner) if isinstance(type_, Struct) else (Ref(type_, inner),)

    def load(self, env: Environment, path: str) -> Any:
        return tuple(leaf.value(env) for leaf in self.leaves(path))

    def store(self, env: Environment, path: str, value: Any) -> None:
        for leaf, one in zip(self.leaves(path), value, strict=True):
            env[leaf.path] = one


@dataclass
class StructList(Expression):
    """A struct expression, with a value for each field: { a, { b, c } }; with `named`, { x = a, y = { ... } }."""

    type: Struct
    parts: list[Expression]
    named: bool

    def p4(self) -> str:
        names = [f"{name} = " if self.named else "" for name, _ in self.type.fields]
        return f"{{ {', '.join(n + e.p4() for n, e in zip(names, self.parts, strict=True))} }}"

    def value(self, env: Environment) -> Any:
        found: list[Any] = []
        for part in self.parts:
            one = part.value(env)
            found += one if isinstance(part.type, Struct) else [one]
        return tuple(found)

    def children(self) -> list[Expression]:
        return list(self.parts)


@dataclass(frozen=True)
class Tuple(Type):
    elements: tuple[Type, ...] = ()

    @property
    def p4(self) -> str:
        return f"tuple<{', '.join(t.p4 for t in self.elements)}>"


@dataclass
class TupleList(Expression):
    type: Tuple
    parts: list[Expression]

    def p4(self) -> str:
        return f"{{ {', '.join(e.p4() for e in self.parts)} }}"

    def value(self, env: Environment) -> Any:
        return tuple(part.value(env) for part in self.parts)

    def children(self) -> list[Expression]:
        return list(self.parts)


@dataclass
class TupleElement(Expression):
    type: Type
    tuple: Ref
    place: int

    def p4(self) -> str:
        return f"{self.tuple.p4()}[{self.place}]"

    def value(self, env: Environment) -> Any:
        return self.tuple.value(env)[self.place]
