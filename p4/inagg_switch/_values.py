"""Names to P4Info objects, and Python values to the bytes of the ABI and back."""

import ctypes
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch._abi import Match
from inagg_switch.errors import EntryError, UnknownName

MatchValue = int | bytes | tuple[int, int] | None


class _Named(Protocol):
    @property
    def preamble(self) -> pb.Preamble: ...


T = TypeVar("T", bound=_Named)


def find(objects: Iterable[T], name: str, kind: str) -> T:
    """The object of that full name, or the only one whose name ends in it at a dot. Raises UnknownName."""
    listed = list(objects)
    for one in listed:
        if one.preamble.name == name:
            return one
    found = [one for one in listed if one.preamble.name.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.preamble.name for one in (found or listed)) or "none"
    if found:
        raise UnknownName(f"{kind} `{name}` is ambiguous: {names}")
    raise UnknownName(f"no {kind} `{name}`; there are: {names}")


def encode(value: int | bytes, width: int, what: str) -> bytes:
    """Big-endian in (width + 7) / 8 bytes. Raises EntryError when it does not fit."""
    number = int.from_bytes(value, "big") if isinstance(value, bytes) else int(value)
    if not 0 <= number < 1 << width:
        raise EntryError(f"{what}: {number:#x} does not fit bit<{width}>")
    return number.to_bytes((width + 7) // 8, "big")


def encode_match(table: pb.Table, match: Mapping[str, MatchValue]) -> "ctypes.Array[Match]":
    """One isw_match a field; a field that is not given matches anything."""
    unknown = set(match) - {f.name for f in table.match_fields}
    if unknown:
        names = ", ".join(f.name for f in table.match_fields) or "none"
        raise UnknownName(f"table {table.preamble.name} has no key `{min(unknown)}`; there are: {names}")
    array = (Match * max(1, len(table.match_fields)))()
    for place, field in zip(array, table.match_fields, strict=False):
        _encode_field(place, field, match.get(field.name), table.preamble.name)
    return array


def _encode_field(place: Match, field: pb.MatchField, value: MatchValue, table: str) -> None:
    what = f"key `{field.name}` of table {table}"
    kind = field.match_type
    width = field.bitwidth
    if value is None:
        if kind == pb.MatchField.EXACT:
            raise EntryError(f"{what} is exact and needs a value")
        return
    if kind in (pb.MatchField.EXACT, pb.MatchField.OPTIONAL):
        if isinstance(value, tuple):
            raise EntryError(f"{what} takes one value")
        place.value = encode(value, width, what)
        return
    if not isinstance(value, tuple):
        first, second = (
            value,
            width
            if kind == pb.MatchField.LPM
            else ((1 << width) - 1 if kind == pb.MatchField.TERNARY else value),
        )
    else:
        first, second = value
    number = int.from_bytes(first, "big") if isinstance(first, bytes) else first
    other = int.from_bytes(second, "big") if isinstance(second, bytes) else second
    if kind == pb.MatchField.LPM:
        if not 0 <= other <= width:
            raise EntryError(f"{what}: a prefix of {other} bits does not fit bit<{width}>")
        place.prefix_length = other
    else:
        place.mask_or_high = encode(other, width, what)
    place.value = encode(number, width, what)


def encode_params(action: pb.Action, params: Mapping[str, int | bytes]) -> bytes:
    """The parameters one after the other. Raises UnknownName or EntryError."""
    names = [p.name for p in action.params]
    unknown = set(params) - set(names)
    if unknown:
        raise UnknownName(
            f"action {action.preamble.name} has no parameter `{min(unknown)}`; there are: "
            f"{', '.join(names) or 'none'}"
        )
    missing = [n for n in names if n not in params]
    if missing:
        raise EntryError(f"parameter `{missing[0]}` of action {action.preamble.name} is not given")
    return b"".join(
        encode(params[p.name], p.bitwidth, f"parameter `{p.name}` of action {action.preamble.name}")
        for p in action.params
    )
