# SPDX-License-Identifier: Apache-2.0
"""Types of P4 expressions. Declared types (struct, enum...) compare by identity, all others by value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class Type:
    """Base of all types; str() is how a message names it."""


@dataclass(frozen=True)
class BitType(Type):
    """bit<width> or int<width>."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"


@dataclass(frozen=True)
class VarbitType(Type):
    width: int

    def __str__(self) -> str:
        return f"varbit<{self.width}>"


@dataclass(frozen=True)
class SimpleType(Type):
    """bool, int (of any size, compile time only), string, error, void, match_kind, and `_` (still unknown)."""

    name: str

    def __str__(self) -> str:
        return self.name


BOOL = SimpleType("bool")
INTEGER = SimpleType("int")
STRING = SimpleType("string")
ERROR = SimpleType("error")
VOID = SimpleType("void")
MATCH_KIND = SimpleType("match_kind")
ANYTHING = SimpleType("_")
BROKEN = SimpleType("?")  # the type of erroneous code: it fits everything, so that no further error follows


@dataclass(eq=False)
class EnumType(Type):
    """`base` is None for an enum without values; `members` maps to the value, or else to the place in the list."""

    name: str
    base: BitType | None
    members: Mapping[str, int]

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class StructType(Type):
    """A struct, header or header_union (`kind`), with its fields in order. `owner` is the owner of its type
    variables."""

    kind: str
    name: str
    fields: dict[str, Type]
    declaration: Any = None
    owner: int = 0
    arguments: "tuple[Type, ...]" = ()  # of a generic struct; `remake` makes it for other arguments
    remake: "Callable[[tuple[Type, ...]], Type] | None" = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class StackType(Type):
    """A header stack, or an array of elements without headers."""

    element: Type
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


@dataclass(frozen=True)
class TupleType(Type):
    """A tuple, or the type of a list expression (`exact` False: it may become a struct)."""

    elements: tuple[Type, ...]
    exact: bool = True

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True)
class RecordType(Type):
    """The type of `{ a = 1, b = 2 }` before it becomes a struct."""

    fields: tuple[tuple[str, Type], ...]

    def __str__(self) -> str:
        return "{ " + ", ".join(f"{name} = {type_}" for name, type_ in self.fields) + " }"


@dataclass(frozen=True)
class SetType(Type):
    element: Type

    def __str__(self) -> str:
        return f"set<{self.element}>"


@dataclass(eq=False)
class NewType(Type):
    """`type base name;`"""

    name: str
    base: Type
    declaration: Any = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TypeVariable(Type):
    name: str
    owner: int = field(default=0)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ExternType(Type):
    """An extern object's type; `declaration` is its ExternDeclaration."""

    name: str
    declaration: Any
    arguments: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return self.name + (f"<{', '.join(map(str, self.arguments))}>" if self.arguments else "")


@dataclass(frozen=True)
class BlockType(Type):
    """A parser, control or package type, or the type of an instance of one."""

    name: str
    declaration: Any
    arguments: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return self.name + (f"<{', '.join(map(str, self.arguments))}>" if self.arguments else "")


@dataclass(frozen=True)
class CallableType(Type):
    """The type of the name of a function, action, method or table: it can be called or applied, not stored."""

    description: str

    def __str__(self) -> str:
        return self.description


@dataclass(frozen=True)
class ApplyResultType(Type):
    """The type of `t.apply()`, with hit, miss and action_run."""

    table: Any

    def __str__(self) -> str:
        return f"apply result of table {self.table.name}"


@dataclass(frozen=True)
class ActionListType(Type):
    """The type of `t.apply().action_run`."""

    table: Any

    def __str__(self) -> str:
        return f"action list of table {self.table.name}"


def strip(type_: Type) -> Type:
    """The type that holds the bits: looks through `type` declarations and serialisable enums."""
    while True:
        base = type_.base if isinstance(type_, NewType | EnumType) else None
        if base is None:
            return type_
        type_ = base


def is_header(type_: Type) -> bool:
    """True for a header (not for a union)."""
    return isinstance(type_, StructType) and type_.kind == "header"


def is_union(type_: Type) -> bool:
    """True for a header union."""
    return isinstance(type_, StructType) and type_.kind == "header_union"


def has_header(type_: Type) -> bool:
    """True for a header, and for a type with headers in it."""
    if isinstance(type_, StackType):
        return has_header(type_.element)
    if isinstance(type_, TupleType):
        return any(has_header(e) for e in type_.elements)
    return isinstance(type_, StructType) and (
        type_.kind != "struct" or any(has_header(f) for f in type_.fields.values())
    )


def is_stack(type_: Type) -> bool:
    """True for a stack of headers or unions (not for an array)."""
    return isinstance(type_, StackType) and (is_header(type_.element) or is_union(type_.element))


def has_array(type_: Type) -> bool:
    """True for an array, and for a type with an array in it."""
    if isinstance(type_, StackType):
        return not has_header(type_)
    parts = type_.fields.values() if isinstance(type_, StructType) else getattr(type_, "elements", ())
    return any(map(has_array, parts))


def varbit_field(header: Type) -> str | None:
    """The name of the header's varbit field, if it has one."""
    assert isinstance(header, StructType)
    return next((n for n, f in header.fields.items() if isinstance(strip(f), VarbitType)), None)


def bit_width(type_: Type) -> int:
    """Bits in a value of a fixed-size type; varbit counts 0, an enum without values and an error 32 (as in BMv2).

    Raises TypeError for a type that has no width.
    """
    type_ = strip(type_)
    if isinstance(type_, BitType):
        return type_.width
    if type_ == BOOL:
        return 1
    if type_ == ERROR or isinstance(type_, EnumType):
        return 32
    if isinstance(type_, VarbitType):
        return 0
    if isinstance(type_, StructType):
        return sum(bit_width(f) for f in type_.fields.values())
    if isinstance(type_, TupleType):
        return sum(bit_width(f) for f in type_.elements)
    if isinstance(type_, StackType):
        return type_.size * bit_width(type_.element)
    raise TypeError(f"{type_} has no width")
