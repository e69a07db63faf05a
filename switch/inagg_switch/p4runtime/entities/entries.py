# SPDX-License-Identifier: Apache-2.0
"""Converts table entries between P4Runtime messages and the form of runtime/program.h.

Parsing checks a message against the P4Info. The program checks what depends on the table's contents: whether the entry
exists, whether there is room. All functions that parse raise RequestError.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from inagg_switch._ports import ProgramControl
from inagg_switch.p4runtime.entities.names import Action, Field, MatchKind, Names, Table
from inagg_switch.p4runtime.entities.values import byte_width, canonical, full_width, parse_value
from inagg_switch.p4runtime.errors import Code, RequestError, from_errno, invalid

# As in _ports.pyi: (value, mask or high, prefix length), and
# (match, priority, action id, concatenated parameters, packets, bytes, is const, indirect kind and id, last hit (us),
# meter).
MatchTuple = tuple[bytes | None, bytes | None, int]
EntryTuple = tuple[
    list[MatchTuple], int, int, bytes, int, int, bool, int, int, int, tuple[int, int, int, int] | None
]

_DONT_CARE: MatchTuple = (None, None, 0)

MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class Key:
    """Identifies an entry in its table; `match` has one item for each field, in P4Info order."""

    match: tuple[MatchTuple, ...]
    priority: int


def _parse_lpm(field: Field, lpm: p4runtime_pb2.FieldMatch.LPM, subject: str) -> MatchTuple:
    value = field.parse(lpm.value, subject)
    if not 0 < lpm.prefix_len <= field.bit_width:
        raise invalid(f"{subject}: the prefix length {lpm.prefix_len} is not in 1 to {field.bit_width}")
    if value & ((1 << (field.bit_width - lpm.prefix_len)) - 1):
        raise invalid(f"{subject}: bits are set after the prefix")
    return (full_width(value, field.bit_width), None, lpm.prefix_len)


def _parse_ternary(field: Field, ternary: p4runtime_pb2.FieldMatch.Ternary, subject: str) -> MatchTuple:
    value = field.parse(ternary.value, subject)
    mask = field.parse(ternary.mask, f"{subject}: mask")
    if mask == 0:
        raise invalid(f"{subject}: leave a field out that matches anything")
    if value & ~mask:
        raise invalid(f"{subject}: bits of the value are set outside the mask")
    return (full_width(value, field.bit_width), full_width(mask, field.bit_width), 0)


def _parse_range(field: Field, bounds: p4runtime_pb2.FieldMatch.Range, subject: str) -> MatchTuple:
    low = field.parse(bounds.low, f"{subject}: low")
    high = field.parse(bounds.high, f"{subject}: high")
    if low > high:
        raise invalid(f"{subject}: low is above high")
    if low == 0 and high == (1 << field.bit_width) - 1:
        raise invalid(f"{subject}: leave a field out that matches anything")
    return (full_width(low, field.bit_width), full_width(high, field.bit_width), 0)


def _parse_field(owner: str, field: Field, message: p4runtime_pb2.FieldMatch) -> MatchTuple:
    subject = f"{owner}, field {field.name}"
    given = message.WhichOneof("field_match_type")
    if given != field.kind.value:
        raise invalid(f"{subject}: the match is {given or 'missing'}, the field's is {field.kind.value}")
    if field.kind is MatchKind.LPM:
        return _parse_lpm(field, message.lpm, subject)
    if field.kind is MatchKind.TERNARY:
        return _parse_ternary(field, message.ternary, subject)
    if field.kind is MatchKind.RANGE:
        return _parse_range(field, message.range, subject)
    exact = message.exact if field.kind is MatchKind.EXACT else message.optional
    return (full_width(field.parse(exact.value, subject), field.bit_width), None, 0)


def parse_match(table: Table, messages: Iterable[p4runtime_pb2.FieldMatch]) -> tuple[MatchTuple, ...]:
    """The match of an entry; omitted fields, which must not be exact ones, match anything."""
    return parse_fields(table.fields, messages, f"table {table.name}")


def parse_fields(
    known: tuple[Field, ...], messages: Iterable[p4runtime_pb2.FieldMatch], owner: str
) -> tuple[MatchTuple, ...]:
    """parse_match() for any list of fields; `owner` names their owner in error messages."""
    fields = {field.id: field for field in known}
    parsed: dict[int, MatchTuple] = {}
    for message in messages:
        field = fields.get(message.field_id)
        if field is None:
            raise invalid(f"{owner} has no match field with the id {message.field_id}")
        if field.id in parsed:
            raise invalid(f"{owner}, field {field.name}: given twice")
        parsed[field.id] = _parse_field(owner, field, message)
    for field in known:
        if field.kind is MatchKind.EXACT and field.id not in parsed:
            raise invalid(f"{owner}: the exact field {field.name} is missing")
    return tuple(parsed.get(field.id, _DONT_CARE) for field in known)


def parse_key(table: Table, message: p4runtime_pb2.TableEntry) -> Key:
    """The match and priority of an entry that is not the default entry."""
    if table.needs_priority and message.priority <= 0:
        raise invalid(f"table {table.name}: entries need a priority above 0")
    if not table.needs_priority and message.priority != 0:
        raise invalid(
            f"table {table.name}: entries have no priority, as no field is ternary, range or optional"
        )
    return Key(parse_match(table, message.match), message.priority)


def parse_action(
    names: Names, table: Table, message: p4runtime_pb2.TableAction, *, is_default: bool
) -> tuple[int, bytes]:
    """The action's id and its concatenated parameters."""
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid(f"table {table.name}: an entry needs an action, not {kind or 'an empty one'}")
    action_id = message.action.action_id
    allowed, elsewhere = table.entry_actions, table.default_actions
    if is_default:
        allowed, elsewhere = elsewhere, allowed
    if action_id not in allowed | elsewhere:
        raise invalid(f"table {table.name} has no action with the id 0x{action_id:08x}")
    action = names.action(action_id)
    if action_id not in allowed:
        place = (
            "an entry, as it is @defaultonly" if not is_default else "the default entry, as it is @tableonly"
        )
        raise RequestError(
            Code.PERMISSION_DENIED, f"table {table.name}: action {action.name} cannot be used in {place}"
        )
    return action_id, parse_params(action, message.action.params)


def parse_params(action: Action, messages: Iterable[p4runtime_pb2.Action.Param]) -> bytes:
    """The concatenated parameters."""
    fields = {param.id: param for param in action.params}
    values: dict[int, bytes] = {}
    for message in messages:
        param = fields.get(message.param_id)
        if param is None:
            raise invalid(f"action {action.name} has no parameter with the id {message.param_id}")
        if param.id in values:
            raise invalid(f"action {action.name}, parameter {param.name}: given twice")
        subject = f"action {action.name}, parameter {param.name}"
        number = parse_value(message.value, param.given_width, subject)
        # As in BMv2, a value may have the bits of the controller's type; the program sees those of its own.
        values[param.id] = full_width(number & (1 << param.bit_width) - 1, param.bit_width)
    missing = [param.name for param in action.params if param.id not in values]
    if missing:
        raise invalid(f"action {action.name}: the parameter {missing[0]} is missing")
    return b"".join(values[param.id] for param in action.params)


def _write_field(out: p4runtime_pb2.FieldMatch, field: Field, match: MatchTuple) -> None:
    value, other, prefix_length = match
    assert value is not None
    out.field_id = field.id
    if field.kind is MatchKind.LPM:
        out.lpm.value = canonical(value)
        out.lpm.prefix_len = prefix_length
    elif field.kind is MatchKind.TERNARY:
        out.ternary.value = canonical(value)
        out.ternary.mask = canonical(other or b"")
    elif field.kind is MatchKind.RANGE:
        out.range.low = canonical(value)
        out.range.high = canonical(other or b"")
    elif field.kind is MatchKind.OPTIONAL:
        out.optional.value = canonical(value)
    else:
        out.exact.value = canonical(value)


def entry_key(entry: EntryTuple) -> Key:
    """The key of an entry that the program returned."""
    return Key(tuple(entry[0]), entry[1])


def find_entry(control: ProgramControl, table: Table, key: Key) -> EntryTuple:
    """The entry with this key. Raises RequestError if it does not exist."""
    try:
        return control.table_entry(table.id, key.match, key.priority)
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None


def write_key(out: p4runtime_pb2.TableEntry, table: Table, key: Key) -> None:
    """Write table id, match and priority to a message."""
    out.table_id = table.id
    out.priority = key.priority
    for field, match in zip(table.fields, key.match, strict=True):
        if match[0] is not None:
            _write_field(out.match.add(), field, match)


def write_action(out: p4runtime_pb2.TableEntry, names: Names, action_id: int, params: bytes) -> None:
    """Write the action and its parameters to a message."""
    action = names.action(action_id)
    out.action.action.action_id = action_id
    offset = 0
    for param in action.params:
        length = byte_width(param.bit_width)
        value = canonical(params[offset : offset + length])
        out.action.action.params.add(param_id=param.id, value=value)
        offset += length
