# SPDX-License-Identifier: Apache-2.0
"""Packet vectors (inagg_switch.vectors) on BMv2."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bmv2 import Bmv2, compile_p4
from p4.config.v1 import p4info_pb2 as pb

from inagg_switch import Member, Switch
from inagg_switch._values import find
from inagg_switch.vectors import Key, Output, Vectors

_FIRST_PRIORITY = 1_000_000  # simple_switch_CLI's lowest number wins, P4Runtime's highest
_MIRROR_GROUPS = 0x7000  # multicast groups of clone sessions


class StateError(AssertionError):
    """A counter or register is not what the vectors say. `out` is what run_config() would have returned."""

    def __init__(self, message: str, out: list[Output]) -> None:
        super().__init__(message)
        self.out = out


def run_bmv2(program_file: Path, vectors: Vectors) -> list[Output]:
    """Compiles and runs; see run_config()."""
    with Switch.from_p4(program_file) as program:
        info = program.layout
    with tempfile.TemporaryDirectory(prefix="inagg-bmv2-") as folder:
        return run_config(compile_p4(program_file, Path(folder)), info, vectors)


def run_config(config: Path, info: pb.P4Info, vectors: Vectors) -> list[Output]:
    """What leaves simple_switch for each packet, in order. A frame that nothing expects shows with a later packet, or
    in one more list at the end. Raises StateError."""
    with Bmv2(config) as switch:
        switch.command(*_cli_commands(info, vectors))
        out = [switch.process(p.port, p.frame, len(p.expected)) for p in vectors.packets]
        rest = switch.rest()
        commands, wanted = _state(info, vectors)
        seen = switch.command(*commands)
        values = re.findall(r"\]=\s*(?:\((\d+) bytes, (\d+) packets\)|(\d+))", seen)
    if rest:
        out.append(rest)
    for (name, *expected), (count, packets, value) in zip(wanted, values, strict=True):
        found = [int(value)] if value else [int(packets), int(count)]
        # BMv2 counts both, whatever the program says.
        if any(e not in (None, f) for e, f in zip(expected, found, strict=True)):
            raise StateError(f"{name}: BMv2 has {found}, expected {expected}", out)
    return out


def _state(info: pb.P4Info, vectors: Vectors) -> tuple[list[str], list[tuple[str | int | None, ...]]]:
    """Commands that show counters and registers, and what they should show: (name, packets, bytes), or (name, value);
    None for what is not counted."""
    commands: list[str] = []
    wanted: list[tuple[str | int | None, ...]] = []

    def counter(name: str, unit: int, index: int, packets: int, count: int) -> None:
        commands.append(f"counter_read {name} {index}")
        counts_packets = unit in (pb.CounterSpec.PACKETS, pb.CounterSpec.BOTH)
        counts_bytes = unit in (pb.CounterSpec.BYTES, pb.CounterSpec.BOTH)
        wanted.append(
            (f"{name}[{index}]", packets if counts_packets else None, count if counts_bytes else None)
        )

    for name, index, packets, count in vectors.counters:
        one = find(info.counters, name, "counter")
        counter(one.preamble.name, one.spec.unit, index, packets, count)
    for name, number, packets, count in vectors.direct_counters:
        table = find(info.tables, name, "table").preamble.id
        direct = next(c for c in info.direct_counters if c.direct_table_id == table)
        counter(direct.preamble.name, direct.spec.unit, number, packets, count)
    for name, index, value in vectors.registers:
        register = find(info.registers, name, "register").preamble.name
        commands.append(f"register_read {register} {index}")
        wanted.append((f"{register}[{index}]", value))
    return commands, wanted


def _cli_commands(info: pb.P4Info, vectors: Vectors) -> Iterator[str]:
    for profile, _, action, params in vectors.members:
        full = find(info.action_profiles, profile, "profile").preamble.name
        yield " ".join(["act_prof_create_member", full, *_cli_action(list(info.actions), action, params)])
    for profile, number, members in vectors.member_groups:
        full = find(info.action_profiles, profile, "profile").preamble.name
        yield f"act_prof_create_group {full}"
        for member in members:
            yield f"act_prof_add_member_to_group {full} {member} {number}"
    for name, number, rates in vectors.meters:
        yield f"meter_set_rates {find(info.meters, name, 'meter').preamble.name} {number} {_cli_rates(rates)}"
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
    for name, number, rates in vectors.direct_meters:
        meters = {m.direct_table_id: m.preamble.name for m in info.direct_meters}
        meter = meters[find(info.tables, name, "table").preamble.id]
        yield f"meter_set_rates {meter} {number} {_cli_rates(rates)}"
    handle = 0
    groups = dict(vectors.groups)
    for session, replicas in vectors.clones.items():
        groups[_MIRROR_GROUPS + session] = replicas
        yield f"mirroring_add_mc {session} {_MIRROR_GROUPS + session}"
    for group, replicas in groups.items():
        yield f"mc_mgrp_create {group}"
        for port, rid in replicas:
            yield f"mc_node_create {rid} {port}"
            yield f"mc_node_associate {group} {handle}"
            handle += 1


def _actions(info: pb.P4Info, table: pb.Table) -> list[pb.Action]:
    allowed = {ref.id for ref in table.action_refs}
    return [a for a in info.actions if a.preamble.id in allowed]


def _cli_action(actions: list[pb.Action], name: str, params: dict[str, int]) -> list[str]:
    action = find(actions, name, "action")
    return [action.preamble.name, *(hex(params[p.name]) for p in action.params)]


def _cli_rates(rates: tuple[int, int, int, int]) -> str:
    """A rate a microsecond and a burst each."""
    return " ".join(f"{rate / 1e6}:{burst}" for rate, burst in (rates[:2], rates[2:]))


def _cli_key(value: Key | None, width: int, kind: int) -> str:
    ones = (1 << width) - 1
    if kind == pb.MatchField.EXACT:
        return hex(value)  # type: ignore[arg-type]
    if kind == pb.MatchField.LPM:
        first, second = value if isinstance(value, tuple) else (0, 0)
        return f"{first:#x}/{second}"
    if kind in (pb.MatchField.TERNARY, pb.MatchField.OPTIONAL):
        first, second = value if isinstance(value, tuple) else (0, 0) if value is None else (value, ones)
        return f"{first:#x}&&&{second:#x}"
    assert kind == pb.MatchField.RANGE
    first, second = value if isinstance(value, tuple) else (0, ones)
    return f"{first:#x}->{second:#x}"
