# SPDX-License-Identifier: Apache-2.0
"""Packet vectors (inagg_switch.vectors.format) on BMv2."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch import Member, Switch
from inagg_switch.program.values import find, split_fields
from inagg_switch.vectors.format import Cell, Key, Output, SetMember, Vectors
from tests.switch.bmv2 import Bmv2, compile_p4

_FIRST_PRIORITY = 1_000_000  # in simple_switch_CLI the lowest number wins, in P4Runtime the highest
_MIRROR_GROUPS = 0x7000  # multicast groups of clone sessions


class StateError(AssertionError):
    """A counter, a register or the digests differ from the vectors. `out` has the frames that left, as run_config()
    returns them."""

    def __init__(self, message: str, out: list[Output]) -> None:
        super().__init__(message)
        self.out = out


def run_bmv2(program_file: Path, vectors: Vectors) -> list[Output]:
    """Compiles a program with p4c and runs the vectors; see run_config()."""
    with Switch.from_p4(program_file) as program:
        info = program.layout
    with tempfile.TemporaryDirectory(prefix="inagg-bmv2-") as folder:
        return run_config(compile_p4(program_file, Path(folder)), info, vectors)


def run_config(config: Path, info: pb.P4Info, vectors: Vectors) -> list[Output]:
    """The frames that leave simple_switch for each packet, in order. Raises StateError.

    An unexpected frame is in the list of a later packet, or in one more list at the end.
    """
    with Bmv2(config) as switch:
        switch.command(*_cli_commands(info, vectors))
        for member in vectors.value_sets:
            known = find(info.value_sets, member.name, "value set")
            switch.add_to_value_set(known.preamble.name, _set_member(known, member))
        out = [switch.process(p.port, p.frame, len(p.expected)) for p in vectors.packets]
        rest = switch.rest()
        received = switch.digests() if any(p.digests for p in vectors.packets) else []
        commands, wanted = _state(info, vectors)
        seen = switch.command(*commands)
        values = re.findall(r"\]=\s*(?:\((\d+) bytes, (\d+) packets\)|(\d+))", seen)
    if rest:
        out.append(rest)
    for place, known in enumerate(info.digests):
        name = known.preamble.name
        digests = [split_fields(info, known.type_spec, data) for number, data in received if number == place]
        expected_fields = [d.fields for p in vectors.packets for d in p.digests if _is_of(info, d.name, name)]
        if digests != expected_fields and any(p.digests for p in vectors.packets):
            raise StateError(f"digest {name}: BMv2 sends {digests}, expected {expected_fields}", out)
    for (name, *expected), (count, packets, value) in zip(wanted, values, strict=True):
        found = [int(value)] if value else [int(packets), int(count)]
        # BMv2 counts packets and bytes, whatever the program declares.
        if any(e not in (None, f) for e, f in zip(expected, found, strict=True)):
            raise StateError(f"{name}: BMv2 has {found}, expected {expected}", out)
    return out


def _is_of(info: pb.P4Info, name: str, full: str) -> bool:
    found: str = find(info.digests, name, "digest").preamble.name
    return found == full


def _state(info: pb.P4Info, vectors: Vectors) -> tuple[list[str], list[tuple[str | int | None, ...]]]:
    """Commands that read counters and registers, and the values expected: (name, packets, bytes) or (name, value).
    None stands for a number that the program does not count."""
    commands: list[str] = []
    wanted: list[tuple[str | int | None, ...]] = []

    def counter(name: str, unit: int, cell: Cell) -> None:
        commands.append(f"counter_read {name} {cell.index}")
        packets = cell.values[0] if unit in (pb.CounterSpec.PACKETS, pb.CounterSpec.BOTH) else None
        count = cell.values[1] if unit in (pb.CounterSpec.BYTES, pb.CounterSpec.BOTH) else None
        wanted.append((f"{name}[{cell.index}]", packets, count))

    for cell in vectors.counters:
        one = find(info.counters, cell.name, "counter")
        counter(one.preamble.name, one.spec.unit, cell)
    for cell in vectors.direct_counters:
        table = find(info.tables, cell.name, "table").preamble.id
        direct = next(c for c in info.direct_counters if c.direct_table_id == table)
        counter(direct.preamble.name, direct.spec.unit, cell)
    for cell in vectors.registers:
        register = find(info.registers, cell.name, "register").preamble.name
        commands.append(f"register_read {register} {cell.index}")
        wanted.append((f"{register}[{cell.index}]", *cell.values))
    return commands, wanted


def _cli_commands(info: pb.P4Info, vectors: Vectors) -> Iterator[str]:
    for member in vectors.members:
        full = find(info.action_profiles, member.profile, "profile").preamble.name
        call = _cli_action(list(info.actions), member.action, member.params)
        yield " ".join(["act_prof_create_member", full, *call])
    for group in vectors.member_groups:
        full = find(info.action_profiles, group.profile, "profile").preamble.name
        yield f"act_prof_create_group {full}"
        for number in group.members:
            yield f"act_prof_add_member_to_group {full} {number} {group.number}"
    for meter in vectors.meters:
        full = find(info.meters, meter.name, "meter").preamble.name
        yield f"meter_set_rates {full} {meter.index} {_cli_rates(meter.rates)}"
    for entry in vectors.inserts:
        table = find(info.tables, entry.table, "table")
        name = table.preamble.name
        keys = [_cli_key(entry.match.get(f.name), f.bitwidth, f.match_type) for f in table.match_fields]
        priority = [str(_FIRST_PRIORITY - entry.priority)] if entry.priority else []
        if not isinstance(entry.action, str):
            command = "table_indirect_add" + ("" if isinstance(entry.action, Member) else "_with_group")
            yield " ".join([command, name, *keys, "=>", str(entry.action.id), *priority])
            continue
        action, *params = _cli_action(_actions(info, table), entry.action, entry.params)
        yield " ".join(["table_add", name, action, *keys, "=>", *params, *priority])
    for default in vectors.defaults:
        table = find(info.tables, default.table, "table")
        call = _cli_action(_actions(info, table), default.action, default.params)
        yield " ".join(["table_set_default", table.preamble.name, *call])
    for meter in vectors.direct_meters:
        meters = {m.direct_table_id: m.preamble.name for m in info.direct_meters}
        full = meters[find(info.tables, meter.name, "table").preamble.id]
        yield f"meter_set_rates {full} {meter.index} {_cli_rates(meter.rates)}"
    handle = 0
    groups = {g.number: g.replicas for g in vectors.groups}
    for session in vectors.clones:
        groups[_MIRROR_GROUPS + session.number] = session.replicas
        yield f"mirroring_add_mc {session.number} {_MIRROR_GROUPS + session.number}"
    for number, replicas in groups.items():
        yield f"mc_mgrp_create {number}"
        for port, rid in replicas:
            yield f"mc_node_create {rid} {port}"
            yield f"mc_node_associate {number} {handle}"
            handle += 1


def _actions(info: pb.P4Info, table: pb.Table) -> list[pb.Action]:
    allowed = {ref.id for ref in table.action_refs}
    return [a for a in info.actions if a.preamble.id in allowed]


def _cli_action(actions: list[pb.Action], name: str, params: dict[str, int]) -> list[str]:
    action = find(actions, name, "action")
    return [action.preamble.name, *(hex(params[p.name]) for p in action.params)]


def _cli_rates(rates: tuple[int, int, int, int]) -> str:
    """For each of the two rates: the rate per microsecond, and the burst."""
    return " ".join(f"{rate / 1e6}:{burst}" for rate, burst in (rates[:2], rates[2:]))


def _set_member(known: pb.ValueSet, member: SetMember) -> bytes:
    """The fields concatenated bit by bit. BMv2 has exact members only."""
    match = member.match if isinstance(member.match, dict) else {known.match[0].name: member.match}
    bits = width = 0
    for one in known.match:
        value = match[one.name]
        assert isinstance(value, int)
        bits, width = bits << one.bitwidth | value, width + one.bitwidth
    return bits.to_bytes((width + 7) // 8, "big")


def _cli_key(value: Key | None, width: int, kind: int) -> str:
    ones = (1 << width) - 1
    if kind == pb.MatchField.EXACT:
        assert isinstance(value, int)
        return hex(value)
    if kind == pb.MatchField.LPM:
        first, second = value if isinstance(value, tuple) else (0, 0)
        return f"{first:#x}/{second}"
    if kind in (pb.MatchField.TERNARY, pb.MatchField.OPTIONAL):
        first, second = value if isinstance(value, tuple) else (0, 0) if value is None else (value, ones)
        return f"{first:#x}&&&{second:#x}"
    assert kind == pb.MatchField.RANGE
    first, second = value if isinstance(value, tuple) else (0, ones)
    return f"{first:#x}->{second:#x}"
