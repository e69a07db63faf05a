# SPDX-License-Identifier: Apache-2.0
"""Checks arguments before ctypes truncates or refuses them. An error names the given and the expected value."""

import operator
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

from inagg_switch.errors import EntryError, SwitchError

PORTS = 1 << 9  # v1model: a port is bit<9>
_LONGEST = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value for an error message, cut if it is long."""
    try:
        text = hex(value) if isinstance(value, int) and value.bit_length() > 128 else repr(value)
    except Exception:  # a number in it is too long for Python to print, or its class has a broken __repr__
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def whole(value: object, what: str, limit: int = 1 << 32) -> int:
    """An integer of any type from 0 to `limit` - 1. Raises EntryError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise EntryError(f"{what}: expected a whole number, not {shown(value)}") from None
    if not 0 <= number < limit:
        raise EntryError(f"{what}: {shown(number)} is out of range, expected 0 to {shown(limit - 1)}")
    return number


def several(values: object, what: str, expected: str, count: int | None = None) -> list[Any]:
    """The items of a list or another iterable, exactly `count` if given. Raises EntryError."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | bytearray):
        found = list(values)
        if count is None or len(found) == count:
            return found
    raise EntryError(f"{what}: expected {expected}, not {shown(values)}")


def replica_pairs(values: object, what: str) -> list[tuple[int, int]]:
    """(port, replication id) pairs. Raises EntryError."""
    found = []
    for pair in several(values, what, "a list of (port, replication id)"):
        port, rid = several(pair, what, "pairs of port and replication id", 2)
        found.append((whole(port, f"{what}, port", PORTS), whole(rid, f"{what}, replication id", 1 << 16)))
    return found


def function(value: Callable[..., Any] | None, what: str) -> None:
    """Raise SwitchError unless the value is callable or None."""
    if value is not None and not callable(value):
        raise SwitchError(f"{what}: expected a function or None, not {shown(value)}")


def text(value: object, what: str) -> None:
    """Raise SwitchError unless the value is a str."""
    if not isinstance(value, str):
        raise SwitchError(f"{what} is text, not {shown(value)}")


def compiler_arguments(path: object, defines: object, include_paths: object) -> None:
    """Raise SwitchError if an argument for the compiler has a wrong type."""
    for one in (path, *several(include_paths, "include_paths", "a list of folders")):
        if not isinstance(one, str | Path):
            raise SwitchError(f"a file or folder is given as text or a Path, not {shown(one)}")
    if defines is None:
        return
    if not isinstance(defines, Mapping):
        raise SwitchError(f"defines: expected a mapping of names to texts, not {shown(defines)}")
    for name, value in defines.items():
        text(name, "the name of a macro")
        text(value, f"the macro {name}")


def seed_bits(seed: object) -> int:
    """The low 64 bits of a seed, which is any integer. Raises SwitchError."""
    try:
        return operator.index(seed) & (1 << 64) - 1  # type: ignore[arg-type]
    except TypeError:
        raise SwitchError(f"the seed is a whole number, not {shown(seed)}") from None


def microseconds(time: object) -> int:
    """A time in seconds as integer microseconds. Raises SwitchError."""
    if type(time) is not float and not isinstance(time, SupportsFloat | SupportsIndex):  # the latter is slow
        raise SwitchError(f"the time is a number of seconds, not {shown(time)}")
    try:
        scaled = float(time) * 1e6
    except (TypeError, OverflowError):
        scaled = -1.0
    if not 0 <= scaled < 1 << 64:
        raise SwitchError(f"the time {shown(time)} is out of range")
    return int(scaled)


def frame_bytes(frame: object) -> bytes:
    """A frame as bytes. Raises SwitchError for another type."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise SwitchError(f"a frame is bytes, not {shown(frame)}")
    return bytes(frame)
