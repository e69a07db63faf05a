# SPDX-License-Identifier: Apache-2.0
"""Values as they are typed: numbers, addresses, matches; and as they are shown, in hexadecimal with all bytes."""

import ipaddress
from collections.abc import Sequence

from p4.v1 import p4runtime_pb2

from inagg_switch.console.context import CommandError
from inagg_switch.p4runtime.entities.entries import MatchTuple
from inagg_switch.p4runtime.entities.names import Action, Field, MatchKind, Table
from inagg_switch.p4runtime.entities.values import byte_width, canonical

_IPV4_BITS, _MAC_BITS, _IPV6_BITS = 32, 48, 128


class _ValueError(Exception):
    pass


def _number(text: str, bits: int) -> int:
    """A value: decimal, 0x..., 0b..., or an address if it has the width of one. Raises _ValueError."""
    value = _address(text, bits)
    if value is None:
        try:
            value = int(text, 0)
        except ValueError:
            raise _ValueError("Invalid input, could not cast to integer, try in hex with 0x prefix") from None
    if value < 0 or value.bit_length() > bits:
        raise _ValueError(
            f"Parameter is too large for {bits} bits" if value >= 0 else "Parameter is negative"
        )
    return value


def _address(text: str, bits: int) -> int | None:
    try:
        if bits == _IPV4_BITS and "." in text:
            return int(ipaddress.IPv4Address(text))
        if bits == _IPV6_BITS and ":" in text:
            return int(ipaddress.IPv6Address(text))
    except ValueError:
        raise _ValueError(f"Invalid IPv{4 if bits == _IPV4_BITS else 6} address") from None
    if bits == _MAC_BITS and ":" in text:
        parts = text.split(":")
        try:
            return (
                int.from_bytes(bytes(int(part, 16) for part in parts), "big") if len(parts) == 6 else int("")
            )
        except ValueError:
            raise _ValueError("Invalid MAC address") from None
    return None


def _bytes(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def parse_params(action: Action, words: Sequence[str], name: str) -> p4runtime_pb2.Action:
    """An action with its parameters."""
    if len(words) != len(action.params):
        raise CommandError(f"Error: Action {name} needs {len(action.params)} parameters")
    out = p4runtime_pb2.Action(action_id=action.id)
    for param, word in zip(action.params, words, strict=True):
        try:
            out.params.add(param_id=param.id, value=_bytes(_number(word, param.bit_width)))
        except _ValueError as error:
            raise CommandError(f"Invalid runtime data: Error while parsing {word} - {error}") from None
    return out


def parse_match(fields: Sequence[Field], words: Sequence[str]) -> list[p4runtime_pb2.FieldMatch]:
    """The matches of a key, as many as there are words; those that match anything are left out, as P4Runtime asks."""
    found = []
    for field, word in zip(fields, words, strict=True):
        try:
            match = _match(field, word)
        except _ValueError as error:
            raise CommandError(f"Invalid match key: Error while parsing {word} - {error}") from None
        if match is not None:
            match.field_id = field.id
            found.append(match)
    return found


def _match(field: Field, word: str) -> p4runtime_pb2.FieldMatch | None:
    bits, out = field.bit_width, p4runtime_pb2.FieldMatch()
    every = (1 << bits) - 1
    if field.kind is MatchKind.EXACT:
        out.exact.value = _bytes(_number(word, bits))
    elif field.kind is MatchKind.LPM:
        value, length = _two(word, "/", "prefix and length")
        if not length.isdigit() or int(length) > bits:
            raise _ValueError(f"the prefix length is not in 0 to {bits}")
        mask = every ^ (every >> int(length))
        out.lpm.prefix_len = int(length)
        out.lpm.value = _bytes(_number(value, bits) & mask)
        return out if mask else None
    elif field.kind is MatchKind.RANGE:
        low, high = (_number(one, bits) for one in _two(word, "->", "range start and range end"))
        if low > high:
            raise _ValueError("the start is above the end")
        out.range.low, out.range.high = _bytes(low), _bytes(high)
        return out if (low, high) != (0, every) else None
    else:
        value, given = _two(word, "&&&", "key and mask")
        mask = _number(given, bits)
        number = _number(value, bits) & mask
        if mask == 0:
            return None
        if field.kind is MatchKind.TERNARY:
            out.ternary.value, out.ternary.mask = _bytes(number), _bytes(mask)
        elif mask == every:
            out.optional.value = _bytes(number)
        else:
            raise _ValueError("the match kind is optional: the mask has all bits or none")
    return out


def _two(word: str, separator: str, what: str) -> tuple[str, str]:
    parts = word.split(separator)
    if len(parts) != 2:
        raise _ValueError(f"use '{separator}' to separate {what}")
    return parts[0], parts[1]


def split_params(action: Action, params: bytes) -> list[bytes]:
    """The parameters of an entry, each with all bytes of its width."""
    found, place = [], 0
    for param in action.params:
        end = place + byte_width(param.bit_width)
        found.append(params[place:end])
        place = end
    return found


def with_colons(value: bytes) -> str:
    """Bytes as table_add shows them."""
    return ":".join(f"{byte:02x}" for byte in value)


def full(value: bytes, bits: int) -> bytes:
    """P4Runtime's shortest form of a number, with all bytes of its width."""
    return canonical(value).rjust(byte_width(bits), b"\0")


def shown_match(field: Field, match: MatchTuple) -> str:
    """A match as table_dump shows it."""
    value, other, length = match
    size = byte_width(field.bit_width)
    every = ((1 << field.bit_width) - 1).to_bytes(size, "big")
    if field.kind is MatchKind.EXACT:
        return (value or b"").hex()
    if field.kind is MatchKind.LPM:
        return f"{(value or bytes(size)).hex()}/{length}"
    if field.kind is MatchKind.RANGE:
        return f"{(value or bytes(size)).hex()} -> {(other or every).hex()}"
    mask = bytes(size) if value is None else other if other is not None else every
    return f"{(value or bytes(size)).hex()} &&& {mask.hex()}"


def kind_name(field: Field) -> str:
    """BMv2's name of a match kind; it has no optional one."""
    return "ternary" if field.kind is MatchKind.OPTIONAL else field.kind.value


def table_kind(table: Table) -> str:
    """The match kind of a whole table, as BMv2 names it."""
    kinds = [kind_name(field) for field in table.fields]
    return next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact")
