# SPDX-License-Identifier: Apache-2.0
"""Runs packet vectors on a Switch, and writes them as text."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch.errors import SwitchError
from inagg_switch.program.profiles import Group, Member
from inagg_switch.program.values import find
from inagg_switch.switch import Switch
from inagg_switch.vectors.format import (
    Cell,
    Digest,
    Insert,
    Key,
    Output,
    Packet,
    Problems,
    ProfileGroup,
    ProfileMember,
    Rates,
    SetMember,
    VectorError,
    Vectors,
)

_Steps = Iterator[tuple[int, Callable[[], object]]]  # the line of a command, and its action on the switch


def set_up(switch: Switch, vectors: Vectors) -> None:
    """Does everything that comes before the first packet. Raises VectorError, which names the lines that the switch
    refuses."""
    problems = Problems(vectors.path)
    # In groups: errors of lines that refer to a refused line would only hide the reason.
    for steps in (
        _members(switch, vectors),
        _groups(switch, vectors),
        _entries(switch, vectors),
        _rest(switch, vectors),
    ):
        for line, step in steps:
            with problems.of_line(line, SwitchError):
                step()
        problems.raise_all()


def _members(switch: Switch, vectors: Vectors) -> _Steps:
    for default in vectors.defaults:
        yield default.line, partial(switch.set_default, default.table, default.action, default.params)
    for member in vectors.members:
        yield member.line, partial(_insert_member, switch, member)


def _groups(switch: Switch, vectors: Vectors) -> _Steps:
    for members in vectors.member_groups:
        yield members.line, partial(_set_members, switch, members)


def _entries(switch: Switch, vectors: Vectors) -> _Steps:
    for meter in vectors.meters:
        yield meter.line, partial(_set_meter, switch, meter)
    for e in vectors.inserts:
        yield e.line, partial(switch.insert, e.table, e.match, e.action, e.params, e.priority)


def _rest(switch: Switch, vectors: Vectors) -> _Steps:
    for meter in vectors.direct_meters:
        yield meter.line, partial(_set_direct_meter, switch, vectors, meter)
    for group in vectors.groups:
        yield group.line, partial(switch.multicast_group, group.number, group.replicas)
    for session in vectors.clones:
        yield session.line, partial(switch.clone_session, session.number, session.replicas)
    sets: dict[str, list[Key | dict[str, Key]]] = {}
    for one in vectors.value_sets:
        yield one.line, partial(_add_to_set, switch, one, sets)


def _insert_member(switch: Switch, member: ProfileMember) -> None:
    switch.profile(member.profile).insert(member.number, member.action, member.params)


def _set_members(switch: Switch, members: ProfileGroup) -> None:
    switch.profile(members.profile).set_group(members.number, members.members)


def _set_meter(switch: Switch, meter: Rates) -> None:
    switch.meter(meter.name)[meter.index] = meter.rates


def _set_direct_meter(switch: Switch, vectors: Vectors, meter: Rates) -> None:
    entry = vectors.entry(meter.name, meter.index)
    switch.direct_meter(meter.name, entry.match, meter.rates, entry.priority)


def _add_to_set(switch: Switch, one: SetMember, sets: dict[str, list[Key | dict[str, Key]]]) -> None:
    known = find(switch.layout.value_sets, one.name, "value set").preamble.name
    sets.setdefault(known, []).append(one.match)
    switch.value_set(known, sets[known])


@contextmanager
def _at(vectors: Vectors, line: int) -> Iterator[None]:
    """Adds the line of the file to an error of the switch."""
    try:
        yield
    except SwitchError as error:
        raise VectorError(f"{vectors.path}:{line}: {error}") from error


def failures(switch: Switch, vectors: Vectors, *, traced: bool = False) -> Iterator[str]:
    """Runs the vectors on a new switch. Yields a message for each packet, counter or register that differs from them.
    Below it are the packet's hint and, with `traced`, its path, which needs a program compiled with `traced`. Raises
    VectorError."""
    set_up(switch, vectors)
    with_digests = any(packet.digests for packet in vectors.packets)
    path: list[str] = []
    if traced:
        switch.on_trace(path.append)
    for packet in vectors.packets:
        path.clear()
        with _at(vectors, packet.line):
            out = switch.process(packet.port, packet.frame)
            digests = [Digest(d.name, dict(d.fields)) for d in switch.digests()]
            wanted = _full_names(switch.layout, packet)
        where = f"{vectors.path}:{packet.line}:"
        hints = [f"hint: {packet.hint}"] if packet.hint else []
        below = "".join(f"\n    {line}" for line in [*hints, *path])
        if out != packet.expected:
            yield f"{where} expected {_shown_output(packet.expected)}, got {_shown_output(out)}{below}"
        if with_digests and digests != wanted:
            yield f"{where} expected {_shown_digests(wanted)}, got {_shown_digests(digests)}{below}"
    yield from wrong_state(switch, vectors)


def wrong_state(switch: Switch, vectors: Vectors) -> Iterator[str]:
    """Yields a message for each counter and register that differs from the vectors. Raises VectorError."""
    for kind, cell in _cells(vectors):
        with _at(vectors, cell.line):
            found = _values(switch, vectors, kind, cell)
        if found != cell.values:
            what = f"{kind} {cell.name} {cell.index}"
            yield f"{vectors.path}:{cell.line}: {what} is {_numbers(found)}, not {_numbers(cell.values)}"


def _full_names(layout: pb.P4Info, packet: Packet) -> list[Digest]:
    return [Digest(find(layout.digests, d.name, "digest").preamble.name, d.fields) for d in packet.digests]


def _cells(vectors: Vectors) -> Iterator[tuple[str, Cell]]:
    yield from (("counter", cell) for cell in vectors.counters)
    yield from (("direct_counter", cell) for cell in vectors.direct_counters)
    yield from (("register", cell) for cell in vectors.registers)


def _values(switch: Switch, vectors: Vectors, kind: str, cell: Cell) -> tuple[int, ...]:
    if kind == "register":
        return (switch.register(cell.name)[cell.index],)
    if kind == "counter":
        return switch.counter(cell.name)[cell.index]
    entry = vectors.entry(cell.name, cell.index)
    return switch.direct_counter(cell.name, entry.match, entry.priority)


def _shown_output(output: Output) -> str:
    return ", ".join(f"{port}:{frame.hex()}" for port, frame in output) or "nothing"


def _shown_digests(digests: list[Digest]) -> str:
    return ", ".join(_shown_digest(digest) for digest in digests) or "no digest"


# --- as text


def lines_of(vectors: Vectors, info: pb.P4Info) -> Iterator[str]:
    """The vectors as the lines of a file."""
    for default in vectors.defaults:
        yield f"default {default.table} {_shown_call(default.action, default.params)}"
    for member in vectors.members:
        yield f"member {member.profile} {member.number} {_shown_call(member.action, member.params)}"
    for members in vectors.member_groups:
        yield f"members {members.profile} {members.number} {_numbers(members.members)}"
    for entry in vectors.inserts:
        yield _shown_insert(entry, find(info.tables, entry.table, "table"))
    for command, meters in (("meter", vectors.meters), ("direct_meter", vectors.direct_meters)):
        yield from (f"{command} {m.name} {m.index} {_numbers(m.rates)}" for m in meters)
    for one in vectors.value_sets:
        fields = find(info.value_sets, one.name, "value set").match
        keys = one.match if isinstance(one.match, dict) else {"": one.match}
        yield f"value_set {one.name} {' '.join(_shown_keys(keys, fields))}"
    for command, groups in (("group", vectors.groups), ("clone", vectors.clones)):
        for group in groups:
            pairs = " ".join(f"{port}:{rid}" for port, rid in group.replicas)
            yield f"{command} {group.number} {pairs}"
    if vectors.bench is not None:
        yield f"bench {vectors.bench.offset} {vectors.bench.run}"
    hint = ""
    for packet in vectors.packets:
        if packet.hint != hint:
            hint = packet.hint
            yield f"hint {hint}"
        yield f"packet {packet.port} {packet.frame.hex()}"
        yield from (f"expect {port} {frame.hex()}" for port, frame in packet.expected)
        yield from (f"digest {_shown_digest(digest)}" for digest in packet.digests)
    yield from (f"{kind} {cell.name} {cell.index} {_numbers(cell.values)}" for kind, cell in _cells(vectors))


def _numbers(values: list[int] | tuple[int, ...]) -> str:
    return " ".join(str(value) if value < 1 << 32 else hex(value) for value in values)


def _shown_digest(digest: Digest) -> str:
    return " ".join([digest.name, *(f"{name}={value:#x}" for name, value in digest.fields.items())])


def _shown_call(action: str | Member | Group, params: dict[str, int]) -> str:
    if not isinstance(action, str):
        return f"_{type(action).__name__.lower()}(id={action.id})"
    return f"{action}({', '.join(f'{name}={value:#x}' for name, value in params.items())})"


def _shown_insert(entry: Insert, table: pb.Table) -> str:
    words = ["insert", entry.table, *_shown_keys(entry.match, table.match_fields)]
    words.append(_shown_call(entry.action, entry.params))
    return " ".join(words + ([f"priority={entry.priority}"] if entry.priority else []))


def _shown_keys(match: dict[str, Key], fields: Sequence[pb.MatchField]) -> Iterator[str]:
    """NAME=VALUE of each key, or VALUE for a field without a name."""
    separators = {pb.MatchField.LPM: "/", pb.MatchField.TERNARY: "&", pb.MatchField.RANGE: ".."}
    for key in fields:
        value = match.get(key.name)
        name = f"{key.name}=" if key.name else ""
        if isinstance(value, tuple):
            second = str(value[1]) if key.match_type == pb.MatchField.LPM else hex(value[1])
            yield f"{name}{value[0]:#x}{separators[key.match_type]}{second}"
        elif value is not None:
            yield f"{name}{value:#x}"
