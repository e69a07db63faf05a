# SPDX-License-Identifier: Apache-2.0
"""Finds P4Info objects by name, and converts Python values to the bytes of the ABI and back."""

import ctypes
import difflib
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from p4.config.v1 import p4info_pb2 as pb
from p4.config.v1.p4types_pb2 import P4BitstringLikeTypeSpec, P4DataTypeSpec

from inagg_p4runtime.names import called
from inagg_switch.errors import EntryError, UnknownName
from inagg_switch.program.abi import Match
from inagg_switch.program.arguments import several, shown
from inagg_switch.program.externs import MatchTuple, key_of

MatchValue = int | bytes | tuple[int | bytes, int | bytes] | None


class _Named(Protocol):
    @property
    def preamble(self) -> pb.Preamble: ...


T = TypeVar("T", bound=_Named)


def find(objects: Iterable[T], name: str, kind: str, owner: str = "") -> T:
    """The object with a full name, or the only one whose last parts, from a dot on, are `name`. Raises UnknownName.

    owner: names the owner of the objects in error messages.
    """
    if not isinstance(name, str):
        raise UnknownName(f"{kind}: expected a name, not {shown(name)}")
    listed = list(objects)
    found = called(listed, name, lambda one: one.preamble.name)
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.preamble.name for one in found)
        raise UnknownName(f"{kind} `{name}`{owner and f' of {owner}'} is ambiguous: {names}")
    names_known = _names_known(name, [one.preamble.name for one in listed])
    raise UnknownName(f"{owner and f'{owner} has '}no {kind} `{name}`; {names_known}")


def _names_known(name: str, known: Sequence[str]) -> str:
    """A hint for an unknown name: the probably intended one, else all names."""
    endings = {each.rpartition(".")[2]: each for each in known} | {each: each for each in known}
    if close := difflib.get_close_matches(name, endings, 1):
        return f"did you mean `{endings[close[0]]}`?"
    return f"there are: {', '.join(known) or 'none'}"


def encode(value: int | bytes, width: int, what: str) -> bytes:
    """A value as (width + 7) / 8 big-endian bytes. Raises EntryError if it does not fit."""
    if isinstance(value, bytes | bytearray):
        number = int.from_bytes(value, "big")
    else:
        try:
            number = operator.index(value)
        except TypeError:
            raise EntryError(f"{what}: expected a whole number or bytes, not {shown(value)}") from None
    if not 0 <= number < 1 << width:
        raise EntryError(f"{what}: {shown(number)} does not fit bit<{width}>")
    return number.to_bytes((width + 7) // 8, "big")


def encode_match(table: pb.Table, match: Mapping[str, MatchValue]) -> "ctypes.Array[Match]":
    """An isw_match for each field; omitted fields match anything. Raises UnknownName or EntryError."""
    return key_of(match_tuples(table, match))


def match_tuples(table: pb.Table, match: Mapping[str, MatchValue]) -> list[MatchTuple]:
    """encode_match() in the form of the native calls."""
    if not isinstance(match, Mapping):
        raise EntryError(f"table {table.preamble.name}: expected match values by key, not {shown(match)}")
    return fields_match(table.match_fields, match, f"table {table.preamble.name}")


def fields_match(
    fields: Sequence[pb.MatchField], match: MatchValue | Mapping[str, MatchValue], owner: str
) -> list[MatchTuple]:
    """match_tuples() for any list of fields. A match that is not a mapping is the value of the only field."""
    if not isinstance(match, Mapping):
        if len(fields) != 1:
            raise EntryError(f"{owner} has {len(fields)} fields: give the values by name")
        match = {fields[0].name: match}
    unknown = set(match) - {f.name for f in fields}
    if unknown:
        name = min(map(str, unknown))
        raise UnknownName(f"{owner} has no key `{name}`; {_names_known(name, [f.name for f in fields])}")
    return [_field(field, match.get(field.name), owner) for field in fields]


def _field(field: pb.MatchField, value: MatchValue, owner: str) -> MatchTuple:
    what = f"key `{field.name}` of {owner}"
    kind, width = field.match_type, field.bitwidth
    if value is None:
        if kind == pb.MatchField.EXACT:
            raise EntryError(f"{what} is exact and needs a value")
        return None, None, 0
    if kind in (pb.MatchField.EXACT, pb.MatchField.OPTIONAL):
        if isinstance(value, tuple | list):
            raise EntryError(f"{what} takes one value, not {shown(value)}")
        return encode(value, width, what), None, 0
    if isinstance(value, tuple):
        first, second = several(value, what, f"one value or ({_PAIRS[kind]})", 2)
    else:
        first, second = value, _all_of(kind, value, width)
    data = encode(first, width, what)
    if kind == pb.MatchField.LPM:
        prefix = int.from_bytes(encode(second, 32, f"{what}, prefix length"), "big")
        if prefix > width:
            raise EntryError(f"{what}: a prefix of {prefix} bits does not fit bit<{width}>")
        return _masked(data, -1 << width - prefix), None, prefix
    other = encode(second, width, what)
    if kind == pb.MatchField.TERNARY:
        return _masked(data, int.from_bytes(other, "big")), other, 0
    if data > other:
        raise EntryError(f"{what}: from {shown(first)} to {shown(second)} is no range")
    return data, other, 0


def _masked(data: bytes, mask: int) -> bytes:
    """Clear the bits outside the mask: 10.0.1.1/24 is 10.0.1.0/24, as in BMv2. (P4Runtime refuses it.)"""
    return (int.from_bytes(data, "big") & mask).to_bytes(len(data), "big")


_PAIRS = {
    pb.MatchField.LPM: "value, prefix length",
    pb.MatchField.TERNARY: "value, mask",
    pb.MatchField.RANGE: "low, high",
}


def _all_of(kind: int, value: int | bytes, width: int) -> int | bytes:
    """The second number with which a key matches only one value."""
    if kind == pb.MatchField.LPM:
        return width
    return (1 << width) - 1 if kind == pb.MatchField.TERNARY else value


def split_fields(layout: pb.P4Info, spec: P4DataTypeSpec, data: bytes) -> dict[str, int]:
    """The fields of a digest's data by name; of a tuple by position; a single value has the name "value"."""
    fields: dict[str, int] = {}
    for name, width in field_widths(layout, spec):
        size = (width + 7) // 8
        fields[name], data = int.from_bytes(data[:size], "big"), data[size:]
    return fields


def field_widths(p4info: pb.P4Info, spec: P4DataTypeSpec) -> list[tuple[str, int]]:
    """Name and bits of each field of a digest or value set, in order; nested fields are "outer.inner"."""
    kind = spec.WhichOneof("type_spec")
    types = p4info.type_info
    if kind == "struct":
        return _members(p4info, types.structs[spec.struct.name].members)
    if kind == "header":
        members = types.headers[spec.header.name].members
        return [(m.name, _bits(m.type_spec)) for m in members]
    if kind == "tuple":
        parts = [(str(i), field_widths(p4info, m)) for i, m in enumerate(spec.tuple.members)]
        return [(place if name == "value" else f"{place}.{name}", w) for place, ws in parts for name, w in ws]
    return [("value", _bits(spec.bitstring) if kind == "bitstring" else {"bool": 1}.get(kind or "", 32))]


def _members(p4info: pb.P4Info, members: Iterable[Any]) -> list[tuple[str, int]]:
    found = []
    for member in members:
        for name, width in field_widths(p4info, member.type_spec):
            found.append((member.name if name == "value" else f"{member.name}.{name}", width))
    return found


def _bits(spec: P4BitstringLikeTypeSpec) -> int:
    return int(spec.bit.bitwidth or spec.int.bitwidth or spec.varbit.max_bitwidth)


def encode_params(action: pb.Action, params: Mapping[str, int | bytes]) -> bytes:
    """The concatenated parameters. Raises UnknownName or EntryError."""
    names = [p.name for p in action.params]
    if not isinstance(params, Mapping):
        raise EntryError(f"action {action.preamble.name}: expected parameters by name, not {shown(params)}")
    unknown = set(params) - set(names)
    if unknown:
        name = min(map(str, unknown))
        raise UnknownName(
            f"action {action.preamble.name} has no parameter `{name}`; {_names_known(name, names)}"
        )
    missing = [n for n in names if n not in params]
    if missing:
        raise EntryError(f"parameter `{missing[0]}` of action {action.preamble.name} is not given")
    return b"".join(
        encode(params[p.name], p.bitwidth, f"parameter `{p.name}` of action {action.preamble.name}")
        for p in action.params
    )


_ORDERED = {
    "ternary": pb.MatchField.TERNARY,
    "range": pb.MatchField.RANGE,
    "optional": pb.MatchField.OPTIONAL,
}


def check_priority(table: pb.Table, priority: int, what: str) -> None:
    """Raise EntryError for a priority in a table without priorities, or a missing one in a table that needs one."""
    ordered = [
        kind for kind, type_ in _ORDERED.items() if any(f.match_type == type_ for f in table.match_fields)
    ]
    if ordered and priority == 0:
        raise EntryError(
            f"{what}: the table has {' and '.join(ordered)} keys, so it needs a priority above 0"
        )
    if priority and not ordered:
        raise EntryError(f"{what}: priority {priority} means nothing in a table of exact and lpm keys")
