# SPDX-License-Identifier: Apache-2.0
"""Look-ups in a P4Info: its objects by id. No gRPC, no state."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.values import byte_width, parse_value
from inagg_switch.p4runtime.errors import Code, RequestError, invalid
from inagg_switch.program.values import field_widths

if TYPE_CHECKING:
    from inagg_switch._ports import FieldShape, TableShape


class MatchKind(Enum):
    """Match kinds of both P4Runtime and the program's ABI."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


_KINDS = {
    p4info_pb2.MatchField.EXACT: MatchKind.EXACT,
    p4info_pb2.MatchField.LPM: MatchKind.LPM,
    p4info_pb2.MatchField.TERNARY: MatchKind.TERNARY,
    p4info_pb2.MatchField.RANGE: MatchKind.RANGE,
    p4info_pb2.MatchField.OPTIONAL: MatchKind.OPTIONAL,
}


@dataclass(frozen=True)
class Field:
    """A match field or an action parameter.

    bit_width: the program's. given_width: bits of a controller's values (@p4runtime_translation), 0 if these are
    strings.
    """

    id: int
    name: str
    bit_width: int
    given_width: int
    kind: MatchKind = MatchKind.EXACT

    def parse(self, value: bytes, subject: str) -> int:
        """A controller's binary string as a number. Raises RequestError if it does not fit both widths."""
        return parse_value(value, min(self.bit_width, self.given_width), subject)


@dataclass(frozen=True)
class Action:
    """An action and its parameters, in P4Info order."""

    id: int
    name: str
    params: tuple[Field, ...]


@dataclass(frozen=True)
class Table:
    """A table; its fields are in P4Info order, which is the order of a key in runtime/program.h."""

    id: int
    name: str
    fields: tuple[Field, ...]
    entry_actions: frozenset[int]
    default_actions: frozenset[int]
    has_const_default: bool
    is_const: bool
    has_direct_counter: bool
    has_direct_meter: bool
    has_idle_timeout: bool
    profile: "Profile | None"

    @property
    def needs_priority(self) -> bool:
        """Whether entries have a priority, which is then mandatory."""
        ordered = (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL)
        return any(field.kind in ordered for field in self.fields)

    @property
    def is_plain(self) -> bool:
        """Whether the table's entries have direct actions and no state outside the program."""
        return bool(self.fields) and self.profile is None and not self.has_idle_timeout

    @property
    def field_bytes(self) -> list[int]:
        """Bytes of each match field's value in runtime/program.h's form."""
        return [byte_width(field.bit_width) for field in self.fields]


@dataclass(frozen=True)
class Array:
    """An indexed counter or a register; bit_width is 0 for a counter."""

    id: int
    name: str
    size: int
    bit_width: int = 0


@dataclass(frozen=True)
class Profile:
    """An action profile or selector. actions: those of its tables.

    A limit of 0 means no limit. The size of a group is the sum of its weights, or the number of its members if
    `counts_members`.
    """

    id: int
    name: str
    with_selector: bool
    max_group_size: int
    counts_members: bool
    max_member_weight: int
    actions: frozenset[int]


@dataclass(frozen=True)
class ValueSet:
    """A parser value set."""

    id: int
    name: str
    size: int
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Digest:
    """A digest. kind: struct, tuple or bitstring; widths: the bits of its fields."""

    id: int
    name: str
    kind: str
    widths: tuple[int, ...]


_Item = TypeVar("_Item", Table, Action, Array, Profile, ValueSet, Digest)


_Resource = TypeVar("_Resource", p4info_pb2.Table, p4info_pb2.Action, p4info_pb2.ValueSet)
_Sent: TypeAlias = p4info_pb2.Action.Param | p4info_pb2.ControllerPacketMetadata.Metadata


def _given_width(shown: _Sent | p4info_pb2.MatchField, layout: _Sent | p4info_pb2.MatchField) -> int:
    return int(shown.bitwidth if shown.bitwidth or shown.HasField("type_name") else layout.bitwidth)


def fields_of(messages: Iterable[_Sent], layout: Iterable[_Sent]) -> tuple[Field, ...]:
    """The parameters of an action, or the metadata of a packet."""
    return tuple(
        Field(one.id, one.name, inner.bitwidth, _given_width(one, inner))
        for one, inner in zip(messages, layout, strict=True)
    )


def _fields(
    messages: Iterable[p4info_pb2.MatchField], layout: Iterable[p4info_pb2.MatchField], owner: str
) -> tuple[Field, ...]:
    fields = []
    for field, inner in zip(messages, layout, strict=True):
        if field.match_type not in _KINDS:
            raise RequestError(
                Code.UNIMPLEMENTED, f"{owner}: the match kind of {field.name} is not supported"
            )
        width = _given_width(field, inner)
        fields.append(Field(field.id, field.name, inner.bitwidth, width, _KINDS[field.match_type]))
    return tuple(fields)


def _table(
    message: p4info_pb2.Table,
    layout: p4info_pb2.Table,
    counted: set[int],
    metered: set[int],
    profile: Profile | None,
) -> Table:
    scope = p4info_pb2.ActionRef
    return Table(
        id=message.preamble.id,
        name=message.preamble.name,
        fields=_fields(message.match_fields, layout.match_fields, f"table {message.preamble.name}"),
        entry_actions=frozenset(r.id for r in message.action_refs if r.scope != scope.DEFAULT_ONLY),
        default_actions=frozenset(r.id for r in message.action_refs if r.scope != scope.TABLE_ONLY),
        has_const_default=message.const_default_action_id != 0,
        is_const=message.is_const_table,
        has_direct_counter=message.preamble.id in counted,
        has_direct_meter=message.preamble.id in metered,
        has_idle_timeout=message.idle_timeout_behavior == p4info_pb2.Table.NOTIFY_CONTROL,
        profile=profile,
    )


def _action(message: p4info_pb2.Action, layout: p4info_pb2.Action) -> Action:
    params = layout.params[
        : len(message.params)
    ]  # P4Info lists no parameters of an action without a listed table
    return Action(message.preamble.id, message.preamble.name, fields_of(message.params, params))


def _profile(message: p4info_pb2.ActionProfile, tables: Iterable[p4info_pb2.Table]) -> Profile:
    actions = {
        ref.id
        for table in tables
        if table.implementation_id == message.preamble.id
        for ref in table.action_refs
        if ref.scope != p4info_pb2.ActionRef.DEFAULT_ONLY
    }
    return Profile(
        message.preamble.id,
        message.preamble.name,
        message.with_selector,
        message.max_group_size,
        message.HasField("sum_of_members"),
        message.sum_of_members.max_member_weight,
        frozenset(actions),
    )


def _digest(layout: p4info_pb2.P4Info, message: p4info_pb2.Digest) -> Digest:
    kind = message.type_spec.WhichOneof("type_spec") or "bitstring"
    widths = tuple(width for _, width in field_widths(layout, message.type_spec))
    return Digest(message.preamble.id, message.preamble.name, kind, widths)


def _register_width(message: p4info_pb2.Register) -> int:
    bits = message.type_spec.bitstring
    return int(bits.bit.bitwidth or bits.int.bitwidth)


def _by_id(items: Iterable[_Item]) -> dict[int, _Item]:
    return {item.id: item for item in items}


def _same(shown: Iterable[_Resource], layout: Iterable[_Resource]) -> Iterator[tuple[_Resource, _Resource]]:
    """Each object of a P4Info with the same object of the layout, which may have more objects."""
    inner = {one.preamble.id: one for one in layout}
    return ((one, inner[one.preamble.id]) for one in shown)


class Names:
    """Look-ups in a P4Info and its layout, which is the P4Info with the program's widths."""

    def __init__(self, p4info: p4info_pb2.P4Info, layout: p4info_pb2.P4Info) -> None:
        self.p4info = p4info
        self.layout = layout
        counted = {counter.direct_table_id for counter in p4info.direct_counters}
        metered = {meter.direct_table_id for meter in p4info.direct_meters}
        self.profiles = _by_id(_profile(profile, p4info.tables) for profile in p4info.action_profiles)
        self.tables = _by_id(
            _table(table, inner, counted, metered, self.profiles.get(table.implementation_id))
            for table, inner in _same(p4info.tables, layout.tables)
        )
        self.meters = _by_id(Array(m.preamble.id, m.preamble.name, m.size) for m in p4info.meters)
        self.digests = _by_id(_digest(layout, digest) for digest in layout.digests)
        self.value_sets = _by_id(
            ValueSet(
                v.preamble.id,
                v.preamble.name,
                v.size,
                _fields(v.match, inner.match, f"value set {v.preamble.name}"),
            )
            for v, inner in _same(p4info.value_sets, layout.value_sets)
        )
        self.actions = _by_id(_action(a, a) for a in layout.actions)  # entries may have @hidden actions
        self.actions |= _by_id(_action(*both) for both in _same(p4info.actions, layout.actions))
        self.counters = _by_id(Array(c.preamble.id, c.preamble.name, c.size) for c in p4info.counters)
        self.registers = _by_id(
            Array(r.preamble.id, r.preamble.name, r.size, _register_width(r)) for r in layout.registers
        )

    def table(self, table_id: int) -> Table:
        """The table with an id. Raises RequestError (INVALID_ARGUMENT) if there is none, as the methods below."""
        return self.find(self.tables, table_id, "table")

    def action(self, action_id: int) -> Action:
        """The action with an id."""
        return self.find(self.actions, action_id, "action")

    def counter(self, counter_id: int) -> Array:
        """The indexed counter with an id."""
        return self.find(self.counters, counter_id, "counter")

    def meter(self, meter_id: int) -> Array:
        """The indexed meter with an id."""
        return self.find(self.meters, meter_id, "meter")

    def profile(self, profile_id: int) -> Profile:
        """The action profile with an id."""
        return self.find(self.profiles, profile_id, "action profile")

    def value_set(self, value_set_id: int) -> ValueSet:
        """The value set with an id."""
        return self.find(self.value_sets, value_set_id, "value set")

    def register(self, register_id: int) -> Array:
        """The register with an id."""
        return self.find(self.registers, register_id, "register")

    @staticmethod
    def find(items: dict[int, _Item], item_id: int, what: str) -> _Item:
        """The item with an id."""
        if item_id not in items:
            raise invalid(f"the program has no {what} with the id 0x{item_id:08x}")
        return items[item_id]


def table_shapes(names: Names) -> list["TableShape"]:
    """The plain tables in the form of the native code."""
    return [_table_shape(names, table) for table in names.tables.values() if table.is_plain]


def _table_shape(names: Names, table: Table) -> "TableShape":
    actions = [
        (action, action in table.entry_actions, [_field_shape(p) for p in names.action(action).params])
        for action in table.entry_actions | table.default_actions
    ]
    fields = [_field_shape(field) for field in table.fields]
    return table.id, not table.is_const, table.needs_priority, table.has_direct_counter, fields, actions


def _field_shape(field: Field) -> "FieldShape":
    kinds = p4runtime_pb2.FieldMatch.DESCRIPTOR.fields_by_name
    return field.id, field.bit_width, field.given_width, kinds[field.kind.value].number


def arrays_of(
    known: dict[int, Array],
    array_id: int,
    message: p4runtime_pb2.CounterEntry | p4runtime_pb2.RegisterEntry | p4runtime_pb2.MeterEntry,
    what: str,
) -> list[tuple[Array, int, int]]:
    """(array, first index, number of cells) for each array that a read selects; id 0 selects all."""
    if array_id:
        array = Names.find(known, array_id, what)
        return [(array, *index_range(array, message, what))]
    if message.HasField("index"):
        raise invalid(f"a read of all {what}s takes no index")
    return [(array, 0, array.size) for array in known.values()]


def index_range(
    array: Array,
    message: p4runtime_pb2.CounterEntry | p4runtime_pb2.RegisterEntry | p4runtime_pb2.MeterEntry,
    what: str,
) -> tuple[int, int]:
    """First index and number of the cells that a message selects: one, or all without an index."""
    if not message.HasField("index"):
        return 0, array.size
    index = message.index.index
    if index < 0:
        raise invalid(f"{what} {array.name}: the index {index} is negative")
    if index >= array.size:
        raise RequestError(
            Code.OUT_OF_RANGE, f"{what} {array.name}: the index {index} is not below {array.size}"
        )
    return index, 1
