# SPDX-License-Identifier: Apache-2.0
"""Meters and direct meters. A missing MeterConfig means the default: every packet is green."""

from collections.abc import Iterator, Sequence

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.entries import (
    EntryTuple,
    Key,
    entry_key,
    find_entry,
    parse_key,
    write_key,
)
from inagg_switch.p4runtime.entities.names import Table, index_range
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import from_errno, invalid
from inagg_switch.program.externs import MeterConfig

MODIFY = p4runtime_pb2.Update.MODIFY


def parse_config(message: p4runtime_pb2.MeterConfig, subject: str) -> MeterConfig:
    """The rates and bursts of a message. Raises RequestError."""
    config = MeterConfig(message.cir, message.cburst, message.pir, message.pburst)
    if min(config) < 0 or message.eburst < 0:
        raise invalid(f"{subject}: a rate or burst is negative")
    if message.eburst:
        raise invalid(f"{subject}: eburst is for single-rate meters, and this one has two rates")
    if config.pir < config.cir:
        raise invalid(f"{subject}: pir is below cir")
    return config


def write_config(out: p4runtime_pb2.MeterConfig, config: Sequence[int]) -> None:
    """Write the rates and bursts to a message."""
    out.cir, out.cburst, out.pir, out.pburst = config


def write_meter(target: Target, kind: int, message: p4runtime_pb2.MeterEntry) -> None:
    """Configure one index of a meter, or all. Raises RequestError."""
    meter = target.names.meter(message.meter_id)
    subject = f"meter {meter.name}"
    if kind != MODIFY:
        raise invalid(f"{subject}: can only be modified")
    first, count = index_range(meter, message, "meter")
    config = parse_config(message.config, subject) if message.HasField("config") else None
    try:
        target.control.meter_write(meter.id, first, count, config)
    except OSError as error:
        raise from_errno(error, subject) from None


def _metered(target: Target, message: p4runtime_pb2.TableEntry) -> Table:
    table = target.names.table(message.table_id)
    if not table.has_direct_meter:
        raise invalid(f"table {table.name} has no direct meter")
    return table


def write_direct_meter(target: Target, kind: int, message: p4runtime_pb2.DirectMeterEntry) -> None:
    """Configure the meter of a table entry. Raises RequestError."""
    table = _metered(target, message.table_entry)
    if kind != MODIFY:
        raise invalid(f"table {table.name}: a direct meter can only be modified")
    if message.table_entry.is_default_action:
        raise invalid(f"table {table.name}: the default entry has no meter")
    key = parse_key(table, message.table_entry)
    config = parse_config(message.config, f"table {table.name}") if message.HasField("config") else None
    set_direct_meter(target, table, key, config)


def set_direct_meter(target: Target, table: Table, key: Key, config: MeterConfig | None) -> None:
    """Configure the meter of an entry. Raises RequestError if the entry does not exist."""
    try:
        target.externs.direct_meter_write(table.id, key.match, key.priority, config)
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None


def read_direct_meters(
    target: Target, request: p4runtime_pb2.DirectMeterEntry
) -> Iterator[p4runtime_pb2.Entity]:
    """The meters of the requested entries, looked up at once. Raises RequestError.

    Table id 0 selects all tables with direct meters; without a match, all entries are selected.
    """
    wanted = request.table_entry
    tables = [table for table in target.names.tables.values() if table.has_direct_meter]
    if wanted.table_id:
        tables = [_metered(target, wanted)]
    elif wanted.match:
        raise invalid("a read of all tables takes no match")
    found = [(table, _entries(target, table, wanted)) for table in tables]
    return (_direct_meter_entity(table, entry) for table, entries in found for entry in entries)


def _entries(target: Target, table: Table, wanted: p4runtime_pb2.TableEntry) -> list[EntryTuple]:
    if wanted.match:
        return [find_entry(target.control, table, parse_key(table, wanted))]
    return target.control.table_entries(table.id, table.field_bytes)


def _direct_meter_entity(table: Table, entry: EntryTuple) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    write_key(entity.direct_meter_entry.table_entry, table, entry_key(entry))
    if entry[10] is not None:
        write_config(entity.direct_meter_entry.config, entry[10])
    return entity
