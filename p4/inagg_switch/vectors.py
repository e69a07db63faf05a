"""Packet vectors: a test of a program in plain text.

A line is a command; `#` starts a comment. Numbers are decimal or 0x...; frames are hexadecimal, blanks allowed.

    insert TABLE KEY=VALUE ... ACTION(PARAM=VALUE, ...) [priority=N]
    default TABLE ACTION(PARAM=VALUE, ...)
    group NUMBER PORT:RID ...                         multicast
    clone SESSION PORT:RID ...
    member PROFILE NUMBER ACTION(PARAM=VALUE, ...)    of an action profile; numbers count up from 0
    members PROFILE GROUP NUMBER ...                  a group; likewise
    meter NAME INDEX CIR CBURST PIR PBURST            rates a second
    direct_meter TABLE INSERT CIR CBURST PIR PBURST   of the n-th `insert` of the table, from 0
    packet PORT FRAME        a frame comes in
    expect PORT FRAME        it leads to this one; no `expect` after a `packet`: it is dropped
    counter NAME INDEX PACKETS BYTES
    direct_counter TABLE INSERT PACKETS BYTES
    register NAME INDEX VALUE

In `insert` the ACTION may be _member(id=NUMBER) or _group(id=NUMBER).
VALUE of a key by kind: `v` (exact, optional), `v/length` (lpm), `v&mask` (ternary), `low..high` (range).
Whatever the order of the lines, entries and groups come before the first packet, and counters and registers are looked
at after the last.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from p4.config.v1 import p4info_pb2 as pb

from inagg_switch._profiles import Group, Member
from inagg_switch._values import find
from inagg_switch.errors import SwitchError
from inagg_switch.switch import Switch

T = TypeVar("T")
Key = int | tuple[int, int]
Output = list[tuple[int, bytes]]
_CALL = re.compile(r"([\w.]+)\(([^()]*)\)")
_INDIRECT: dict[str, type[Member] | type[Group]] = {"_member": Member, "_group": Group}


class VectorError(SwitchError):
    """A line of a file of vectors makes no sense."""


@dataclass
class Insert:
    table: str
    match: dict[str, Key]
    action: str | Member | Group
    params: dict[str, int] = field(default_factory=dict)
    priority: int = 0


@dataclass
class Default:
    table: str
    action: str
    params: dict[str, int]


@dataclass
class Packet:
    """`line` is 0 when it is of no file."""

    line: int
    port: int
    frame: bytes
    expected: Output = field(default_factory=list)


@dataclass
class Vectors:
    """A file of vectors, command by command."""

    inserts: list[Insert] = field(default_factory=list)
    defaults: list[Default] = field(default_factory=list)
    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    clones: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    members: list[tuple[str, int, str, dict[str, int]]] = field(default_factory=list)
    member_groups: list[tuple[str, int, list[int]]] = field(default_factory=list)
    meters: list[tuple[str, int, tuple[int, int, int, int]]] = field(default_factory=list)
    direct_meters: list[tuple[str, int, tuple[int, int, int, int]]] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    counters: list[tuple[str, int, int, int]] = field(default_factory=list)
    direct_counters: list[tuple[str, int, int, int]] = field(default_factory=list)
    registers: list[tuple[str, int, int]] = field(default_factory=list)

    def entry(self, table: str, number: int) -> Insert:
        """The n-th `insert` of a table."""
        found = [e for e in self.inserts if _same_name(e.table, table)]
        if number >= len(found):
            raise VectorError(f"there is no insert {number} of table {table}: they count from 0")
        return found[number]


def _same_name(one: str, other: str) -> bool:
    """Whether one is the other, or its ending at a dot."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def read_vectors(path: Path) -> Vectors:
    """Reads a file. Raises VectorError, which names the line."""
    vectors = Vectors()
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise VectorError(f"{path}: not UTF-8 text") from error
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            try:
                _read_line(vectors, number, words)
            except ValueError as error:
                raise VectorError(f"{path}:{number}: {error}") from error
    return vectors


# Words behind each command: the fewest and the most.
_WORDS: dict[str, tuple[int, float]] = {
    "insert": (2, math.inf),
    "default": (2, math.inf),
    "group": (1, math.inf),
    "clone": (1, math.inf),
    "member": (3, math.inf),
    "members": (2, math.inf),
    "meter": (6, 6),
    "direct_meter": (6, 6),
    "packet": (1, math.inf),
    "expect": (1, math.inf),
    "counter": (4, 4),
    "direct_counter": (4, 4),
    "register": (3, 3),
}


def _read_line(vectors: Vectors, number: int, words: list[str]) -> None:
    command, *rest = words
    if command not in _WORDS:
        raise ValueError(f"unknown command {command}")
    least, most = _WORDS[command]
    if not least <= len(rest) <= most:
        raise ValueError(f"too {'few' if len(rest) < least else 'many'} words behind {command}")
    if command == "insert":
        vectors.inserts.append(_insert(rest))
    elif command == "default":
        vectors.defaults.append(Default(rest[0], *_call(" ".join(rest[1:]))))
    elif command in ("group", "clone"):
        pairs = [word.split(":") for word in rest[1:]]
        groups = vectors.groups if command == "group" else vectors.clones
        groups[_number(rest[0])] = [(_number(port), _number(rid)) for port, rid in pairs]
    elif command == "member":
        vectors.members.append((rest[0], _number(rest[1]), *_call(" ".join(rest[2:]))))
    elif command == "members":
        vectors.member_groups.append((rest[0], _number(rest[1]), [_number(word) for word in rest[2:]]))
    elif command in ("meter", "direct_meter"):
        cir, cburst, pir, pburst = (_number(word) for word in rest[2:])
        meters = vectors.meters if command == "meter" else vectors.direct_meters
        meters.append((rest[0], _number(rest[1]), (cir, cburst, pir, pburst)))
    elif command == "packet":
        vectors.packets.append(Packet(number, _number(rest[0]), bytes.fromhex("".join(rest[1:]))))
    elif command == "expect":
        if not vectors.packets:
            raise ValueError("expect without a packet before it")
        vectors.packets[-1].expected.append((_number(rest[0]), bytes.fromhex("".join(rest[1:]))))
    elif command in ("counter", "direct_counter"):
        counters = vectors.counters if command == "counter" else vectors.direct_counters
        counters.append((rest[0], _number(rest[1]), _number(rest[2]), _number(rest[3])))
    else:
        vectors.registers.append((rest[0], _number(rest[1]), _number(rest[2])))


def _number(text: str) -> int:
    value = int(text, 0)
    if value < 0:
        raise ValueError(f"{text} is negative")
    return value


def _insert(words: list[str]) -> Insert:
    text = " ".join(words[1:])
    # Names of keys may have brackets too: the action is the last call.
    found = list(_CALL.finditer(text))
    if not found:
        raise ValueError("expected KEY=VALUE ... ACTION(PARAM=VALUE, ...)")
    keys, rest = text[: found[-1].start()].split(), text[found[-1].end() :].split()
    name, params = _call(found[-1].group())
    match = _once("key", (_key(key) for key in keys))
    priority = 0
    if rest:
        word, equals, value = rest[0].partition("=")
        if len(rest) > 1 or word != "priority" or not equals:
            raise ValueError(f"expected priority=N at the end, not {' '.join(rest)}")
        priority = _number(value)
    if name in _INDIRECT:
        if list(params) != ["id"]:
            raise ValueError(f"expected {name}(id=NUMBER)")
        return Insert(words[0], match, _INDIRECT[name](params["id"]), {}, priority)
    return Insert(words[0], match, name, params, priority)


def _key(text: str) -> tuple[str, Key]:
    name, equals, value = text.rpartition("=")
    if not equals:
        raise ValueError(f"expected KEY=VALUE, not {text}")
    for separator in ("..", "&", "/"):
        if separator in value:
            first, second = value.split(separator)
            return name, (int(first, 0), int(second, 0))
    return name, int(value, 0)


def _call(text: str) -> tuple[str, dict[str, int]]:
    found = _CALL.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected ACTION(PARAM=VALUE, ...), not {text}")
    pairs = [pair.split("=") for pair in found.group(2).split(",") if pair.strip()]
    return found.group(1), _once("parameter", ((name.strip(), int(value, 0)) for name, value in pairs))


def _once(what: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{what} {name} is given twice")
        found[name] = value
    return found


# --- as text


def lines_of(vectors: Vectors, info: pb.P4Info) -> Iterator[str]:
    """The lines of a file of these vectors."""
    for default in vectors.defaults:
        yield f"default {default.table} {_shown_call(default.action, default.params)}"
    for profile, member, action, params in vectors.members:
        yield f"member {profile} {member} {_shown_call(action, params)}"
    for profile, group, members in vectors.member_groups:
        yield f"members {profile} {group} {_words(members)}"
    for entry in vectors.inserts:
        yield _shown_insert(entry, find(info.tables, entry.table, "table"))
    for command, meters in (("meter", vectors.meters), ("direct_meter", vectors.direct_meters)):
        yield from (f"{command} {name} {number} {_words(rates)}" for name, number, rates in meters)
    for command, groups in (("group", vectors.groups), ("clone", vectors.clones)):
        for number, replicas in groups.items():
            yield f"{command} {number} {_words(f'{port}:{rid}' for port, rid in replicas)}"
    for packet in vectors.packets:
        yield f"packet {packet.port} {packet.frame.hex()}"
        yield from (f"expect {port} {frame.hex()}" for port, frame in packet.expected)
    for command, counters in (("counter", vectors.counters), ("direct_counter", vectors.direct_counters)):
        yield from (f"{command} {_words(counter)}" for counter in counters)
    yield from (f"register {name} {index} {value:#x}" for name, index, value in vectors.registers)


def _words(values: "Iterator[str] | list[int] | tuple[object, ...]") -> str:
    return " ".join(str(value) for value in values)


def _shown_call(action: str | Member | Group, params: dict[str, int]) -> str:
    if not isinstance(action, str):
        return f"_{type(action).__name__.lower()}(id={action.id})"
    return f"{action}({', '.join(f'{name}={value:#x}' for name, value in params.items())})"


def _shown_insert(entry: Insert, table: pb.Table) -> str:
    separators = {pb.MatchField.LPM: "/", pb.MatchField.TERNARY: "&", pb.MatchField.RANGE: ".."}
    words = ["insert", entry.table]
    for key in table.match_fields:
        value = entry.match.get(key.name)
        if isinstance(value, tuple):
            second = str(value[1]) if key.match_type == pb.MatchField.LPM else hex(value[1])
            words.append(f"{key.name}={value[0]:#x}{separators[key.match_type]}{second}")
        elif value is not None:
            words.append(f"{key.name}={value:#x}")
    words.append(_shown_call(entry.action, entry.params))
    return " ".join(words + ([f"priority={entry.priority}"] if entry.priority else []))


# --- on the model


def set_up(switch: Switch, vectors: Vectors) -> None:
    """Everything that comes before the first packet. Raises EntryError or UnknownName."""
    for default in vectors.defaults:
        switch.set_default(default.table, default.action, default.params)
    for profile, number, action, params in vectors.members:
        switch.profile(profile).insert(number, action, params)
    for profile, number, members in vectors.member_groups:
        switch.profile(profile).set_group(number, members)
    for name, number, rates in vectors.meters:
        switch.meter(name)[number] = rates
    for entry in vectors.inserts:
        switch.insert(entry.table, entry.match, entry.action, entry.params, entry.priority)
    for name, number, rates in vectors.direct_meters:
        entry = vectors.entry(name, number)
        switch.direct_meter(name, entry.match, rates, entry.priority)
    for group, replicas in vectors.groups.items():
        switch.multicast_group(group, replicas)
    for session, replicas in vectors.clones.items():
        switch.clone_session(session, replicas)


def failures(switch: Switch, vectors: Vectors) -> Iterator[str]:
    """Runs the vectors on a new switch and tells what is not as they say; for a packet its line first. Raises
    EntryError or UnknownName."""
    set_up(switch, vectors)
    for packet in vectors.packets:
        out = switch.process(packet.port, packet.frame)
        if out != packet.expected:
            yield f"{packet.line}: expected {_shown_output(packet.expected)}, got {_shown_output(out)}"
    for name, index, packets, count in vectors.counters:
        if switch.counter(name)[index] != (packets, count):
            yield f" counter {name}[{index}] is {switch.counter(name)[index]}, not {(packets, count)}"
    for name, number, packets, count in vectors.direct_counters:
        entry = vectors.entry(name, number)
        counted = switch.direct_counter(name, entry.match, entry.priority)
        if counted != (packets, count):
            yield f" the counter of entry {number} of {name} is {counted}, not {(packets, count)}"
    for name, index, value in vectors.registers:
        if switch.register(name)[index] != value:
            yield f" register {name}[{index}] is {switch.register(name)[index]:#x}, not {value:#x}"


def _shown_output(output: Output) -> str:
    return ", ".join(f"{port}:{frame.hex()}" for port, frame in output) or "nothing"
