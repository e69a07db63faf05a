# SPDX-License-Identifier: Apache-2.0
"""Table entries of a program as Python values."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch.program import abi
from inagg_switch.program.externs import MeterConfig
from inagg_switch.program.profiles import Group, Member
from inagg_switch.program.values import MatchValue


@dataclass(frozen=True)
class TableEntry:
    """An entry of a table.

    match: values as for insert(), without don't-care keys. meter: of a direct meter. last_hit: in seconds, for tables
    with support_timeout.
    """

    match: Mapping[str, MatchValue]
    action: str | Member | Group
    params: Mapping[str, int]
    priority: int
    packets: int
    bytes: int
    is_const: bool
    meter: MeterConfig | None = None
    last_hit: float = 0.0


def table_entry(p4info: pb.P4Info, table: pb.Table, entry: abi.Entry) -> TableEntry:
    """Convert an entry, or the default entry, of `table`."""
    if entry.indirect_kind != abi.ACTION:
        kind = Member if entry.indirect_kind == abi.MEMBER else Group
        return _entry_of(table, entry, kind(entry.indirect_id), {})
    action = next(a for a in p4info.actions if a.preamble.id == entry.action)
    data = ctypes.string_at(entry.params, entry.params_length) if entry.params_length else b""
    params: dict[str, int] = {}
    for param in action.params:
        size = (param.bitwidth + 7) // 8
        params[param.name], data = int.from_bytes(data[:size], "big"), data[size:]
    return _entry_of(table, entry, action.preamble.name, params)


def _entry_of(
    table: pb.Table, entry: abi.Entry, action: str | Member | Group, params: Mapping[str, int]
) -> TableEntry:
    match: dict[str, MatchValue] = {}
    for number, field in enumerate(table.match_fields[: entry.match_count]):
        value = _shown_match(field, entry.match[number])
        if value is not None:
            match[field.name] = value
    return TableEntry(
        match,
        action,
        params,
        entry.priority,
        entry.packets,
        entry.bytes,
        bool(entry.is_const),
        MeterConfig(entry.meter.cir, entry.meter.cburst, entry.meter.pir, entry.meter.pburst)
        if entry.meter.is_set
        else None,
        entry.last_hit_us * 1e-6,
    )


def _shown_match(field: pb.MatchField, match: abi.ShownMatch) -> MatchValue:
    if not match.value:
        return None
    size = (field.bitwidth + 7) // 8
    value = int.from_bytes(ctypes.string_at(match.value, size), "big")
    if field.match_type == pb.MatchField.LPM:
        return value, match.prefix_length
    if match.mask_or_high:
        return value, int.from_bytes(ctypes.string_at(match.mask_or_high, size), "big")
    return value
