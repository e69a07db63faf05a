# SPDX-License-Identifier: Apache-2.0
"""A program's counters, registers and meters as Python sequences."""

import ctypes
import errno
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch.errors import EntryError
from inagg_switch.program.arguments import several, shown, whole
from inagg_switch.program.externs import MeterConfig
from inagg_switch.program.running import Program
from inagg_switch.program.values import encode

_REASONS = {
    errno.ENOENT: "it is not there",
    errno.EEXIST: "an equal entry is there",
    errno.ENOSPC: "it is full",
    errno.EINVAL: "the match, priority or parameters do not fit",
    errno.EPERM: "the program declares it const, or the action @defaultonly",
    errno.EBUSY: "it is in use",
    errno.ENOMEM: "out of memory",
}


def check(result: int, what: str) -> None:
    """Raise EntryError for a refusal by the program (runtime/program.h)."""
    if result != 0:
        raise EntryError(f"{what}: {_REASONS.get(-result, os.strerror(-result))}")


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise OSErrors of a block as EntryError."""
    try:
        yield
    except OSError as error:
        check(-(error.errno or 0), what)


class OutsideError(EntryError, IndexError):
    """An index out of range. It is an IndexError too, which ends a `for` loop over an array."""


def index_of(index: int, size: int) -> int:
    """A valid index as an int. Raises EntryError for another type, OutsideError out of range."""
    try:
        number = operator.index(index)
    except TypeError:
        raise EntryError(f"an index is one whole number, not {shown(index)}") from None
    if not 0 <= number < size:
        raise OutsideError(f"index {shown(number)} is outside 0..{size - 1}")
    return number


class Counter:
    """An indexed counter: counter[i] is (packets, bytes)."""

    def __init__(self, program: Program, info: pb.Counter) -> None:
        self._program = program
        self._info = info

    def __len__(self) -> int:
        return int(self._info.size)

    def __getitem__(self, index: int) -> tuple[int, int]:
        index = index_of(index, len(self))
        packets, count = ctypes.c_uint64(), ctypes.c_uint64()
        with self._program.locked() as (api, handle):
            result = api.counter_read(handle, self._info.preamble.id, index, packets, count)
        check(result, f"counter {self._info.preamble.name}[{index}]")
        return packets.value, count.value

    def __setitem__(self, index: int, value: tuple[int, int]) -> None:
        index = index_of(index, len(self))
        what = f"counter {self._info.preamble.name}[{index}]"
        numbers = [whole(n, what, 1 << 64) for n in several(value, what, "(packets, bytes)", 2)]
        with self._program.locked() as (api, handle):
            result = api.counter_write(handle, self._info.preamble.id, index, *numbers)
        check(result, what)


class Register:
    """A register array: register[i] reads and writes numbers (int<W> in two's complement)."""

    def __init__(self, program: Program, info: pb.Register) -> None:
        self._program = program
        self._info = info
        bits = info.type_spec.bitstring
        self._width = bits.bit.bitwidth or bits.int.bitwidth

    def __len__(self) -> int:
        return int(self._info.size)

    def __getitem__(self, index: int) -> int:
        index = index_of(index, len(self))
        buffer = ctypes.create_string_buffer((self._width + 7) // 8)
        with self._program.locked() as (api, handle):
            result = api.register_read(handle, self._info.preamble.id, index, buffer)
        check(result, f"register {self._info.preamble.name}[{index}]")
        return int.from_bytes(buffer.raw, "big")

    def __setitem__(self, index: int, value: int) -> None:
        index = index_of(index, len(self))
        what = f"register {self._info.preamble.name}[{index}]"
        data = encode(value, self._width, what)
        with self._program.locked() as (api, handle):
            result = api.register_write(handle, self._info.preamble.id, index, data)
        check(result, what)


class Meter:
    """An indexed meter: meter[i] is a MeterConfig, or None: every packet is green."""

    def __init__(self, program: Program, info: pb.Meter) -> None:
        self._program = program
        self._info = info

    def __len__(self) -> int:
        return int(self._info.size)

    def __getitem__(self, index: int) -> MeterConfig | None:
        return self._program.externs.meter_read(self._info.preamble.id, index_of(index, len(self)))

    def __setitem__(self, index: int, value: "tuple[int, int, int, int] | None") -> None:
        """(cir, cburst, pir, pburst)"""
        index = index_of(index, len(self))
        what = f"meter {self._info.preamble.name}[{index}]"
        config = meter_config(value, what)
        with refusals(what):
            self._program.externs.meter_write(self._info.preamble.id, index, 1, config)


def meter_config(value: tuple[int, int, int, int] | None, what: str) -> MeterConfig | None:
    """The configuration of a meter. Raises EntryError if it is invalid."""
    if value is None:
        return None
    rates = several(value, what, "(cir, cburst, pir, pburst) or None", 4)
    config = MeterConfig(*(whole(rate, what, 1 << 64) for rate in rates))
    if config.cir > config.pir:
        raise EntryError(f"{what}: cir {config.cir} is above pir {config.pir}")
    return config
