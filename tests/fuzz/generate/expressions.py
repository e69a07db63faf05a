# SPDX-License-Identifier: Apache-2.0
"""Random types and expressions."""

import random

from tests.fuzz.programs.expressions import (
    ARITHMETIC,
    BOOL,
    COMPARISONS,
    Arithmetic,
    Cast,
    Choice,
    Compare,
    Concat,
    Const,
    Expression,
    Logic,
    Ref,
    Shift,
    Slice,
    Type,
    Unary,
    Valid,
)
from tests.fuzz.programs.headers import Header, UnionValid
from tests.fuzz.programs.program import STACK, UNION_STACK, Types
from tests.fuzz.programs.statements import Call, Parameter, Routine
from tests.fuzz.programs.types import Named, NamedConst, Struct, StructList

WIDTHS = (1, 2, 3, 4, 7, 8, 8, 9, 13, 16, 16, 31, 32, 32, 33, 48, 63, 64, 65, 100, 128, 129, 200)


class ExpressionGenerator:
    """All headers of `h_paths` have the type `h`, all of `s_paths` the type `s`."""

    unions_alone = (
        "hdr.u",
        "hdr.w",
    )  # not in a stack: there BMv2 loads neither isValid() nor a copy of a union
    unions = (*unions_alone, *(f"hdr.us[{n}]" for n in range(UNION_STACK)))
    h_paths = ("hdr.a", "hdr.b", *(f"{u}.h" for u in unions))
    s_paths = (*(f"hdr.s[{n}]" for n in range(STACK)), *(f"{u}.s" for u in unions))
    i: Header
    h: Header
    s: Header
    v: Header

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._count = 0
        self.scope: list[Ref] = []  # scalars that may be read and assigned to
        self.read_only: list[Ref] = []
        self.types = Types()
        self.others: list[Ref] = []  # variables of named types and structs, which may be read and assigned to
        self.others_read_only: list[Ref] = []
        self.functions: list[Routine] = []
        self.headers_seen = False  # whether expressions may ask which headers are valid

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # --- types and headers

    def type(self) -> Type:
        if self.chance(0.1):
            return BOOL
        if self.types.aliases and self.chance(0.2):
            return self.random.choice(self.types.aliases)
        width = self.random.choice(WIDTHS)
        return Type(width, width > 1 and self.chance(0.3))

    def declare_types(self) -> None:
        for _ in range(self.random.randrange(3)):
            plain = self.type()
            self.types.aliases.append(Type(plain.width, plain.signed, f"{self.name('alias')}_t"))
        for _ in range(self.random.randrange(4)):
            kind = self.random.choice(("type", "enum", "serialisable"))
            width = 0 if kind == "enum" else self.random.choice((2, 8, 9, 16, 32, 48))
            count = self.random.randrange(2, 5)
            values = (
                range(count)
                if kind == "enum"
                else sorted(self.random.sample(range(1 << min(width, 8)), count))
            )
            members = () if kind == "type" else tuple(values)
            self.types.named.append(Named(width, name=f"{self.name('name')}_t", members=members))
        for _ in range(self.random.randrange(3)):
            known: list[Type] = [*self.types.structs, *self.types.named]
            fields = [
                (f"f{n}", self.random.choice(known) if known and self.chance(0.3) else self.type())
                for n in range(self.random.randrange(1, 4))
            ]
            self.types.structs.append(Struct(0, name=f"{self.name('struct')}_t", fields=tuple(fields)))

    def declared_types(self) -> list[Type]:
        return [*self.types.named, *self.types.structs]

    def enter(self, refs: list[Ref], *, writable: bool) -> None:
        """Add variables to the scope, and the parts of structs."""
        scalars, others = (self.scope, self.others) if writable else (self.read_only, self.others_read_only)
        for ref in refs:
            (others if isinstance(ref.type, Named | Struct) else scalars).append(ref)
            if isinstance(ref.type, Struct):
                self.enter(list(ref.type.leaves(ref.path)), writable=writable)

    def enter_parameters(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            writable = parameter.direction in ("out", "inout")
            self.enter([Ref(parameter.type, parameter.name)], writable=writable)

    def kept_scope(self) -> tuple[list[Ref], ...]:
        """The scope, for restore_scope(). The generator continues with copies of the lists."""
        kept = self.scope, self.read_only, self.others, self.others_read_only
        self.scope, self.read_only, self.others, self.others_read_only = (list(one) for one in kept)
        return kept

    def restore_scope(self, kept: tuple[list[Ref], ...]) -> None:
        self.scope, self.read_only, self.others, self.others_read_only = kept

    def header(self, name: str, count: int) -> Header:
        fields = [(f"f{n}", self.type()) for n in range(count)]
        return self.filled(Header(name, fields))

    def filled(self, header: Header) -> Header:
        """The header with a last field that pads it to whole bytes."""
        fields = header.fields
        left = -header.width % 8
        if left:
            fields.append(("pad", Type(left)))
        return header

    # --- expressions

    def other(self, type_: Type, depth: int) -> Expression:
        """An expression of a named type or a struct."""
        known = [r for r in self.others + self.others_read_only if r.type == type_]
        if known and self.chance(0.4):
            return self.random.choice(known)
        fitting = [f for f in self.functions if f.result == type_ and self.can_call(f)]
        if fitting and self.chance(0.2):
            return self.call(self.random.choice(fitting), depth - 1)
        if isinstance(type_, Struct):
            parts = [self.expression(t, depth - 1) for _, t in type_.fields]
            return StructList(type_, parts, self.chance(0.5))
        assert isinstance(type_, Named)
        if type_.numeric and self.chance(0.5):
            return Cast(type_, self.expression(Type(type_.width), depth - 1))
        return self.first_of(type_)

    def first_of(self, type_: Type) -> Expression:
        """A constant of the type."""
        if isinstance(type_, Struct):
            return StructList(type_, [self.first_of(t) for _, t in type_.fields], self.chance(0.5))
        if isinstance(type_, Named):
            members = type_.members or (0, 1, self.random.getrandbits(type_.width))
            return NamedConst(type_, self.random.choice(members))
        return self.constant(type_)

    def constant(self, type_: Type) -> Const:
        if type_ == BOOL:
            return Const(type_, self.random.getrandbits(1))
        edges = (0, 1, -1, 1 << (type_.width - 1), (1 << (type_.width - 1)) - 1, 0x55, 2)
        value = self.random.choice(edges) if self.chance(0.5) else self.random.getrandbits(type_.width)
        return Const(type_, type_.wrap(value))

    def reference(self, type_: Type, writable: bool = False) -> Ref | None:
        names = self.scope + self.others if writable else self.scope + self.read_only
        fitting = [r for r in names if r.type == type_]
        return self.random.choice(fitting) if fitting else None

    def leaf(self, type_: Type) -> Expression:
        found = self.reference(type_)
        if found is not None and self.chance(0.85):
            return found
        named = [
            r for r in self.others + self.others_read_only if isinstance(r.type, Named) and r.type.numeric
        ]
        if named and type_ != BOOL and self.chance(0.3):
            one = self.random.choice(named)
            return self.convert(Cast(Type(one.type.width), one), type_)
        if type_ != BOOL and self.chance(0.7):  # a variable of another type, resized
            numbers = [r for r in self.scope + self.read_only if r.type != BOOL]
            if numbers:
                return self.convert(self.random.choice(numbers), type_)
        if type_ == BOOL and self.headers_seen and self.chance(0.5):
            return self.validity()
        return self.constant(type_)

    def validity(self) -> Expression:
        """A condition on headers."""
        if self.chance(0.3):
            return UnionValid(self.random.choice(self.unions_alone), ["h", "s"])
        return Valid(self.random.choice(["hdr.i", "hdr.v", *self.h_paths, *self.s_paths]))

    def convert(self, e: Expression, type_: Type) -> Expression:
        if e.type.width != type_.width:
            e = Cast(Type(type_.width, e.type.signed), e)
        return e if e.type == type_ else Cast(type_, e)

    def expression(self, type_: Type, depth: int) -> Expression:
        if isinstance(type_, Named | Struct):
            return self.other(type_, depth)
        if depth <= 0 or self.chance(0.1):
            return self.leaf(type_)
        if self.functions and self.chance(0.08):
            fitting = [f for f in self.functions if f.result == type_ and self.can_call(f)]
            if fitting:
                return self.call(self.random.choice(fitting), depth - 1)
        if type_ == BOOL:
            return self.condition(depth)
        made = self.random.randrange(10)
        if made < 4:
            left = self.expression(type_, depth - 1)
            return Arithmetic(type_, self.random.choice(ARITHMETIC), left, self.expression(type_, depth - 1))
        if made == 4:
            return Unary(type_, self.random.choice("-~"), self.expression(type_, depth - 1))
        if made == 5:
            bits = Type(self.random.choice((1, 2, 3, 5, 7, 8)))
            distance: Expression = self.expression(bits, depth - 1)
            if self.chance(0.4):
                distance = Const(Type(8), self.random.choice((0, 1, 2, type_.width // 2, type_.width - 1)))
            return Shift(type_, self.random.choice(("<<", ">>")), self.expression(type_, depth - 1), distance)
        if made == 6:
            condition = self.expression(BOOL, depth - 1)
            return Choice(
                type_, condition, self.expression(type_, depth - 1), self.expression(type_, depth - 1)
            )
        if made == 7 and type_.width > 1 and not type_.signed:
            cut = self.random.randrange(1, type_.width)
            left = self.expression(Type(type_.width - cut), depth - 1)
            return Concat(left, self.expression(Type(cut), depth - 1))
        if made == 8 and not type_.signed and type_.width < 200:
            low = self.random.randrange(20)
            whole = Type(type_.width + low + self.random.randrange(20), self.chance(0.3))
            return Slice(self.expression(whole, depth - 1), low + type_.width - 1, low)
        return self.convert(self.expression(self.number_type(), depth - 1), type_)

    def number_type(self) -> Type:
        known = [r.type for r in self.scope if r.type != BOOL]
        return self.random.choice(known) if known and self.chance(0.8) else Type(self.random.choice(WIDTHS))

    def condition(self, depth: int) -> Expression:
        named = [r for r in self.others if isinstance(r.type, Named)]
        if named and self.chance(0.15):
            one = self.random.choice(named)
            return Compare(self.random.choice(("==", "!=")), one, self.other(one.type, depth - 1))
        made = self.random.randrange(6)
        if made < 3:
            type_ = self.number_type()
            left = self.expression(type_, depth - 1)
            return Compare(self.random.choice(COMPARISONS), left, self.expression(type_, depth - 1))
        if made == 3:
            return Unary(BOOL, "!", self.expression(BOOL, depth - 1))
        left = self.expression(BOOL, depth - 1)
        right = self.expression(BOOL, depth - 1)
        if made == 4 and not _asks_unions(left) and not _asks_unions(right):
            return Compare(self.random.choice(("==", "!=")), left, right)
        return Logic(self.random.choice(("&&", "||")), left, right)

    def can_call(self, callee: Routine) -> bool:
        """Whether the scope has a variable for each parameter that is copied out."""
        known = {r.type for r in self.scope + self.others}
        return all(p.type in known for p in callee.parameters if p.direction in ("out", "inout"))

    def call(self, callee: Routine, depth: int) -> Call:
        arguments: list[Expression] = []
        for parameter in callee.parameters:
            if parameter.direction in ("", "in"):
                arguments.append(self.expression(parameter.type, depth))
                continue
            target = self.reference(parameter.type, writable=True)
            assert target is not None
            arguments.append(target)
        return Call(callee, arguments)

    def small(self, width: int) -> int:
        """A value that packets are likely to have."""
        if self.chance(0.7):
            return self.random.choice((0, 1, 2, 3, 255)) & (1 << width) - 1
        return self.random.getrandbits(width)

    def i_fields(self) -> list[Ref]:
        return self.i.refs("hdr.i")


def _asks_unions(e: Expression) -> bool:
    """Whether an expression contains isValid() of a union or of a union's member. BMv2 compares such bools wrongly."""
    if isinstance(e, Valid) and e.header.count(".") > 1:
        return True
    return isinstance(e, UnionValid) or any(_asks_unions(child) for child in e.children())
