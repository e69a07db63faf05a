# SPDX-License-Identifier: Apache-2.0
"""Random valid programs and packets, the same for the same seed."""

import random

from fuzz_expressions import (
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
from fuzz_parsers import (
    Advance,
    Extract,
    ExtractNext,
    Header,
    Keyset,
    Last,
    Lookahead,
    Parser,
    ParserStatement,
    Set,
    State,
    Verify,
)
from fuzz_program import METADATA, STACK, GeneratedProgram
from fuzz_statements import (
    Apply,
    Assign,
    Block,
    Call,
    CopyHeader,
    Entry,
    For,
    If,
    Leave,
    LValue,
    Move,
    OperatorAssign,
    Parameter,
    Routine,
    SetValid,
    Statement,
    SwitchValue,
    Table,
)

WIDTHS = (1, 2, 3, 4, 7, 8, 8, 9, 13, 16, 16, 31, 32, 32, 33, 48, 63, 64, 65, 100, 128, 129, 200)
KINDS = ("exact", "lpm", "ternary", "range", "optional")
OPERATOR_ASSIGN = ("+", "-", "&", "|", "^", "|+|", "|-|", "*")


class Generator:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._count = 0
        self.scope: list[Ref] = []  # what may be read and assigned to
        self.read_only: list[Ref] = []
        self.functions: list[Routine] = []
        self.actions: list[Routine] = []
        self.tables: list[Table] = []
        self.in_loop = False
        self.headers_seen = False  # fields of a, b and s may be read where they are valid

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # --- types and headers

    def type(self) -> Type:
        if self.chance(0.1):
            return BOOL
        width = self.random.choice(WIDTHS)
        return Type(width, width > 1 and self.chance(0.3))

    def header(self, name: str, count: int) -> Header:
        fields = [(f"f{n}", self.type()) for n in range(count)]
        left = -sum(max(1, t.width) for _, t in fields) % 8
        if left:
            fields.append(("pad", Type(left)))
        return Header(name, fields)

    # --- expressions

    def constant(self, type_: Type) -> Const:
        if type_ == BOOL:
            return Const(type_, self.random.getrandbits(1))
        edges = (0, 1, -1, 1 << (type_.width - 1), (1 << (type_.width - 1)) - 1, 0x55, 2)
        value = self.random.choice(edges) if self.chance(0.5) else self.random.getrandbits(type_.width)
        return Const(type_, type_.wrap(value))

    def reference(self, type_: Type, writable: bool = False) -> Ref | None:
        names = self.scope if writable else self.scope + self.read_only
        fitting = [r for r in names if r.type == type_]
        return self.random.choice(fitting) if fitting else None

    def leaf(self, type_: Type) -> Expression:
        found = self.reference(type_)
        if found is not None and self.chance(0.85):
            return found
        if type_ != BOOL and self.chance(0.7):  # a variable of another type, resized
            numbers = [r for r in self.scope + self.read_only if r.type != BOOL]
            if numbers:
                return self.convert(self.random.choice(numbers), type_)
        if type_ == BOOL and self.headers_seen and self.chance(0.5):
            return Valid(self.random.choice(["hdr.a", "hdr.b", "hdr.i", "hdr.s[0]", "hdr.s[1]"]))
        return self.constant(type_)

    def convert(self, e: Expression, type_: Type) -> Expression:
        if e.type.width != type_.width:
            e = Cast(Type(type_.width, e.type.signed), e)
        return e if e.type == type_ else Cast(type_, e)

    def expression(self, type_: Type, depth: int) -> Expression:
        if depth <= 0 or self.chance(0.1):
            return self.leaf(type_)
        if self.functions and self.chance(0.08):
            fitting = [f for f in self.functions if f.result == type_]
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
        made = self.random.randrange(6)
        if made < 3:
            type_ = self.number_type()
            left = self.expression(type_, depth - 1)
            return Compare(self.random.choice(COMPARISONS), left, self.expression(type_, depth - 1))
        if made == 3:
            return Unary(BOOL, "!", self.expression(BOOL, depth - 1))
        left = self.expression(BOOL, depth - 1)
        right = self.expression(BOOL, depth - 1)
        if made == 4:
            return Compare(self.random.choice(("==", "!=")), left, right)
        return Logic(self.random.choice(("&&", "||")), left, right)

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

    # --- statements

    def target(self) -> LValue:
        whole = self.random.choice(self.scope)
        # p4c: no slices of an int<W>; and in a loop it takes the value that a variable had before for that of every
        # round, if all that changes it is an assignment to a slice.
        if whole.type.width > 1 and not whole.type.signed and not self.in_loop and self.chance(0.2):
            low = self.random.randrange(whole.type.width)
            return Slice(whole, self.random.randrange(low, whole.type.width), low)
        return whole

    def statement(self, depth: int, where: str) -> Statement:
        """`where`: function, action or control."""
        made = self.random.randrange(20)
        if made < 7 or depth <= 0:
            target = self.target()
            return Assign(target, self.expression(target.type, 3))
        if made < 9:
            numbers = [r for r in self.scope if r.type != BOOL]
            target = self.random.choice(numbers)
            return OperatorAssign(
                target, self.random.choice(OPERATOR_ASSIGN), self.expression(target.type, 2)
            )
        if made < 12:
            return If(self.expression(BOOL, 2), self.block(depth - 1, where), self.block(depth - 1, where))
        if where == "function":
            return self.statement(depth - 1, where)
        if made in (12, 13):
            return self.header_statement()
        if made == 14 and self.actions:
            return self.call(self.random.choice(self.actions), 1)
        if where == "action":
            if self.chance(0.3):
                self.in_loop = True
                body = self.block(0, where)
                self.in_loop = False
                return For(self.name("n"), 1, self.random.randrange(1, 4), body)
            return If(
                self.expression(BOOL, 2), Block([Leave(self.chance(0.2))]), self.block(depth - 1, where)
            )
        if made == 15:
            return self.switch(depth)
        if made == 16:
            return If(self.expression(BOOL, 2), Block([Leave(self.chance(0.5))]), Block())
        unused = [t for t in self.tables if t not in self.applied]
        if made > 16 and unused:
            table = self.random.choice(unused)
            self.applied.append(table)
            how = self.random.choice(("plain", "hit", "miss", "switch"))
            if how == "plain":
                return Apply(table)
            return Apply(table, how, self.block(depth - 1, where), self.block(depth - 1, where))
        return self.statement(depth - 1, where)

    def header_statement(self) -> Statement:
        if self.chance(0.6):
            headers, fields = ["hdr.a", "hdr.b"], [n for n, _ in self.h.fields]
        else:
            headers, fields = [f"hdr.s[{n}]" for n in range(STACK)], [n for n, _ in self.s.fields]
            if self.chance(0.4):
                how = self.random.choice(("push_front", "pop_front"))
                return Move("hdr.s", STACK, how, self.random.randrange(1, STACK + 3), fields)
        if self.chance(0.5):
            return SetValid(self.random.choice(headers), self.chance(0.6), fields)
        target, source = self.random.sample(headers, 2)
        return CopyHeader(target, source, fields)

    def switch(self, depth: int) -> Statement:
        subject = self.expression(Type(self.random.choice((2, 3, 8))), 1)
        labels = self.random.sample(range(4), 3)
        cases: list[tuple[int | None, Block | None]] = [
            (label, None if n == 0 and self.chance(0.4) else self.block(depth - 1, "control"))
            for n, label in enumerate(labels)
        ]
        if self.chance(0.7):
            cases.append((None, self.block(depth - 1, "control")))
        return SwitchValue(subject, cases)

    def block(self, depth: int, where: str) -> Block:
        return Block([self.statement(depth, where) for _ in range(self.random.randrange(1, 4))])

    # --- declarations

    def function(self) -> Routine:
        kept = self.scope, self.read_only, self.headers_seen
        self.headers_seen = False
        types = [r.type for r in self.scope]
        parameters = []
        for _ in range(self.random.randrange(1, 4)):
            direction = self.random.choice(("in", "in", "inout", "out"))
            parameters.append(Parameter(self.name("p"), self.random.choice(types), direction))
        self.scope = [Ref(p.type, p.name) for p in parameters if p.direction != "in"]
        self.read_only = [Ref(p.type, p.name) for p in parameters if p.direction == "in"]
        first: list[Statement] = [
            Assign(Ref(p.type, p.name), self.constant(p.type)) for p in parameters if p.direction == "out"
        ]
        result = self.random.choice(types)
        body = self.block(2, "function") if any(r.type != BOOL for r in self.scope) else Block()
        body.statements[:0] = first
        made = Routine(self.name("function"), parameters, body, result, self.expression(result, 2))
        self.scope, self.read_only, self.headers_seen = kept
        return made

    def action(self, for_table: bool) -> Routine:
        kept = self.scope, self.read_only
        types = [r.type for r in self.scope]
        parameters = []
        for _ in range(self.random.randrange(3)):
            direction = "" if for_table else self.random.choice(("in", "inout", "inout", "out"))
            type_ = self.random.choice(types)
            if for_table and (type_.signed or type_ == BOOL):
                type_ = Type(max(1, type_.width))
            parameters.append(Parameter(self.name("p"), type_, direction))
        self.scope = self.scope + [Ref(p.type, p.name) for p in parameters if p.direction in ("out", "inout")]
        self.read_only = self.read_only + [
            Ref(p.type, p.name) for p in parameters if p.direction in ("in", "")
        ]
        first: list[Statement] = [
            Assign(Ref(p.type, p.name), self.constant(p.type)) for p in parameters if p.direction == "out"
        ]
        body = self.block(2, "action")
        body.statements[:0] = first
        self.scope, self.read_only = kept
        return Routine(self.name("action"), parameters, body)

    def table(self, actions: list[Routine]) -> Table:
        keys: list[tuple[Expression, str]] = []
        kinds = self.random.choice(
            (("exact",), ("exact", "lpm"), KINDS, ("ternary",), ("exact", "ternary", "range"))
        )
        for _ in range(self.random.randrange(1, 4)):
            kind = self.random.choice(kinds)
            unsigned = [r for r in self.scope if 1 < r.type.width <= 64 and not r.type.signed]
            key: Expression = self.random.choice(unsigned)
            if self.chance(0.3):
                key = self.expression(Type(self.random.choice((4, 8, 16))), 1)
            # BMv2 counts a prefix from the start of a whole byte.
            if kind == "lpm" and (key.type.width % 8 or any(k == "lpm" for _, k in keys)):
                kind = "exact"
            keys.append((key, kind))
        few = self.random.sample(actions, min(len(actions), 2))
        entries: list[Entry] = []
        for _ in range(self.random.randrange(5)):
            action = self.random.choice(few)
            entry = Entry([self.key(e.type.width, kind) for e, kind in keys], action, self.arguments(action))
            if all(e.keys != entry.keys for e in entries):
                entries.append(entry)
        default = self.random.choice(few)
        const = self.chance(0.6) and bool(entries)
        return Table(self.name("t"), keys, few, entries, const, default, self.arguments(default))

    def arguments(self, action: Routine) -> list[int]:
        return [self.random.getrandbits(p.type.width) for p in action.parameters]

    def small(self, width: int) -> int:
        """Values that packets are likely to have."""
        if self.chance(0.7):
            return self.random.choice((0, 1, 2, 3, 255)) & (1 << width) - 1
        return self.random.getrandbits(width)

    def key(self, width: int, kind: str) -> int | tuple[int, int] | None:
        value = self.small(width)
        ones = (1 << width) - 1
        if kind == "exact":
            return value
        if kind == "optional":
            return None if self.chance(0.4) else value
        if kind == "lpm":
            length = self.random.randrange(width + 1)
            return value >> (width - length) << (width - length), length
        if kind == "ternary":
            mask = self.random.choice((0, 1, 3, ones, ones ^ 1, self.random.getrandbits(width))) & ones
            return value & mask, mask
        other = self.small(width)
        return min(value, other), max(value, other)

    # --- parsers

    def parser(self) -> Parser:
        names = [f"s{n}" for n in range(self.random.randrange(1, 4))]
        states = [State("start", [Extract(self.i, "hdr.i")])]
        states += [State(name) for name in names]
        taken: set[str] = set()
        for place, state in enumerate(states):
            later = [s.name for s in states[place + 1 :]]
            self.parser_state(state, later, taken)
        return Parser(states)

    def parser_state(self, state: State, later: list[str], taken: set[str]) -> None:
        keys: list[Expression] = [
            r for r in self.i_fields() if r.type.width in range(2, 65) and not r.type.signed
        ]
        loops = False
        if state.name != "start":
            made = self.random.randrange(5)
            if made == 0 and "a" not in taken:
                taken.add("a")
                state.statements.append(Extract(self.h, "hdr.a"))
            elif made == 1 and "b" not in taken:
                taken.add("b")
                state.statements.append(Extract(self.h, "hdr.b"))
            elif made == 2:
                state.statements.append(Advance(8 * self.random.randrange(1, 4)))
            else:
                state.statements.append(ExtractNext(self.s, "hdr.s", STACK))
                keys = [Last(Type(8), "hdr.s", "n")]
                loops = True
        state.statements += self.parser_statements()
        if self.chance(0.2):
            keys.append(Lookahead(Type(8)))
        if not keys or self.chance(0.15):
            state.target = self.random.choice([*later, "accept", "accept"])
            return
        state.keys = [self.random.choice(keys) for _ in range(self.random.choice((1, 1, 2)))]
        targets = [
            *later,
            *later,
            "accept",
            *(["reject"] if self.chance(0.1) else []),
            *([state.name] if loops else []),
        ]
        for _ in range(self.random.randrange(1, 4)):
            keysets = [self.keyset(k.type.width) for k in state.keys]
            if any(k is not None for k in keysets):
                state.cases.append((keysets, self.random.choice(targets)))
        if self.chance(0.85) or not state.cases:
            state.cases.append(([None] * len(state.keys), self.random.choice([*later, "accept"])))

    def parser_statements(self) -> list[ParserStatement]:
        kept = self.scope
        self.scope = [Ref(t, n) for n, t in METADATA.items()] + self.i_fields()
        made: list[ParserStatement] = []
        for _ in range(self.random.randrange(3)):
            if self.chance(0.2):
                made.append(Verify(self.expression(BOOL, 2), "Mine"))
            else:
                name, type_ = self.random.choice(list(METADATA.items()))
                made.append(Set(Ref(type_, name), self.expression(type_, 2)))
        self.scope = kept
        return made

    def i_fields(self) -> list[Ref]:
        return [Ref(t, f"hdr.i.{n}") for n, t in self.i.fields]

    def keyset(self, width: int) -> Keyset:
        made = self.random.randrange(6)
        value, other = self.small(width), self.small(width)
        if made < 3:
            return value
        if made == 3:
            return None
        # p4c makes `default` of a mask of zero and of the whole range, and BMv2 tries that last.
        if made == 4:
            return ("&&&", value, other or 1)
        low, high = min(value, other), max(value, other)
        return ("..", max(low, 1) if high == (1 << width) - 1 else low, high)

    # --- all of it

    def program(self) -> GeneratedProgram:
        self.i = self.header("i_t", self.random.randrange(4, 9))
        self.i.fields.insert(0, ("k", Type(8)))
        self.h = self.header("h_t", self.random.randrange(1, 4))
        self.s = Header("s_t", [("n", Type(8)), ("v", Type(16))])
        parser = self.parser()
        variables = [
            (f"meta.v{n}", t, self.constant(t).constant)
            for n, t in enumerate([Type(8), *(self.type() for _ in range(self.random.randrange(3, 8)))])
        ]
        self.scope = (
            [Ref(t, n) for n, t, _ in variables] + [Ref(t, n) for n, t in METADATA.items()] + self.i_fields()
        )
        self.applied: list[Table] = []
        for _ in range(self.random.randrange(3)):
            self.functions.append(self.function())
        self.headers_seen = True
        table_actions = [self.action(True) for _ in range(self.random.randrange(1, 4))]
        direct = [self.action(False) for _ in range(self.random.randrange(3))]
        self.actions = direct
        self.tables = [self.table(table_actions) for _ in range(self.random.randrange(4))]
        body = Block([self.statement(3, "control") for _ in range(self.random.randrange(4, 12))])
        return GeneratedProgram(
            self.i,
            self.h,
            self.s,
            parser,
            variables,
            self.functions,
            [*table_actions, *direct],
            self.tables,
            body,
        )

    def packets(self, program: GeneratedProgram, count: int) -> list[bytes]:
        frames = []
        for _ in range(count):
            bits = ""
            for _, type_ in program.i.fields:
                width = max(1, type_.width)
                value = self.random.getrandbits(width)
                if self.chance(0.6):
                    value = self.random.choice((0, 1, 2, 3, -1, -2, 1 << (width - 1), 255)) & (1 << width) - 1
                bits += f"{value:0{width}b}"
            frame = int(bits, 2).to_bytes(len(bits) // 8, "big")
            frame += bytes(
                self.random.choice((0, 1, 2, 3, 255, self.random.getrandbits(8)))
                for _ in range(self.random.randrange(40))
            )
            if self.chance(
                0.05
            ):  # not within `i`: BMv2 shows an older packet's bits in a header that is not there
                frame = frame[: self.random.randrange(program.i.width // 8, len(frame) + 1)]
            frames.append(frame)
        return frames
