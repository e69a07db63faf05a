# SPDX-License-Identifier: Apache-2.0
"""Reads and writes registers over P4Runtime, which p4runtime-shell does not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_p4runtime.cells import read_registers
from inagg_p4runtime.names import called


@dataclass(frozen=True)
class Register:
    """A register of a program: `cells` values of `bits` bits."""

    name: str
    id: int
    cells: int
    bits: int
    signed: bool

    def entry(self, index: int | None = None) -> p4runtime_pb2.RegisterEntry:
        """The message for one cell, or for all. Raises IndexError if there is no such cell."""
        if index is not None and not 0 <= index < self.cells:
            raise IndexError(f"register {self.name} has the indices 0 to {self.cells - 1}, not {index}")
        entry = p4runtime_pb2.RegisterEntry(register_id=self.id)
        if index is not None:
            entry.index.index = index
        return entry

    def encode(self, value: int) -> bytes:
        """A value as P4Runtime has it. Raises ValueError if it needs more bits."""
        lowest, highest = (-(1 << self.bits - 1), 1 << self.bits - 1) if self.signed else (0, 1 << self.bits)
        if not lowest <= value < highest:
            kind = "int" if self.signed else "bit"
            raise ValueError(f"{value} is not a value of register {self.name}, a {kind}<{self.bits}>")
        return (value % (1 << self.bits)).to_bytes((self.bits + 7) // 8, "big")

    def decode(self, encoded: bytes) -> int:
        """The value of what P4Runtime has."""
        value = int.from_bytes(encoded, "big")
        return value - (1 << self.bits) if self.signed and value >> self.bits - 1 else value


def registers_of(p4info: p4info_pb2.P4Info) -> list[Register]:
    """The registers of a program."""
    return [_register(info) for info in p4info.registers]


def _register(info: p4info_pb2.Register) -> Register:
    bitstring = info.type_spec.bitstring
    signed = bitstring.HasField("int")
    bits = bitstring.int.bitwidth if signed else bitstring.bit.bitwidth
    return Register(info.preamble.name, info.preamble.id, info.size, bits, signed)


def find(registers: Sequence[Register], name: str) -> Register:
    """The register of a name, or of the end of one, such as `pool` for `Ingress.pool`.

    Raises KeyError if there is none, or more than one.
    """
    found = called(registers, name, lambda each: each.name)
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.name for each in found or registers) or "none"
    if found:
        raise KeyError(f"{name} is ambiguous: {names}")
    raise KeyError(f"the program has no register {name}; there are: {names}")


def read(
    channel: Any, device_id: int, entry: p4runtime_pb2.RegisterEntry, **call: Any
) -> Iterator[tuple[int, bytes]]:
    """(index, value) of the cells of an entry, in order. Raises grpc.RpcError.

    channel: a grpc.Channel; call: further arguments of P4Runtime's Read.
    """
    cells = read_registers(channel, device_id, [entry], **call)
    return ((cell.index, cell.value) for cell in cells)
