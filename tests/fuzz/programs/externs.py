# SPDX-License-Identifier: Apache-2.0
"""Externs of generated programs: hash() and checksums. The algorithms are written down once more here, bit
by bit, by the definition of each."""

from dataclasses import dataclass
from typing import Any

from tests.fuzz.programs.expressions import Environment, Expression, Ref
from tests.fuzz.programs.headers import Varbit, bits_of
from tests.fuzz.programs.parsers import PACKET
from tests.fuzz.programs.statements import Statement


def _crc(data: bytes, polynomial: int, width: int, first: int) -> int:
    """Least significant bit first; `polynomial` reversed."""
    rest = first
    for byte in data:
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (polynomial if rest & 1 else 0)
    return rest ^ first


def _words(data: bytes) -> list[int]:
    padded = data + b"\0" * (len(data) % 2)
    return [padded[i] << 8 | padded[i + 1] for i in range(0, len(padded), 2)]


def digest_of(algorithm: str, bits: str, payload: bytes = b"") -> int:
    """The value of a HashAlgorithm; zero bits fill the last byte before the payload."""
    whole = bits + "0" * (-len(bits) % 8)
    data = int("1" + whole, 2).to_bytes(len(whole) // 8 + 1, "big")[1:] + payload
    if algorithm in ("crc32", "crc32_custom"):
        return _crc(data, 0xEDB88320, 32, 0xFFFFFFFF)
    if algorithm in ("crc16", "crc16_custom"):
        return _crc(data, 0xA001, 16, 0)
    if algorithm == "identity":
        return int.from_bytes(data[:8], "big")
    if algorithm == "xor16":
        value = 0
        for word in _words(data):
            value ^= word
        return value
    assert algorithm == "csum16"
    total = sum(_words(data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


ALGORITHMS = ("crc32", "crc32_custom", "crc16", "crc16_custom", "identity", "xor16", "csum16")


@dataclass
class Hash(Statement):
    """hash(): base + value % maximum, in the target's width."""

    target: Ref
    algorithm: str
    base: int
    data: list[Expression]
    maximum: int

    def p4(self) -> list[str]:
        data = ", ".join(e.p4() for e in self.data)
        call = f"HashAlgorithm.{self.algorithm}, 16w{self.base}, {{ {data} }}, 32w{self.maximum}"
        return [f"hash({self.target.p4()}, {call});"]

    def run(self, env: Environment) -> None:
        value = digest_of(self.algorithm, "".join(bits_of(e.type, e.value(env)) for e in self.data))
        env[self.target.path] = self.target.type.wrap(self.base + value % self.maximum)


@dataclass
class Checksum(Statement):
    """verify_checksum() or update_checksum(), also with payload. Fields of invalid headers are left out."""

    update: bool
    payload: bool
    condition: Expression
    data: list[Ref]
    target: Ref
    algorithm: str

    def p4(self) -> list[str]:
        name = f"{'update' if self.update else 'verify'}_checksum{'_with_payload' if self.payload else ''}"
        data = ", ".join(e.p4() for e in self.data)
        end = f"{self.target.p4()}, HashAlgorithm.{self.algorithm}"
        return [f"{name}({self.condition.p4()}, {{ {data} }}, {end});"]

    def value(self, env: Environment) -> int:
        """It may be wider than the target: then nothing in there is right."""
        bits = "".join(bits_of(e.type, e.value(env)) for e in self.data if _there(env, e))
        return digest_of(self.algorithm, bits, env[PACKET].rest() if self.payload else b"")

    def run(self, env: Environment) -> None:
        if not _there(env, self.target) or not self.condition.value(env):
            return
        if self.update:
            env[self.target.path] = self.target.type.wrap(self.value(env))
        elif env[self.target.path] != self.value(env):
            env[CHECKSUM_ERROR] = 1


CHECKSUM_ERROR = "sm.checksum_error"


def _there(env: Environment, ref: Ref) -> bool:
    header, _, _ = ref.path.rpartition(".")
    return bool(env.get(f"{header}.$valid", True))


@dataclass
class VarbitRef(Ref):
    """A varbit field, where a list takes one."""

    type: Varbit

    def value(self, env: Environment) -> Any:
        return env[self.path]
