# SPDX-License-Identifier: Apache-2.0
"""Read: finds the entities that a ReadRequest selects (P4Runtime specification, "Wildcard Reads").

State that controllers write is looked up at once, so that a Read shows a state between two Writes; it is encoded when
it is sent. Cells of counters, meters and registers, which packets change anyway, are looked up when they are sent.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities import idle, meters, profiles
from inagg_switch.p4runtime.entities.entries import (
    EntryTuple,
    entry_key,
    find_entry,
    parse_key,
    parse_match,
    write_action,
    write_key,
)
from inagg_switch.p4runtime.entities.names import Array, Table, arrays_of
from inagg_switch.p4runtime.entities.replication import read_replication
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.entities.value_sets import read_value_sets
from inagg_switch.p4runtime.entities.values import byte_width
from inagg_switch.p4runtime.errors import Code, RequestError, from_errno, invalid
from inagg_switch.program.abi import ACTION

Entities = Iterator[p4runtime_pb2.Entity]
# An encoded ReadResponse. A concatenation of several is one ReadResponse again.
Response: TypeAlias = bytes

_Part = TypeVar("_Part", p4runtime_pb2.Entity, bytes)

RESPONSE_BYTES = 256 << 10  # usual size of a message; gRPC's clients accept 4 MiB
MAX_HELD_BYTES = 256 << 20  # that all Reads together may have looked up and not yet sent
_ENTRY_BYTES = 1000  # estimated memory of an entry that is not encoded yet


class AllReads:
    """The memory that all Reads hold, of MAX_HELD_BYTES."""

    def __init__(self) -> None:
        self.held = 0
        self.lock = threading.Lock()


class Room:
    """The memory that one Read holds, until give_back()."""

    def __init__(self, all_reads: AllReads | None = None) -> None:
        self._all = all_reads or AllReads()
        self._held = 0

    def take(self, size: int) -> None:
        """Take `size` bytes. Raises RequestError if there is no room; a Read alone always has room."""
        with self._all.lock:
            if self._all.held and self._all.held + size > MAX_HELD_BYTES:
                raise RequestError(
                    Code.RESOURCE_EXHAUSTED,
                    "too much is being read at the same time: read a table at a time, or later",
                )
            self._all.held += size
            self._held += size

    def give_back(self) -> None:
        """Give everything back."""
        with self._all.lock:
            self._all.held -= self._held
            self._held = 0


@dataclass
class Found:
    """The result of a Read. Consuming `responses` needs no lock and does not depend on later changes."""

    responses: Iterator[Response]
    errors: list[RequestError | None]


def read(target: Target, requests: Iterable[p4runtime_pb2.Entity], room: Room | None = None) -> Found:
    """Look up the entities that the elements of a ReadRequest select, while nothing is written.

    The memory is taken from `room`, even if this raises RequestError.
    """
    view, room = target.frozen(), room or Room()
    found: list[Iterable[Response]] = []
    errors: list[RequestError | None] = []
    for request in requests:
        try:
            found.append(_look_up(view, request, room))
            errors.append(None)
        except RequestError as error:
            errors.append(error)
    return Found(_packed(part for parts in found for part in parts), errors)


def _packed(parts: Iterable[Response]) -> Iterator[Response]:
    """Join parts into messages of about RESPONSE_BYTES."""
    gathered: list[Response] = []
    size = 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= RESPONSE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _look_up(target: Target, request: p4runtime_pb2.Entity, room: Room) -> Iterable[Response]:
    kind = request.WhichOneof("entity")
    if kind in _ARRAYS:
        return read_cells(target, request)
    plain = _plain_tables(target, request)
    if plain is None:
        return (_encoded(entity) for entity in read_entities(target, request, room))
    responses = []
    for table in plain:
        parts = target.entries.read(table.id, request.table_entry.HasField("counter_data"))
        room.take(sum(map(len, parts)))
        responses += parts
    return responses


def _encoded(entity: p4runtime_pb2.Entity) -> bytes:
    return bytes(p4runtime_pb2.ReadResponse(entities=[entity]).SerializeToString())


def _plain_tables(target: Target, request: p4runtime_pb2.Entity) -> list[Table] | None:
    """The tables whose entries are all selected, if native code can read them; else None."""
    wanted = request.table_entry
    given = {descriptor.name for descriptor, _ in wanted.ListFields()}
    if not request.HasField("table_entry") or given - {"table_id", "counter_data"} or target.opaque:
        return None
    tables = list(target.names.tables.values())
    if wanted.table_id:
        tables = [table for table in tables if table.id == wanted.table_id]
    return tables if tables and all(table.is_plain for table in tables) else None


def read_entities(target: Target, request: p4runtime_pb2.Entity, room: Room | None = None) -> Entities:
    """The entities that `request` selects, as messages. Takes memory from `room`. Raises RequestError."""
    kind = request.WhichOneof("entity")
    if kind is None:
        raise invalid("the request has no entity")
    if kind in _ARRAYS:
        parts = read_cells(target, request)
        return (entity for part in parts for entity in p4runtime_pb2.ReadResponse.FromString(part).entities)
    reader = _READERS.get(kind)
    if reader is None:
        raise RequestError(Code.UNIMPLEMENTED, f"{kind} cannot be read: this switch does not support it")
    return _refused(kind, lambda: reader(target, getattr(request, kind), room or Room()))


def read_cells(target: Target, request: p4runtime_pb2.Entity) -> Iterator[Response]:
    """The cells that `request`, a counter, meter or register entry, selects. Raises RequestError."""
    kind = request.WhichOneof("entity")
    return _refused(kind, lambda: _ARRAYS[kind](target, getattr(request, kind)))


def _refused(kind: str, look_up: Callable[[], Iterator[_Part]]) -> Iterator[_Part]:
    try:
        return look_up()
    except OSError as error:
        raise from_errno(error, kind) from None


def _read_table_entries(target: Target, request: p4runtime_pb2.TableEntry, room: Room) -> Entities:
    tables = (
        [target.names.table(request.table_id)] if request.table_id else list(target.names.tables.values())
    )
    if not request.table_id and (request.match or request.priority or request.HasField("action")):
        raise invalid("a read of all tables takes no match, priority or action")
    if request.table_id:
        idle.check_entry(tables[0], request, write=False)
    found = []
    for table in tables:
        entries = list(_select(target, table, request))
        room.take(_ENTRY_BYTES * len(entries))
        found.append((table, entries))
    return (table_entity(target, table, request, entry) for table, entries in found for entry in entries)


def _select(target: Target, table: Table, request: p4runtime_pb2.TableEntry) -> Iterator[EntryTuple]:
    for entry in _candidates(target, table, request):
        opaque = target.opaque_of(table.id, None if request.is_default_action else entry_key(entry))
        if (
            request.priority in (0, entry[1])
            and request.action.action.action_id in (0, entry[2])
            and request.metadata in (b"", opaque.metadata)
            and request.controller_metadata in (0, opaque.controller_metadata)
        ):
            yield entry


def _candidates(target: Target, table: Table, request: p4runtime_pb2.TableEntry) -> Iterable[EntryTuple]:
    """Entries with the requested match, with any priority."""
    if request.is_default_action:
        if request.match or request.priority:
            raise invalid(f"table {table.name}: the default entry has no match and no priority")
        return target.control.table_default(table.id)
    if not request.match:
        return target.control.table_entries(table.id, table.field_bytes)
    match = parse_match(table, request.match)
    if bool(request.priority) != table.needs_priority:
        return (e for e in target.control.table_entries(table.id, table.field_bytes) if tuple(e[0]) == match)
    try:
        return [target.control.table_entry(table.id, match, request.priority)]
    except FileNotFoundError:
        return []


def table_entity(
    target: Target, table: Table, request: p4runtime_pb2.TableEntry, entry: EntryTuple
) -> p4runtime_pb2.Entity:
    """The message of an entry, with the direct resources that `request` asks for."""
    entity = p4runtime_pb2.Entity()
    out = entity.table_entry
    _, _, action, params, packets, byte_count, is_const, kind, identity, _, meter = entry
    if request.is_default_action:
        out.table_id = table.id
        out.is_default_action = True
        out.is_const = table.has_const_default
    else:
        write_key(out, table, entry_key(entry))
        out.is_const = is_const
    if kind == ACTION:
        write_action(out, target.names, action, params)
    else:
        profiles.write_reference(out.action, target, table, entry_key(entry), kind, identity)
    opaque = target.opaque_of(table.id, None if request.is_default_action else entry_key(entry))
    out.metadata = opaque.metadata
    out.controller_metadata = opaque.controller_metadata
    if request.HasField("counter_data") and table.has_direct_counter:
        out.counter_data.packet_count = packets
        out.counter_data.byte_count = byte_count
    if request.HasField("meter_config") and table.has_direct_meter and meter is not None:
        meters.write_config(out.meter_config, meter)
    _write_times(out, target, table, request, entry)
    return entity


def _write_times(
    out: p4runtime_pb2.TableEntry,
    target: Target,
    table: Table,
    request: p4runtime_pb2.TableEntry,
    entry: EntryTuple,
) -> None:
    if request.is_default_action or not table.has_idle_timeout:
        return
    timer = target.timers.by_entry.get((table.id, entry_key(entry)))
    if timer is not None:
        out.idle_timeout_ns = timer.timeout_ns
    if request.HasField("time_since_last_hit"):
        out.time_since_last_hit.elapsed_ns = idle.elapsed_ns(target, table, entry)


def _read_direct_counters(target: Target, request: p4runtime_pb2.DirectCounterEntry, room: Room) -> Entities:
    wanted = request.table_entry
    if not wanted.table_id:
        if wanted.match:
            raise invalid("a read of all tables takes no match")
        tables = [table for table in target.names.tables.values() if table.has_direct_counter]
    else:
        tables = [target.names.table(wanted.table_id)]
        if not tables[0].has_direct_counter:
            raise invalid(f"table {tables[0].name} has no direct counter")
    found = []
    for table in tables:
        if wanted.match and not wanted.is_default_action:
            entries = [find_entry(target.control, table, parse_key(table, wanted))]
        else:
            entries = list(_select(target, table, wanted))
        room.take(_ENTRY_BYTES * len(entries))
        found.append((table, entries))
    return (_direct_counter(table, wanted, entry) for table, entries in found for entry in entries)


def _direct_counter(
    table: Table, wanted: p4runtime_pb2.TableEntry, entry: EntryTuple
) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    out = entity.direct_counter_entry
    if wanted.is_default_action:
        out.table_entry.table_id = table.id
        out.table_entry.is_default_action = True
    else:
        write_key(out.table_entry, table, entry_key(entry))
    out.data.packet_count, out.data.byte_count = entry[4], entry[5]
    return entity


def _cells(
    ranges: Iterable[tuple[Array, int, int]], cell_bytes: Callable[[Array], int], response: "_ReadCells"
) -> Iterator[Response]:
    """Responses with the cells of arrays. ranges: (array, first index, number of cells)."""
    for array, first, count in ranges:
        at_a_time = max(1, RESPONSE_BYTES // (cell_bytes(array) + _CELL_OVERHEAD))
        for start in range(first, first + count, at_a_time):
            yield response(array, start, min(at_a_time, first + count - start))


def _read_counters(target: Target, request: p4runtime_pb2.CounterEntry) -> Iterator[Response]:
    ranges = arrays_of(target.names.counters, request.counter_id, request, "counter")
    return _cells(
        ranges, lambda _: 0, lambda array, *cells: target.control.counter_response(array.id, *cells)
    )


def _read_meters(target: Target, request: p4runtime_pb2.MeterEntry) -> Iterator[Response]:
    ranges = arrays_of(target.names.meters, request.meter_id, request, "meter")
    return _cells(ranges, lambda _: 0, lambda array, *cells: target.control.meter_response(array.id, *cells))


def _read_registers(target: Target, request: p4runtime_pb2.RegisterEntry) -> Iterator[Response]:
    ranges = arrays_of(target.names.registers, request.register_id, request, "register")

    def width(array: Array) -> int:
        return byte_width(array.bit_width)

    return _cells(
        ranges,
        width,
        lambda array, first, count: target.control.register_response(array.id, first, count, width(array)),
    )


_ReadCells: TypeAlias = Callable[[Array, int, int], Response]
_CELL_OVERHEAD = 40  # bytes of a cell's message besides its value

_ARRAYS: dict[str | None, Callable[[Target, Any], Iterator[Response]]] = {
    "counter_entry": _read_counters,
    "meter_entry": _read_meters,
    "register_entry": _read_registers,
}

_READERS: dict[str, Callable[[Target, Any, Room], Entities]] = {
    "table_entry": _read_table_entries,
    "direct_counter_entry": _read_direct_counters,
    "packet_replication_engine_entry": lambda target, request, _: read_replication(target, request),
    "direct_meter_entry": lambda target, request, _: meters.read_direct_meters(target, request),
    "action_profile_member": lambda target, request, _: profiles.read_members(target, request),
    "action_profile_group": lambda target, request, _: profiles.read_groups(target, request),
    "value_set_entry": lambda target, request, _: read_value_sets(target, request),
    "digest_entry": lambda target, request, _: target.digests.read(request),
}
