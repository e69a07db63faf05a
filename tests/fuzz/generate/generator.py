# SPDX-License-Identifier: Apache-2.0
"""Random valid programs and packets, the same for the same seed."""

from tests.fuzz.generate.parsers import ParserGenerator
from tests.fuzz.generate.routines import RoutineGenerator
from tests.fuzz.generate.tables import TableGenerator
from tests.fuzz.programs.evaluate import Evaluator
from tests.fuzz.programs.expressions import BOOL, Compare, Const, Expression, Ref, Type, Valid
from tests.fuzz.programs.externs import ALGORITHMS, Checksum, VarbitRef
from tests.fuzz.programs.headers import Header, Varbit
from tests.fuzz.programs.objects import Counter, Meter, Register
from tests.fuzz.programs.pipeline import FIELD_LISTS, NORMAL, Round
from tests.fuzz.programs.program import METADATA, ROUNDS, GeneratedProgram
from tests.fuzz.programs.statements import Block, Statement


class Generator(RoutineGenerator, TableGenerator, ParserGenerator):
    def program(self) -> GeneratedProgram:
        self.declare_types()
        self.i = Header("i_t", self.header("i_t", self.random.randrange(4, 9)).fields)
        self.i.fields[:0] = [("k", Type(8)), ("sum", Type(16)), ("crc", Type(32))]
        self.h = self.header("h_t", self.random.randrange(1, 4))
        self.s = Header("s_t", [("n", Type(8)), ("v", Type(16))])
        first = Type(self.random.randrange(1, 20))
        self.v = Header("v_t", [("first", first), ("data", Varbit(64)), ("last", Type(-first.width % 8 + 8))])
        parser = self.parser()
        types = [Type(8), *(self.type() for _ in range(self.random.randrange(3, 8)))]
        types += [t for t in self.declared_types() for _ in range(self.random.randrange(3))]
        variables = [(Ref(t, f"meta.v{n}"), self.first_of(t)) for n, t in enumerate(types)]
        self.enter([r for r, _ in variables], writable=True)
        self.scope += [Ref(t, n) for n, t in METADATA.items()] + self.i_fields()
        self.objects()
        self.functions = [self.function() for _ in range(self.random.randrange(3))]
        controls = [self.control() for _ in range(self.random.randrange(3))]
        for control in controls:
            self.instances.append(self.instance(control))
            if self.chance(0.5) and not self.instances[-1].exits:
                self.instances.append(self.instance(control))
        self.headers_seen = True
        table_actions = [self.action(True) for _ in range(self.random.randrange(1, 4))]
        self.actions = [self.action(False) for _ in range(self.random.randrange(3))]
        self.tables = [self.table(table_actions) for _ in range(self.random.randrange(4))]
        return GeneratedProgram(
            self.i, self.h, self.s, self.v, self.types, parser, self.sub_parsers, variables,
            self.field_lists(variables), self.functions, controls, self.instances,
            [*table_actions, *self.actions], self.tables, self.registers, self.counters, self.meters,
            self.checksums(update=False), self.checksums(update=True),
            Block([self.statement(3, "control") for _ in range(self.random.randrange(4, 12))]),
            Block([self.statement(2, "egress") for _ in range(self.random.randrange(4))]),
            Block([self.pipeline_statement("egress") for _ in range(self.random.choice((0, 0, 1, 2)))]),
        )  # fmt: skip

    def objects(self) -> None:
        widths = [r.type.width for r in self.scope if r.type != BOOL and not r.type.signed]
        for _ in range(2):
            size = self.random.randrange(4, 9)
            self.registers.append(Register(self.name("register"), self.random.choice(widths), size))
        self.counters = [
            Counter(self.name("counter"), self.random.randrange(1, 9))
            for _ in range(self.random.randrange(2))
        ]
        for _ in range(self.random.randrange(2)):
            bursts = [
                None if self.chance(0.2) else (self.random.randrange(4), self.random.randrange(8))
                for _ in range(self.random.randrange(4, 9))
            ]
            self.meters.append(Meter(self.name("meter"), bursts))

    def field_lists(self, variables: list[tuple[Ref, Expression]]) -> dict[int, list[str]]:
        names = [*METADATA, *(ref.path for ref, _ in variables)]
        return {n: [ROUNDS.path, *(name for name in names if self.chance(0.3))] for n in FIELD_LISTS}

    def checksums(self, *, update: bool) -> Block:
        """Checksum statements over fields of any header, with their results in fields of `i`."""
        fields: list[Ref] = self.i_fields()
        for path in (*self.h_paths[:3], *self.s_paths[:2], "hdr.v"):
            header = self.v if path == "hdr.v" else self.s if path in self.s_paths else self.h
            fields += [
                VarbitRef(t, f"{path}.{n}") if isinstance(t, Varbit) else Ref(t, f"{path}.{n}")
                for n, t in header.fields
            ]
        made: list[Statement] = []
        for _ in range(self.random.choice((0, 1, 1, 2))):
            wide = self.chance(0.3)
            target = Ref(Type(32), "hdr.i.crc") if wide else Ref(Type(16), "hdr.i.sum")
            usable = [f for f in fields if f.type != BOOL and f.path != target.path]
            data = self.random.sample(usable, self.random.randrange(1, min(6, len(usable))))
            condition: Expression = Const(BOOL, 1)
            if self.chance(0.5):
                condition = Compare("!=", Ref(Type(8), "hdr.i.k"), Const(Type(8), self.small(8)))
            elif self.chance(0.5):
                condition = Valid(self.random.choice(self.h_paths))
            algorithm = self.random.choice(ALGORITHMS if wide else ("csum16", "csum16", "crc16", "xor16"))
            made.append(Checksum(update, self.chance(0.4), condition, data, target, algorithm))
        return Block(made)

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
            if program.verify.statements and self.chance(0.6):
                frame = self.with_checksum(program, frame)
            if self.chance(0.05):
                # Not within `i`: for a header that is not there, BMv2 shows the bits of an older packet.
                frame = frame[: self.random.randrange(program.i.width // 8, len(frame) + 1)]
            frames.append(frame)
        return frames

    def with_checksum(self, program: GeneratedProgram, frame: bytes) -> bytes:
        """The frame with the value that the last verify_checksum() expects. Its target lies at the start of `i`."""
        checksum = program.verify.statements[-1]
        assert isinstance(checksum, Checksum)
        env = Evaluator(program).parsed(Round(frame, {}, NORMAL))
        at, size = (3, 4) if checksum.target.type.width == 32 else (1, 2)
        value = checksum.target.type.wrap(checksum.value(env))
        return frame[:at] + value.to_bytes(size, "big") + frame[at + size :]
