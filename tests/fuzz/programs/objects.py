# SPDX-License-Identifier: Apache-2.0
"""Registers, counters and meters of generated programs, which keep their state from packet to packet; digests."""

from collections import Counter as Tally
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.programs.expressions import Environment, Expression, Ref, Type
from tests.fuzz.programs.pipeline import LENGTH
from tests.fuzz.programs.statements import Statement
from tests.fuzz.programs.types import Struct

LASTING = "$lasting"  # in the environment


@dataclass
class Lasting:
    """The state that remains from packet to packet, by (name, index). `digests`: those sent so far, (name, fields)."""

    registers: dict[tuple[str, int], Any] = field(default_factory=dict)
    packets: Tally[tuple[str, int]] = field(default_factory=Tally)
    bytes: Tally[tuple[str, int]] = field(default_factory=Tally)
    spent: Tally[tuple[str, int]] = field(default_factory=Tally)
    digests: list[tuple[str, dict[str, int]]] = field(default_factory=list)

    def count(self, name: str, index: int, length: int) -> None:
        self.packets[name, index] += 1
        self.bytes[name, index] += length

    def counted(self, name: str, index: int) -> tuple[int, int]:
        return self.packets[name, index], self.bytes[name, index]


@dataclass
class Register:
    name: str
    width: int
    size: int

    def p4(self) -> str:
        return f"register<bit<{self.width}>>({self.size}) {self.name};"


@dataclass
class ReadRegister(Statement):
    """`index` is a bit<32>; a read beyond the end leaves the target unchanged."""

    register: Register
    target: Ref
    index: Expression

    def p4(self) -> list[str]:
        return [f"{self.register.name}.read({self.target.p4()}, {self.index.p4()});"]

    def run(self, env: Environment) -> None:
        index = self.index.value(env)
        if index < self.register.size:
            env[self.target.path] = env[LASTING].registers.get((self.register.name, index), 0)


@dataclass
class WriteRegister(Statement):
    register: Register
    index: Expression
    value: Expression

    def p4(self) -> list[str]:
        return [f"{self.register.name}.write({self.index.p4()}, {self.value.p4()});"]

    def run(self, env: Environment) -> None:
        index = self.index.value(env)
        value = self.value.value(env)
        if index < self.register.size:
            env[LASTING].registers[self.register.name, index] = value


@dataclass
class Counter:
    name: str
    size: int

    def p4(self) -> str:
        return f"counter({self.size}, CounterType.packets_and_bytes) {self.name};"


@dataclass
class Count(Statement):
    """`index` is a bit<32>."""

    counter: Counter
    index: Expression

    def p4(self) -> list[str]:
        return [f"{self.counter.name}.count({self.index.p4()});"]

    def run(self, env: Environment) -> None:
        index = self.index.value(env)
        if index < self.counter.size:
            env[LASTING].count(self.counter.name, index, env[LENGTH])


@dataclass
class Meter:
    """`bursts`: (committed, peak) of each cell, in packets; None for a cell that is not configured. The rates are 0."""

    name: str
    bursts: list[tuple[int, int] | None]

    def p4(self) -> str:
        return f"meter({len(self.bursts)}, MeterType.packets) {self.name};"


@dataclass
class Execute(Statement):
    """`index` is a bit<32>."""

    meter: Meter
    index: Expression
    target: Ref

    def p4(self) -> list[str]:
        return [f"{self.meter.name}.execute_meter({self.index.p4()}, {self.target.p4()});"]

    def run(self, env: Environment) -> None:
        index = self.index.value(env)
        if index >= len(self.meter.bursts):
            return
        bursts = self.meter.bursts[index]
        colour = 0
        if bursts is not None:
            colour = 2 if self._spent(env, "peak", index, bursts[1]) else 0
            if colour == 0 and self._spent(env, "committed", index, bursts[0]):
                colour = 1
        env[self.target.path] = self.target.type.wrap(colour)

    def _spent(self, env: Environment, bucket: str, index: int, burst: int) -> bool:
        cell = f"{self.meter.name} {bucket}", index
        if env[LASTING].spent[cell] >= burst:
            return True
        env[LASTING].spent[cell] += 1
        return False


DIGEST = "$digest"  # in the environment: the last digest() of a pass


@dataclass
class Digest(Statement):
    struct: Struct
    parts: list[Expression]

    def p4(self) -> list[str]:
        return [f"digest<{self.struct.name}>(1, {{ {', '.join(e.p4() for e in self.parts)} }});"]

    def run(self, env: Environment) -> None:
        fields = {
            name: _bits(type_, part.value(env))
            for (name, type_), part in zip(self.struct.fields, self.parts, strict=True)
        }
        env[DIGEST] = self.struct.name, fields


def _bits(type_: Type, value: Any) -> int:
    return type_.unsigned(value)
