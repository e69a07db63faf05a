"""Read: finds the entities that one element of a ReadRequest asks for (P4Runtime specification, "Wildcard Reads")."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from p4.v1 import p4runtime_pb2

from inagg_switch import p4runtime_idle as idle
from inagg_switch import p4runtime_meters as meters
from inagg_switch import p4runtime_profiles as profiles
from inagg_switch._abi import ACTION
from inagg_switch.p4runtime_entries import (
    EntryTuple,
    entry_key,
    find_entry,
    parse_key,
    parse_match,
    write_action,
    write_key,
)
from inagg_switch.p4runtime_errors import Code, RequestError, from_errno, invalid
from inagg_switch.p4runtime_names import Table, arrays_of
from inagg_switch.p4runtime_replication import read_replication
from inagg_switch.p4runtime_target import Target
from inagg_switch.p4runtime_value_sets import read_value_sets
from inagg_switch.p4runtime_values import byte_width, canonical

Entities = Iterator[p4runtime_pb2.Entity]
Response: TypeAlias = p4runtime_pb2.ReadResponse | bytes

ENTITIES_PER_RESPONSE = 1000  # keeps a message far below gRPC's default limit of 4 MiB


def read(
    target: Target, requests: Iterable[p4runtime_pb2.Entity]
) -> tuple[list[Response], list[RequestError | None]]:
    """What answers the elements of a ReadRequest, and the error of each."""
    responses: list[Response] = []
    found: list[p4runtime_pb2.Entity] = []
    errors: list[RequestError | None] = []
    for request in requests:
        encoded = _read_plain_tables(target, request)
        try:
            if encoded is None:
                found.extend(read_entities(target, request))
            errors.append(None)
        except RequestError as error:
            errors.append(error)
        responses += encoded or []
    for start in range(0, len(found), ENTITIES_PER_RESPONSE):
        entities = found[start : start + ENTITIES_PER_RESPONSE]
        responses.append(p4runtime_pb2.ReadResponse(entities=entities))
    return responses, errors


def _read_plain_tables(target: Target, request: p4runtime_pb2.Entity) -> list[bytes] | None:
    """All entries of one table, or of all tables; None where read_entities() has more to look at."""
    wanted = request.table_entry
    given = {descriptor.name for descriptor, _ in wanted.ListFields()}
    if not request.HasField("table_entry") or given - {"table_id", "counter_data"} or target.opaque:
        return None
    tables = [target.names.tables.get(wanted.table_id)] if wanted.table_id else target.names.tables.values()
    if not all(table is not None and table.is_plain for table in tables):
        return None
    with_counters = wanted.HasField("counter_data")
    return [
        response for table in tables if table for response in target.entries.read(table.id, with_counters)
    ]


def read_entities(target: Target, request: p4runtime_pb2.Entity) -> Entities:
    """The entities that `request` selects. Raises RequestError, possibly at the first item."""
    kind = request.WhichOneof("entity")
    if kind is None:
        raise invalid("the request has no entity")
    reader = _READERS.get(kind)
    if reader is None:
        raise RequestError(Code.UNIMPLEMENTED, f"{kind} cannot be read: this switch does not support it")
    try:
        yield from reader(target, getattr(request, kind))
    except OSError as error:
        raise from_errno(error, kind) from None


def _read_table_entries(target: Target, request: p4runtime_pb2.TableEntry) -> Entities:
    tables = (
        [target.names.table(request.table_id)] if request.table_id else list(target.names.tables.values())
    )
    if not request.table_id and (request.match or request.priority or request.HasField("action")):
        raise invalid("a read of all tables takes no match, priority or action")
    for table in tables:
        if request.table_id:
            idle.check_entry(table, request, write=False)
        for entry in _select(target, table, request):
            yield table_entity(target, table, request, entry)


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
    """Entries with the match that is asked for; the priority has yet to be looked at."""
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
    """An entry as a read shows it that asks for the direct resources which `request` has."""
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


def _read_direct_counters(target: Target, request: p4runtime_pb2.DirectCounterEntry) -> Entities:
    wanted = request.table_entry
    if not wanted.table_id:
        if wanted.match:
            raise invalid("a read of all tables takes no match")
        tables = [table for table in target.names.tables.values() if table.has_direct_counter]
    else:
        tables = [target.names.table(wanted.table_id)]
        if not tables[0].has_direct_counter:
            raise invalid(f"table {tables[0].name} has no direct counter")
    for table in tables:
        if wanted.match and not wanted.is_default_action:
            entries: Iterable[EntryTuple] = [find_entry(target.control, table, parse_key(table, wanted))]
        else:
            entries = _select(target, table, wanted)
        for entry in entries:
            entity = p4runtime_pb2.Entity()
            out = entity.direct_counter_entry
            if wanted.is_default_action:
                out.table_entry.table_id = table.id
                out.table_entry.is_default_action = True
            else:
                write_key(out.table_entry, table, entry_key(entry))
            out.data.packet_count, out.data.byte_count = entry[4], entry[5]
            yield entity


def _read_counters(target: Target, request: p4runtime_pb2.CounterEntry) -> Entities:
    for counter, first, count in arrays_of(target.names.counters, request.counter_id, request, "counter"):
        for index, (packets, byte_count) in enumerate(
            target.control.counter_read(counter.id, first, count), first
        ):
            entity = p4runtime_pb2.Entity()
            out = entity.counter_entry
            out.counter_id = counter.id
            out.index.index = index
            out.data.packet_count = packets
            out.data.byte_count = byte_count
            yield entity


def _read_digests(target: Target, request: p4runtime_pb2.DigestEntry) -> Entities:
    return target.digests.read(request)


def _read_registers(target: Target, request: p4runtime_pb2.RegisterEntry) -> Entities:
    for register, first, count in arrays_of(target.names.registers, request.register_id, request, "register"):
        width = byte_width(register.bit_width)
        # A few cells at a time: a read of a large register must not stop the packets for long.
        for start in range(first, first + count, _REGISTER_BATCH):
            size = min(_REGISTER_BATCH, first + count - start)
            values = target.control.register_read(register.id, start, size, width)
            for index, value in enumerate(values, start):
                entity = p4runtime_pb2.Entity()
                out = entity.register_entry
                out.register_id = register.id
                out.index.index = index
                out.data.bitstring = canonical(value)
                yield entity


_REGISTER_BATCH = 1024

_READERS: dict[str, Callable[[Target, Any], Entities]] = {
    "table_entry": _read_table_entries,
    "direct_counter_entry": _read_direct_counters,
    "counter_entry": _read_counters,
    "packet_replication_engine_entry": read_replication,
    "register_entry": _read_registers,
    "meter_entry": meters.read_meters,
    "direct_meter_entry": meters.read_direct_meters,
    "action_profile_member": profiles.read_members,
    "action_profile_group": profiles.read_groups,
    "value_set_entry": read_value_sets,
    "digest_entry": _read_digests,
}
