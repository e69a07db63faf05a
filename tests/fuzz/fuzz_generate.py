# SPDX-License-Identifier: Apache-2.0
"""Random valid programs and packets, the same for the same seed."""

from fuzz_expressions import BOOL, Compare, Const, Expression, Ref, Type, Valid
from fuzz_externs import ALGORITHMS, Checksum, Register, VarbitRef
from fuzz_generate_parsers import ParserGenerator
from fuzz_generate_statements import StatementGenerator
from fuzz_generate_tables import TableGenerator
from fuzz_headers import Header, Varbit
from fuzz_program import METADATA, GeneratedProgram
from fuzz_statements import Block, Statement


class Generator(StatementGenerator, TableGenerator, ParserGenerator):
    def program(self) -> GeneratedProgram:
        self.i = Header("i_t", self.header("i_t", self.random.randrange(4, 9)).fields)
        self.i.fields[:0] = [("k", Type(8)), ("sum", Type(16)), ("crc", Type(32))]
        self.h = self.header("h_t", self.random.randrange(1, 4))
        self.s = Header("s_t", [("n", Type(8)), ("v", Type(16))])
        first = Type(self.random.randrange(1, 20))
        self.v = Header("v_t", [("first", first), ("data", Varbit(64)), ("last", Type(-first.width % 8 + 8))])
        parser = self.parser()
        variables = [
            (f"meta.v{n}", t, self.constant(t).constant)
            for n, t in enumerate([Type(8), *(self.type() for _ in range(self.random.randrange(3, 8)))])
        ]
        self.scope = (
            [Ref(t, n) for n, t, _ in variables] + [Ref(t, n) for n, t in METADATA.items()] + self.i_fields()
        )
        widths = [r.type.width for r in self.scope if r.type != BOOL and not r.type.signed]
        for _ in range(2):
            size = self.random.randrange(4, 9)
            self.registers.append(Register(self.name("register"), self.random.choice(widths), size))
        for _ in range(self.random.randrange(3)):
            self.functions.append(self.function())
        self.headers_seen = True
        table_actions = [self.action(True) for _ in range(self.random.randrange(1, 4))]
        direct = [self.action(False) for _ in range(self.random.randrange(3))]
        self.actions = direct
        self.tables = [self.table(table_actions) for _ in range(self.random.randrange(4))]
        body = Block([self.statement(3, "control") for _ in range(self.random.randrange(4, 12))])
        return GeneratedProgram(
            self.i, self.h, self.s, self.v, parser, variables, self.functions, [*table_actions, *direct], self.tables,
            self.registers, self.checksums(update=False), self.checksums(update=True), body,
        )  # fmt: skip

    def checksums(self, *, update: bool) -> Block:
        """Over fields of any header, into fields of `i`."""
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
                # Not within `i`: BMv2 shows an older packet's bits in a header that is not there.
                frame = frame[: self.random.randrange(program.i.width // 8, len(frame) + 1)]
            frames.append(frame)
        return frames

    def with_checksum(self, program: GeneratedProgram, frame: bytes) -> bytes:
        """With what the last verify_checksum() wants in its target, which lies at the start of `i`."""
        checksum = program.verify.statements[-1]
        assert isinstance(checksum, Checksum)
        env = program.start(frame, {})
        program.parser.run(env)
        at, size = (3, 4) if checksum.target.type.width == 32 else (1, 2)
        value = checksum.target.type.wrap(checksum.value(env))
        return frame[:at] + value.to_bytes(size, "big") + frame[at + size :]
