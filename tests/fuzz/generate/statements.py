# SPDX-License-Identifier: Apache-2.0
"""Random statements."""

from typing import Literal

from tests.fuzz.generate.expressions import ExpressionGenerator
from tests.fuzz.programs.blocks import Instance
from tests.fuzz.programs.expressions import (
    BOOL,
    Cast,
    Compare,
    Const,
    Expression,
    Logic,
    Ref,
    Slice,
    Type,
    Valid,
)
from tests.fuzz.programs.externs import ALGORITHMS, Hash
from tests.fuzz.programs.headers import (
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
from tests.fuzz.programs.objects import (
    Count,
    Counter,
    Digest,
    Execute,
    Meter,
    ReadRegister,
    Register,
    WriteRegister,
)
from tests.fuzz.programs.pipeline import (
    EGRESS_SPEC,
    FIELD_LISTS,
    GROUPS,
    MCAST_GRP,
    SESSIONS,
    Again,
    Clone,
    Drop,
    Truncate,
)
from tests.fuzz.programs.program import ROUNDS, STACK, UNION_STACK
from tests.fuzz.programs.statements import (
    Assign,
    Block,
    Declare,
    For,
    If,
    Leave,
    LValue,
    OperatorAssign,
    Routine,
    Statement,
    SwitchValue,
)
from tests.fuzz.programs.tables import Apply, Table
from tests.fuzz.programs.types import Struct, Tuple, TupleElement, TupleList

OPERATOR_ASSIGN = ("+", "-", "&", "|", "^", "|+|", "|-|", "*")
# Where a statement stands: in a function, an action, an inner control ("sub"), the ingress ("control") or the egress.
Where = Literal["function", "action", "sub", "control", "egress"]


class StatementGenerator(ExpressionGenerator):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.actions: list[Routine] = []
        self.tables: list[Table] = []
        self.applied: list[Table] = []
        self.registers: list[Register] = []
        self.counters: list[Counter] = []
        self.meters: list[Meter] = []
        self.instances: list[Instance] = []
        self.called: list[Instance] = []
        self.digested: list[Struct] = []
        self.in_loop = False

    def target(self) -> LValue:
        whole = self.random.choice(self.scope)
        # p4c rejects slices of an int<W> as targets. If only an assignment to a slice changes a variable in a loop, p4c
        # uses the value before the loop in each round.
        if whole.type.width > 1 and not whole.type.signed and not self.in_loop and self.chance(0.2):
            low = self.random.randrange(whole.type.width)
            return Slice(whole, self.random.randrange(low, whole.type.width), low)
        return whole

    def statement(self, depth: int, where: Where) -> Statement:
        """A random statement. `depth`: how deep blocks may nest in it."""
        made = self.random.randrange(20)
        if self.others and self.chance(0.12):
            return self.other_statement(depth, where)
        if self.chance(0.04) and where != "egress":
            return self.tuple_statement()
        if made < 12 or depth <= 0:
            return self.plain_statement(made, depth, where)
        if where == "function":
            return self.statement(depth - 1, where)
        if where == "sub":
            return self.sub_statement(depth)
        if made in (12, 13):
            return self.header_statement(where)
        if where == "egress":
            return self.switch(depth, where) if made == 14 else self.statement(depth - 1, where)
        if self.chance(0.2):
            return self.extern_statement()
        if self.chance(0.1):
            return self.pipeline_statement("ingress")
        return self.ingress_statement(made, depth, where)

    def plain_statement(self, made: int, depth: int, where: Where) -> Statement:
        """An assignment, or an `if` on any condition."""
        if made < 7 or depth <= 0:
            target = self.target()
            return Assign(target, self.expression(target.type, 3))
        if made < 9:
            number = self.random.choice([r for r in self.scope if r.type != BOOL])
            operator = self.random.choice(OPERATOR_ASSIGN)
            return OperatorAssign(number, operator, self.expression(number.type, 2))
        return If(self.expression(BOOL, 2), self.block(depth - 1, where), self.block(depth - 1, where))

    def sub_statement(self, depth: int) -> Statement:
        """A statement of an inner control."""
        made = self.random.randrange(14, 18)
        if made == 14:
            return self.switch(depth, "sub")
        if made == 15:
            return self.leave()
        return self.statement(depth - 1, "sub")

    def ingress_statement(self, made: int, depth: int, where: Where) -> Statement:
        """A call, a `switch`, a table or an early end: of the ingress control or of one of its actions."""
        if self.instances and where == "control" and self.chance(0.2):
            instance = self.random.choice(self.instances)
            # p4c fails if it has to put an `exit` in two places.
            if not (instance.exits and instance in self.called):
                self.called.append(instance)
                return self.call(instance, 1)
        if made == 14 and self.actions:
            return self.call(self.random.choice(self.actions), 1)
        if where == "action":
            return self.action_statement(depth)
        if made == 15:
            return self.switch(depth, where)
        if made == 16:
            return self.leave()
        unused = [t for t in self.tables if t not in self.applied]
        if made > 16 and unused:
            return self.apply_table(self.random.choice(unused), depth)
        return self.statement(depth - 1, where)

    def action_statement(self, depth: int) -> Statement:
        """A loop or an early end, of an action."""
        if self.chance(0.3):
            self.in_loop = True
            body = self.block(0, "action")
            self.in_loop = False
            return For(self.name("n"), 1, self.random.randrange(1, 4), body)
        condition, leave = self.expression(BOOL, 2), Leave(self.chance(0.2))
        return If(condition, Block([leave]), self.block(depth - 1, "action"))

    def leave(self) -> Statement:
        """An `exit` or `return` under a condition."""
        return If(self.expression(BOOL, 2), Block([Leave(self.chance(0.5))]), Block())

    def apply_table(self, table: Table, depth: int) -> Statement:
        self.applied.append(table)
        how = self.random.choice(("plain", "hit", "miss", "switch"))
        if how == "plain":
            return Apply(table)
        return Apply(table, how, self.block(depth - 1, "control"), self.block(depth - 1, "control"))

    def other_statement(self, depth: int, where: Where) -> Statement:
        """A statement on a variable of a named type or a struct."""
        target = self.random.choice(self.others)
        if depth > 0 and isinstance(target.type, Struct) and self.chance(0.3):
            known = [r for r in self.others + self.others_read_only if r.type == target.type]
            same = Compare(self.random.choice(("==", "!=")), target, self.random.choice(known))
            return If(same, self.block(0, where), self.block(0, where))
        return Assign(target, self.other(target.type, 2))

    def tuple_statement(self) -> Statement:
        types = tuple(self.random.choice(self.scope).type for _ in range(self.random.randrange(1, 4)))
        whole = Ref(Tuple(0, elements=types), self.name("tuple"))
        place = self.random.randrange(len(types))
        target = self.reference(types[place], writable=True)
        assert target is not None
        made = TupleList(Tuple(0, elements=types), [self.expression(t, 1) for t in types])
        taken = Assign(target, TupleElement(types[place], whole, place))
        return Block(
            [Declare(whole, made), *([self.statement(0, "function")] if self.chance(0.5) else []), taken]
        )

    def header_statement(self, where: Where) -> Statement:
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
        if self.chance(0.3):  # p4c fails on `==` of headers inside larger conditions
            same = SameHeader(target, source, self.random.choice(("==", "!=")), header.names())
            return If(same, self.block(0, where), self.block(0, where))
        return CopyHeader(target, source, header.names())

    def varbit_statement(self) -> Statement:
        """A statement on a header with a varbit field. None makes such a header valid: BMv2 would use the field's
        length in an older packet."""
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
        """Statements on fields of a header, in an `if` that it is valid."""
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
        """An assignment to a field of the element at a computed index, in an `if` that the element is valid."""
        number = self.random.choice([r for r in self.scope if r.type.width > 1 and not r.type.signed])
        index = Cast(Type(32), Slice(number, 0, 0))
        name, type_ = self.random.choice(self.s.fields)
        element = Element(type_, "hdr.s", index, name)
        statements: list[Statement] = [AssignElement(element, self.expression(type_, 2))]
        fitting = [r for r in self.scope if r.type == type_ and r is not number]
        if fitting and self.chance(0.6):
            statements.insert(self.random.randrange(2), Assign(self.random.choice(fitting), element))
        # BMv2 does not load isValid() of an element at a computed index.
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
        if self.chance(0.4):
            return self.object_statement(unsigned)
        register = self.random.choice(self.registers)
        fitting = [r for r in unsigned if r.type.width == register.width]
        if fitting and self.chance(0.5):
            return ReadRegister(register, self.random.choice(fitting), self.within())
        index = Cast(Type(32), self.expression(Type(3), 1))
        return WriteRegister(register, index, self.expression(Type(register.width), 2))

    def within(self) -> Expression:
        """An index that every register and every meter has."""
        return Cast(Type(32), self.expression(Type(2), 1))

    def object_statement(self, unsigned: list[Ref]) -> Statement:
        index = Cast(Type(32), self.expression(Type(3), 1))
        made = self.random.randrange(3)
        if made == 0 and self.counters:
            return Count(self.random.choice(self.counters), index)
        wide = [r for r in unsigned if r.type.width > 1]
        if made == 1 and self.meters and wide:
            return Execute(self.random.choice(self.meters), self.within(), self.random.choice(wide))
        # Each struct once: p4c makes a list of every call, and BMv2 drops a list equal to one that it sent before.
        plain = [s for s in self.types.structs if all(type(t) is Type for _, t in s.fields)]
        fitting = [s for s in plain if s not in self.digested]
        if not fitting:
            return Drop()
        struct = self.random.choice(fitting)
        self.digested.append(struct)
        return Digest(struct, [self.expression(t, 1) for _, t in struct.fields])

    def pipeline_statement(self, block: str) -> Statement:
        """A clone, drop, truncation and the like, in `block` (ingress or egress). A condition on the packet's rounds
        ends them."""
        made: Statement
        fields = self.random.choice(FIELD_LISTS)
        choice = self.random.randrange(8)
        if choice < 2:
            made = Clone(
                "I2E" if block == "ingress" else "E2E", self.random.randrange(1, len(SESSIONS) + 2), fields
            )
        elif choice == 2:
            made = Again("resubmit" if block == "ingress" else "recirculate", fields)
        elif choice == 3:
            return Drop()
        elif choice == 4:
            return Truncate(self.random.choice((0, 1, 14, 60, 100, 2000)))
        elif block == "egress":
            made = Again("recirculate", fields) if choice == 5 else Clone("E2E", 1, fields)
        elif choice == 5:
            return Assign(EGRESS_SPEC, Const(Type(9), self.random.choice((1, 2, 3, 4, 511))))
        else:
            return Assign(MCAST_GRP, Const(Type(16), self.random.randrange(len(GROUPS) + 2)))
        rounds = Compare("<", ROUNDS, Const(Type(8), self.random.randrange(2, 5)))
        return If(Logic("&&", rounds, self.expression(BOOL, 1)), Block([made]), Block())

    def switch(self, depth: int, where: Where) -> Statement:
        numbers = [r for r in self.scope if r.type != BOOL]
        # p4c fails on a `switch` whose subject it finds to be constant.
        subject = self.convert(self.random.choice(numbers), Type(self.random.choice((2, 3, 8))))
        labels = self.random.sample(range(4), 3)
        cases: list[tuple[int | None, Block | None]] = [
            (label, None if n == 0 and self.chance(0.4) else self.block(depth - 1, where))
            for n, label in enumerate(labels)
        ]
        if self.chance(0.7):
            cases.append((None, self.block(depth - 1, where)))
        return SwitchValue(subject, cases)

    def block(self, depth: int, where: Where) -> Block:
        return Block([self.statement(depth, where) for _ in range(self.random.randrange(1, 4))])
