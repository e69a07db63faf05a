# SPDX-License-Identifier: Apache-2.0
"""Packet vectors in plain text, and what runs them: the model in this process, or BMv2.

A line is a command; `#` starts a comment. Numbers are decimal or 0x...; frames are hexadecimal, blanks allowed.

    insert TABLE KEY=VALUE ... ACTION(PARAM=VALUE, ...) [priority=N]
    default TABLE ACTION(PARAM=VALUE, ...)
    group NUMBER PORT:RID ...
    clone SESSION PORT:RID ...
    member PROFILE NUMBER ACTION(PARAM=VALUE, ...)    of an action profile; numbers count up from 0
    members PROFILE GROUP NUMBER ...                  a group; likewise
    meter NAME INDEX CIR CBURST PIR PBURST            rates a second
    direct_meter TABLE INSERT CIR CBURST PIR PBURST   of the n-th `insert` of the table, from 0
    packet PORT FRAME        a frame comes in
    expect PORT FRAME        it leads to this one; no `expect` after a `packet`: it is dropped
    counter NAME INDEX PACKETS BYTES
    register NAME INDEX VALUE

In `insert` the ACTION may be _member(id=NUMBER) or _group(id=NUMBER).
VALUE of a key by kind: `v` (exact, optional), `v/length` (lpm), `v&mask` (ternary), `low..high` (range).
Entries and groups come before the first packet; counters and registers are looked at after the last.
"""

import ctypes
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bmv2 import Bmv2, compile_p4
from p4.config.v1.p4info_pb2 import CounterSpec, P4Info

from inagg_switch import Switch, _abi
from inagg_switch._values import encode_match, encode_params, find

Key = int | tuple[int, int]
_CALL = re.compile(r"([\w.]+)\((.*)\)")


@dataclass
class Insert:
    table: str
    match: dict[str, Key]
    kinds: dict[str, str]
    action: str
    params: dict[str, int]
    priority: int = 0


@dataclass
class Default:
    table: str
    action: str
    params: dict[str, int]


@dataclass
class Packet:
    line: int
    port: int
    frame: bytes
    expected: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class Vectors:
    """A file of vectors."""

    inserts: list[Insert] = field(default_factory=list)
    defaults: list[Default] = field(default_factory=list)
    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    clones: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    members: list[tuple[str, int, str, dict[str, int]]] = field(default_factory=list)
    member_groups: list[tuple[str, int, list[int]]] = field(default_factory=list)
    meters: list[tuple[str, int, list[int]]] = field(default_factory=list)
    direct_meters: list[tuple[str, int, list[int]]] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    counters: list[tuple[str, int, int, int]] = field(default_factory=list)
    registers: list[tuple[str, int, int]] = field(default_factory=list)


def read_vectors(path: Path) -> Vectors:
    """Reads a file. A line that makes no sense is a ValueError that names it."""
    vectors = Vectors()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            try:
                _read_line(vectors, number, words)
            except (ValueError, IndexError, AttributeError) as error:
                raise ValueError(f"{path}:{number}: {error}") from error
    return vectors


def _read_line(vectors: Vectors, number: int, words: list[str]) -> None:
    command, *rest = words
    if command == "insert":
        vectors.inserts.append(_insert(rest))
    elif command == "default":
        action, params = _call(" ".join(rest[1:]))
        vectors.defaults.append(Default(rest[0], action, params))
    elif command in ("group", "clone"):
        pairs = [word.split(":") for word in rest[1:]]
        groups = vectors.groups if command == "group" else vectors.clones
        groups[int(rest[0])] = [(int(port), int(rid)) for port, rid in pairs]
    elif command == "member":
        vectors.members.append((rest[0], int(rest[1]), *_call(" ".join(rest[2:]))))
    elif command == "members":
        vectors.member_groups.append((rest[0], int(rest[1]), [int(word) for word in rest[2:]]))
    elif command in ("meter", "direct_meter"):
        meters = vectors.meters if command == "meter" else vectors.direct_meters
        meters.append((rest[0], int(rest[1]), [int(word) for word in rest[2:]]))
    elif command == "packet":
        vectors.packets.append(Packet(number, int(rest[0]), bytes.fromhex("".join(rest[1:]))))
    elif command == "expect":
        vectors.packets[-1].expected.append((int(rest[0]), bytes.fromhex("".join(rest[1:]))))
    elif command == "counter":
        vectors.counters.append((rest[0], int(rest[1]), int(rest[2]), int(rest[3])))
    elif command == "register":
        vectors.registers.append((rest[0], int(rest[1]), int(rest[2], 0)))
    else:
        raise ValueError(f"unknown command {command}")


def _insert(words: list[str]) -> Insert:
    text = " ".join(words[1:])
    found = _CALL.search(text)
    assert found is not None
    keys, rest = text[: found.start()].split(), text[found.end() :].split()
    action, params = _call(found.group())
    made = Insert(words[0], {}, {}, action, params)
    for key in keys:
        name, value = key.split("=", 1)
        for separator, kind in (("..", "range"), ("&", "ternary"), ("/", "lpm")):
            if separator in value:
                first, second = value.split(separator)
                made.match[name], made.kinds[name] = (int(first, 0), int(second, 0)), kind
                break
        else:
            made.match[name], made.kinds[name] = int(value, 0), "exact"
    if rest:
        made.priority = int(rest[0].removeprefix("priority="))
    return made


def _call(text: str) -> tuple[str, dict[str, int]]:
    found = _CALL.fullmatch(text.strip())
    assert found is not None
    pairs = [pair.split("=") for pair in found.group(2).split(",") if pair.strip()]
    return found.group(1), {name.strip(): int(value, 0) for name, value in pairs}


# --- the model


def set_up(program: Switch, vectors: Vectors) -> None:
    for default in vectors.defaults:
        program.set_default(default.table, default.action, default.params)
    with program.locked() as (api, handle):
        for profile, number, action, params in vectors.members:
            info = find(program.p4info.actions, action, "action")
            data = encode_params(info, params)
            identity = find(program.p4info.action_profiles, profile, "profile").preamble.id
            assert api.member_insert(handle, identity, number, info.preamble.id, data, len(data)) == 0
        for profile, number, members in vectors.member_groups:
            identity = find(program.p4info.action_profiles, profile, "profile").preamble.id
            ids = (ctypes.c_uint32 * len(members))(*members)
            assert api.group_set(handle, identity, number, ids, len(members)) == 0
        for name, number, rates in vectors.meters:
            identity = find(program.p4info.meters, name, "meter").preamble.id
            assert api.meter_write(handle, identity, number, _abi.Meter(*rates, 1)) == 0
    for entry in vectors.inserts:
        if entry.action in ("_member", "_group"):
            info = find(program.p4info.tables, entry.table, "table")
            key = encode_match(info, entry.match)
            kind = _abi.MEMBER if entry.action == "_member" else _abi.GROUP
            with program.locked() as (api, handle):
                call = api.table_insert_indirect
                assert call(handle, info.preamble.id, key, entry.priority, kind, entry.params["id"]) == 0
            continue
        program.insert(entry.table, entry.match, entry.action, entry.params, entry.priority)
    for name, number, rates in vectors.direct_meters:
        entry = [e for e in vectors.inserts if e.table == name][number]
        info = find(program.p4info.tables, name, "table")
        key = encode_match(info, entry.match)
        with program.locked() as (api, handle):
            write = api.direct_meter_write
            assert write(handle, info.preamble.id, key, entry.priority, _abi.Meter(*rates, 1)) == 0
    for group, replicas in vectors.groups.items():
        program.multicast_group(group, replicas)
    for session, replicas in vectors.clones.items():
        array = (_abi.Replica * len(replicas))(*(_abi.Replica(*r) for r in replicas))
        with program.locked() as (api, handle):
            assert api.clone_set(handle, session, array, len(replicas), 0) == 0


def run_model(program_file: Path, vectors: Vectors) -> list[list[tuple[int, bytes]]]:
    """What leaves for each packet."""
    with Switch.from_p4(program_file) as program:
        set_up(program, vectors)
        out = [program.process(packet.port, packet.frame) for packet in vectors.packets]
        for name, index, packets, count in vectors.counters:
            assert program.counter(name)[index] == (packets, count), f"counter {name}[{index}]"
        for name, index, value in vectors.registers:
            assert program.register(name)[index] == value, f"register {name}[{index}]"
    return out


# --- BMv2


def run_bmv2(program_file: Path, vectors: Vectors) -> list[list[tuple[int, bytes]]]:
    """What leaves simple_switch for each packet, in order. A frame that nothing expects shows with a later packet, or
    in one more list at the end."""
    with Switch.from_p4(program_file) as program:
        info = program.p4info
    with (
        tempfile.TemporaryDirectory(prefix="inagg-bmv2-") as folder,
        Bmv2(compile_p4(program_file, Path(folder))) as switch,
    ):
        switch.command(*_cli_commands(info, vectors))
        out = [switch.process(p.port, p.frame, len(p.expected)) for p in vectors.packets]
        rest = switch.rest()
        for name, index, packets, count in vectors.counters:
            counter = find(info.counters, name, "counter")
            seen = switch.command(f"counter_read {counter.preamble.name} {index}")
            # BMv2 counts both, whatever the program says.
            if counter.spec.unit in (CounterSpec.PACKETS, CounterSpec.BOTH):
                assert f", {packets} packets" in seen, f"counter {name}[{index}]"
            if counter.spec.unit in (CounterSpec.BYTES, CounterSpec.BOTH):
                assert f"({count} bytes," in seen, f"counter {name}[{index}]"
        for name, index, value in vectors.registers:
            register = find(info.registers, name, "register").preamble.name
            words = switch.command(f"register_read {register} {index}").split("]=")
            assert int(words[1].split()[0]) == value, f"register {name}[{index}]"
    return [*out, rest] if rest else out


def _cli_commands(info: P4Info, vectors: Vectors) -> Iterator[str]:
    tables = {t.preamble.name: t for t in info.tables}
    for profile, _, action, params in vectors.members:
        one = find(info.actions, action, "action")
        values = [hex(params[p.name]) for p in one.params]
        full = find(info.action_profiles, profile, "profile").preamble.name
        yield " ".join(["act_prof_create_member", full, one.preamble.name, *values])
    for profile, number, members in vectors.member_groups:
        full = find(info.action_profiles, profile, "profile").preamble.name
        yield f"act_prof_create_group {full}"
        for member in members:
            yield f"act_prof_add_member_to_group {full} {member} {number}"
    for name, number, rates in vectors.meters:
        full = find(info.meters, name, "meter").preamble.name
        yield f"meter_set_rates {full} {number} {_cli_rates(rates)}"
    for entry in vectors.inserts:
        name = next(n for n in tables if n == entry.table or n.endswith("." + entry.table))
        keys = [
            _cli_key(entry.match.get(f.name), f.bitwidth, f.match_type) for f in tables[name].match_fields
        ]
        if entry.action in ("_member", "_group"):
            command = "table_indirect_add" + ("_with_group" if entry.action == "_group" else "")
            last = [str(1_000_000 - entry.priority)] if entry.priority else []
            yield " ".join([command, name, *keys, "=>", str(entry.params["id"]), *last])
            continue
        action = next(
            a for a in info.actions if a.preamble.name.split(".")[-1] == entry.action.split(".")[-1]
        )
        params = [hex(entry.params[p.name]) for p in action.params]
        priority = [str(1_000_000 - entry.priority)] if entry.priority else []
        yield " ".join(["table_add", name, action.preamble.name, *keys, "=>", *params, *priority])
    for default in vectors.defaults:
        name = next(n for n in tables if n == default.table or n.endswith("." + default.table))
        action = next(
            a for a in info.actions if a.preamble.name.split(".")[-1] == default.action.split(".")[-1]
        )
        params = [hex(default.params[p.name]) for p in action.params]
        yield " ".join(["table_set_default", name, action.preamble.name, *params])
    for name, number, rates in vectors.direct_meters:
        meters = {m.direct_table_id: m.preamble.name for m in info.direct_meters}
        meter = meters[find(info.tables, name, "table").preamble.id]
        yield f"meter_set_rates {meter} {number} {_cli_rates(rates)}"
    handle = 0
    groups = dict(vectors.groups)
    for session, replicas in vectors.clones.items():
        groups[0x7000 + session] = replicas
        yield f"mirroring_add_mc {session} {0x7000 + session}"
    for group, replicas in groups.items():
        yield f"mc_mgrp_create {group}"
        for port, rid in replicas:
            yield f"mc_node_create {rid} {port}"
            yield f"mc_node_associate {group} {handle}"
            handle += 1


def _cli_rates(rates: list[int]) -> str:
    """A rate a microsecond and a burst each."""
    return " ".join(f"{rate / 1e6}:{burst}" for rate, burst in (rates[:2], rates[2:]))


def _cli_key(value: Key | None, width: int, kind: int) -> str:
    exact, lpm, ternary, in_range, optional = 2, 3, 4, 5, 6  # p4.config.v1.MatchField.MatchType
    ones = (1 << width) - 1
    if kind == exact:
        return hex(value)  # type: ignore[arg-type]
    if kind == lpm:
        first, second = value if isinstance(value, tuple) else (0, 0)
        return f"{first:#x}/{second}"
    if kind in (ternary, optional):
        first, second = value if isinstance(value, tuple) else (0, 0) if value is None else (value, ones)
        return f"{first:#x}&&&{second:#x}"
    assert kind == in_range
    first, second = value if isinstance(value, tuple) else (0, ones)
    return f"{first:#x}->{second:#x}"
