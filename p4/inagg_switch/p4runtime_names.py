"""What a P4Info message declares, by id and by name; no gRPC, no state."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from p4.config.v1 import p4info_pb2

from inagg_switch.p4runtime_errors import Code, RequestError, invalid
from inagg_switch.p4runtime_values import byte_width


class MatchKind(Enum):
    """Match kinds that P4Runtime and the program's ABI both have."""

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
    """A match field or an action parameter."""

    id: int
    name: str
    bit_width: int
    kind: MatchKind = MatchKind.EXACT


@dataclass(frozen=True)
class Action:
    """An action and its parameters, in P4Info order."""

    id: int
    name: str
    params: tuple[Field, ...]


@dataclass(frozen=True)
class Table:
    """A table; its fields are in P4Info order, which is the order of a key in native/program.h."""

    id: int
    name: str
    fields: tuple[Field, ...]
    entry_actions: frozenset[int]
    default_actions: frozenset[int]
    has_const_default: bool
    is_const: bool
    has_direct_counter: bool

    @property
    def needs_priority(self) -> bool:
        """Whether entries are ordered by a priority, which is then mandatory."""
        ordered = (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL)
        return any(field.kind in ordered for field in self.fields)

    @property
    def field_bytes(self) -> list[int]:
        """Bytes of each match field's value in native/program.h's form."""
        return [byte_width(field.bit_width) for field in self.fields]


@dataclass(frozen=True)
class Array:
    """An indexed counter or a register; bit_width is 0 for a counter."""

    id: int
    name: str
    size: int
    bit_width: int = 0


_Item = TypeVar("_Item", Table, Action, Array)


def _table(message: p4info_pb2.Table, direct_counter_tables: set[int]) -> Table:
    fields = []
    for field in message.match_fields:
        if field.match_type not in _KINDS:
            raise RequestError(
                Code.UNIMPLEMENTED,
                f"table {message.preamble.name}: the match kind of {field.name} is not supported",
            )
        fields.append(Field(field.id, field.name, field.bitwidth, _KINDS[field.match_type]))
    scope = p4info_pb2.ActionRef
    return Table(
        id=message.preamble.id,
        name=message.preamble.name,
        fields=tuple(fields),
        entry_actions=frozenset(r.id for r in message.action_refs if r.scope != scope.DEFAULT_ONLY),
        default_actions=frozenset(r.id for r in message.action_refs if r.scope != scope.TABLE_ONLY),
        has_const_default=message.const_default_action_id != 0,
        is_const=message.is_const_table,
        has_direct_counter=message.preamble.id in direct_counter_tables,
    )


def _action(message: p4info_pb2.Action) -> Action:
    params = tuple(Field(param.id, param.name, param.bitwidth) for param in message.params)
    return Action(message.preamble.id, message.preamble.name, params)


def _register_width(message: p4info_pb2.Register) -> int:
    # 0, which no register has, stands for a type that is not a plain bit<W>.
    return int(message.type_spec.bitstring.bit.bitwidth)


def _by_id(items: Iterable[_Item]) -> dict[int, _Item]:
    return {item.id: item for item in items}


class Names:
    """Look-ups in one P4Info."""

    def __init__(self, p4info: p4info_pb2.P4Info) -> None:
        self.p4info = p4info
        direct = {counter.direct_table_id for counter in p4info.direct_counters}
        self.tables = _by_id(_table(table, direct) for table in p4info.tables)
        self.actions = _by_id(_action(action) for action in p4info.actions)
        self.counters = _by_id(Array(c.preamble.id, c.preamble.name, c.size) for c in p4info.counters)
        self.registers = _by_id(
            Array(r.preamble.id, r.preamble.name, r.size, _register_width(r)) for r in p4info.registers
        )

    def table(self, table_id: int) -> Table:
        """The table of that id; INVALID_ARGUMENT when there is none."""
        return self._find(self.tables, table_id, "table")

    def action(self, action_id: int) -> Action:
        """The action of that id; INVALID_ARGUMENT when there is none."""
        return self._find(self.actions, action_id, "action")

    def counter(self, counter_id: int) -> Array:
        """The indexed counter of that id; INVALID_ARGUMENT when there is none."""
        return self._find(self.counters, counter_id, "counter")

    def register(self, register_id: int) -> Array:
        """The register of that id; INVALID_ARGUMENT when there is none."""
        return self._find(self.registers, register_id, "register")

    @staticmethod
    def _find(items: dict[int, _Item], item_id: int, what: str) -> _Item:
        if item_id not in items:
            raise invalid(f"the program has no {what} with the id 0x{item_id:08x}")
        return items[item_id]
