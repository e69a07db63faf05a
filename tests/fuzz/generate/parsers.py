# SPDX-License-Identifier: Apache-2.0
"""Random parsers."""

from tests.fuzz.generate.expressions import ExpressionGenerator
from tests.fuzz.programs.blocks import CallParser, SubParser
from tests.fuzz.programs.expressions import (
    BOOL,
    Arithmetic,
    Cast,
    Compare,
    Const,
    Expression,
    Ref,
    Shift,
    Type,
)
from tests.fuzz.programs.parsers import (
    Advance,
    Extract,
    ExtractNext,
    ExtractVarbit,
    Keyset,
    Last,
    Lookahead,
    Parser,
    ParserStatement,
    Set,
    State,
    ValueSet,
    Verify,
)
from tests.fuzz.programs.program import METADATA, STACK, UNION_STACK
from tests.fuzz.programs.statements import Parameter


class ParserGenerator(ExpressionGenerator):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.value_sets: list[ValueSet] = []
        self.sub_parsers: list[SubParser] = []
        self.assigned: set[str] = set()  # metadata

    def parser(self) -> Parser:
        names = [f"s{n}" for n in range(self.random.randrange(1, 4))]
        states = [State("start", [Extract(self.i, "hdr.i")])]
        states += [State(name) for name in names]
        taken: set[str] = set()
        for place, state in enumerate(states):
            later = [s.name for s in states[place + 1 :]]
            self.parser_state(state, later, taken)
        return Parser(states, self.value_sets)

    def parser_state(self, state: State, later: list[str], taken: set[str]) -> None:
        keys: list[Expression] = [
            r for r in self.i_fields() if r.type.width in range(2, 65) and not r.type.signed
        ]
        loops = False
        if state.name != "start":
            made = self.random.randrange(9)
            alone = self.random.choice(["hdr.a", "hdr.b", "hdr.u.h", "hdr.u.s", "hdr.w.s", "hdr.v", "hdr.x"])
            if made < 5 and alone not in taken:
                taken.add(alone)
                inner = self.chance(0.3) and alone in ("hdr.a", "hdr.b", "hdr.u.h")
                state.statements.append(self.call_parser(alone) if inner else self.extract(alone))
            elif made == 5:
                state.statements.append(Advance(8 * self.random.randrange(1, 4)))
            elif made == 6:
                member, header = self.random.choice((("h", self.h), ("s", self.s)))
                state.statements.append(ExtractNext(header, "hdr.us", UNION_STACK, member))
                loops = True
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
            if self.chance(0.15):
                state.cases.append((self.value_set(state.keys), self.random.choice(targets)))
                continue
            keysets = [self.keyset(k.type.width) for k in state.keys]
            if any(k is not None for k in keysets):
                state.cases.append((keysets, self.random.choice(targets)))
        if self.chance(0.85) or not state.cases:
            state.cases.append(([None] * len(state.keys), self.random.choice([*later, "accept"])))

    def extract(self, path: str) -> ParserStatement:
        if path in ("hdr.v", "hdr.x"):
            size: Expression = Const(Type(32), self.random.choice((0, 8, 16, 24, 64, 72, 12)))
            if self.chance(0.1):
                size = Ref(Type(32), "hdr.i.crc")
            elif self.chance(0.7):
                size = Cast(Type(32), Ref(Type(8), "hdr.i.k"))
                if self.chance(0.7):
                    size = Shift(Type(32), "<<", size, Const(Type(8), 3))
            return ExtractVarbit(self.v, path, size)
        return Extract(self.s if path.endswith(".s") else self.h, path)

    def call_parser(self, path: str) -> ParserStatement:
        """A call of an inner parser, new or known, that extracts a header of type `h`."""
        if not self.sub_parsers or self.chance(0.5):
            self.sub_parsers.append(self.sub_parser())
        called = self.random.choice(self.sub_parsers)
        number = Ref(METADATA["meta.m0"], "meta.m0")
        self.assigned.add(number.path)
        return CallParser(called, self.name("inner"), self.small(8), path, number)

    def sub_parser(self) -> SubParser:
        byte = Type(8)
        number, constant = Parameter(self.name("p"), byte, "inout"), Parameter(self.name("c"), byte, "")
        made = SubParser(self.name("Parser"), self.h, self.name("inner_h"), number, constant)
        n, c = Ref(byte, number.name), Ref(byte, constant.name)
        first: list[ParserStatement] = [Extract(self.h, made.path)]
        if self.chance(0.7):
            first.append(Set(n, Arithmetic(byte, "+", n, c)))
        numbers = [r for r in self.h.refs(made.path) if r.type.width in range(2, 65) and not r.type.signed]
        keys: list[Expression] = [self.random.choice([*numbers, n])]  # BMv2 loads no key that is constant
        more: list[ParserStatement] = [Verify(Compare("!=", n, self.constant(byte)), "Mine")]
        if self.chance(0.5):
            more.append(Advance(8))
        cases: list[tuple[list[Keyset] | ValueSet, str]] = [([self.small(keys[0].type.width)], "more")]
        if self.chance(0.8):
            cases.append(([None], self.random.choice(("accept", "more", "accept"))))
        made.parser.states = [State("start", first, keys, cases), State("more", more)]
        return made

    def value_set(self, keys: list[Expression]) -> ValueSet:
        widths = [k.type.width for k in keys]
        size = self.random.randrange(1, 5)
        members = [[self.small(w) for w in widths] for _ in range(self.random.randrange(size + 1))]
        made = ValueSet(self.name("set"), widths, size, members)
        self.value_sets.append(made)
        return made

    def parser_statements(self) -> list[ParserStatement]:
        kept = self.scope
        self.scope = [Ref(t, n) for n, t in METADATA.items()] + self.i_fields()
        made: list[ParserStatement] = []
        for _ in range(self.random.randrange(3)):
            if self.chance(0.2):
                made.append(Verify(self.expression(BOOL, 2), "Mine"))
            else:
                # Each variable once: p4c drops an assignment that is overwritten, even if the parser ends in between.
                name = next((n for n in METADATA if n not in self.assigned), None)
                if name is not None:
                    self.assigned.add(name)
                    type_ = METADATA[name]
                    made.append(Set(Ref(type_, name), self.expression(type_, 2)))
        self.scope = kept
        return made

    def keyset(self, width: int) -> Keyset:
        made = self.random.randrange(6)
        value, other = self.small(width), self.small(width)
        if made < 3:
            return value
        if made == 3:
            return None
        # p4c turns a mask of zero, or the whole range, into `default`, which BMv2 tries last.
        if made == 4:
            return ("&&&", value, other or 1)
        low, high = min(value, other), max(value, other)
        return ("..", max(low, 1) if high == (1 << width) - 1 else low, high)
