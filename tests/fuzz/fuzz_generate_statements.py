# SPDX-License-Identifier: Apache-2.0
"""Random statements, functions and actions."""

from fuzz_expressions import BOOL, Cast, Expression, Logic, Ref, Slice, Type, Valid
from fuzz_externs import ALGORITHMS, Hash, ReadRegister, Register, WriteRegister
from fuzz_generate_expressions import ExpressionGenerator
from fuzz_headers import (
    AssignElement,
    CopyHeader,
    CopyUnion,
    CopyVarbit,
    Element,
    Move,
    MoveUnions,
    SameHeader,
    SetValid,
)
from fuzz_program import STACK, UNION_STACK
from fuzz_statements import (
    Assign,
    Block,
    For,
    If,
    Leave,
    LValue,
    OperatorAssign,
    Parameter,
    Routine,
    Statement,
    SwitchValue,
)
from fuzz_tables import Apply, Table

OPERATOR_ASSIGN = ("+", "-", "&", "|", "^", "|+|", "|-|", "*")


class StatementGenerator(ExpressionGenerator):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.actions: list[Routine] = []
        self.tables: list[Table] = []
        self.applied: list[Table] = []
        self.registers: list[Register] = []
        self.in_loop = False

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
            return self.header_statement(where)
        if self.chance(0.15):
            return self.extern_statement()
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

    def header_statement(self, where: str) -> Statement:
        made = self.random.randrange(10)
        if made == 0:
            target, source = self.random.sample(self.unions_alone, 2)
            return CopyUnion(target, source, {"h": self.h, "s": self.s})
        if made == 1:
            return self.varbit_statement()
        if made < 4:
            return self.guarded()
        if made == 4 and where == "control":
            return self.guarded_element()
        if made == 5:
            how, count = self.random.choice(("push_front", "pop_front")), self.random.randrange(1, STACK + 3)
            if self.chance(0.3):
                return MoveUnions("hdr.us", UNION_STACK, how, count, {"h": self.h, "s": self.s})
            return Move("hdr.s", STACK, how, count, self.s.names())
        header, paths = (self.h, self.h_paths) if self.chance(0.6) else (self.s, self.s_paths)
        if self.chance(0.5):
            return SetValid(self.random.choice(paths), self.chance(0.6), header.names())
        target, source = self.random.sample(paths, 2)
        if self.chance(0.3):  # p4c: only as a condition of its own
            same = SameHeader(target, source, self.random.choice(("==", "!=")), header.names())
            return If(same, self.block(0, where), self.block(0, where))
        return CopyHeader(target, source, header.names())

    def varbit_statement(self) -> Statement:
        """Nothing that makes a varbit field whose length BMv2 has from an older packet."""
        target, source = self.random.sample(("hdr.v", "hdr.x"), 2)
        made = self.random.randrange(4)
        if made == 0:
            return SetValid(target, False, [])
        if made == 1:
            both = Logic("&&", Valid(target), Valid(source))
            same = SameHeader(target, source, "==", self.v.names())
            changed = self.random.choice(self.scope)
            return If(
                both,
                Block([CopyVarbit(f"{target}.data", f"{source}.data")]),
                Block([If(same, Block([Assign(changed, self.constant(changed.type))]), Block())]),
            )
        return CopyHeader(target, source, self.v.names())

    def guarded(self) -> Statement:
        """Fields of a header, where it is valid."""
        header, paths = (self.h, self.h_paths) if self.chance(0.6) else (self.s, self.s_paths)
        if self.chance(0.2):
            header, paths = self.v, ("hdr.v", "hdr.x")
        path = self.random.choice(paths)
        kept = self.scope
        self.scope = self.scope + header.refs(path) * 3
        body = Block([self.statement(0, "action") for _ in range(self.random.randrange(1, 4))])
        self.scope = kept
        return If(Valid(path), body, Block())

    def guarded_element(self) -> Statement:
        """A field of the element at an index that is computed, where it must be valid."""
        number = self.random.choice([r for r in self.scope if r.type.width > 1 and not r.type.signed])
        index = Cast(Type(32), Slice(number, 0, 0))
        name, type_ = self.random.choice(self.s.fields)
        element = Element(type_, "hdr.s", index, name)
        statements: list[Statement] = [AssignElement(element, self.expression(type_, 2))]
        fitting = [r for r in self.scope if r.type == type_ and r is not number]
        if fitting and self.chance(0.6):
            statements.insert(self.random.randrange(2), Assign(self.random.choice(fitting), element))
        # BMv2 does not load isValid() of an element at an index that is computed.
        both = Logic("&&", Valid("hdr.s[0]"), Valid("hdr.s[1]"))
        return If(both, Block(statements), Block())

    def extern_statement(self) -> Statement:
        numbers = [r for r in self.scope if r.type != BOOL]
        unsigned = [r for r in numbers if not r.type.signed]
        if self.chance(0.4):
            data: list[Expression] = [
                self.expression(self.random.choice(numbers).type, 1)
                for _ in range(self.random.randrange(1, 5))
            ]
            base, maximum = self.small(16), self.random.choice((1, 2, 3, 256, 0x10000, 0xFFFFFFFF))
            return Hash(self.random.choice(unsigned), self.random.choice(ALGORITHMS), base, data, maximum)
        register = self.random.choice(self.registers)
        index = Cast(Type(32), self.expression(Type(3), 1))
        fitting = [r for r in unsigned if r.type.width == register.width]
        if fitting and self.chance(0.5):
            return ReadRegister(register, self.random.choice(fitting), index)
        return WriteRegister(register, index, self.expression(Type(register.width), 2))

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
