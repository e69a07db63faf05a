# SPDX-License-Identifier: Apache-2.0
"""Packet vectors: a test of a program in plain text.

A line is a command; `#` starts a comment. A number is hexadecimal if it starts with 0 or has a letter (0x2a, 2a, 02a),
else decimal (42); frames are hexadecimal, blanks allowed.

    insert TABLE KEY=VALUE ... ACTION(PARAM=VALUE, ...) [priority=N]
    default TABLE ACTION(PARAM=VALUE, ...)
    group NUMBER PORT:RID ...                         multicast
    clone SESSION PORT:RID ...
    member PROFILE NUMBER ACTION(PARAM=VALUE, ...)    of an action profile; numbers count up from 0
    members PROFILE GROUP NUMBER ...                  a group; likewise
    meter NAME INDEX CIR CBURST PIR PBURST            rates a second
    direct_meter TABLE INSERT CIR CBURST PIR PBURST   of the n-th `insert` of the table, from 0
    value_set NAME VALUE     one more member of a parser value set; FIELD=VALUE ... if it has several fields
    packet PORT FRAME        a frame comes in
    expect PORT FRAME        it leads to this frame; no `expect` after a `packet`: it is dropped
    digest NAME FIELD=VALUE ...                       and to this digest; no `digest` in the file: none is compared
    hint TEXT                what a failure of the following packets shows, until the next hint
    counter NAME INDEX PACKETS BYTES
    direct_counter TABLE INSERT PACKETS BYTES
    register NAME INDEX VALUE
    bench OFFSET RUN         for `inagg-switch bench` only: a packet stands for RUN, numbered in the 4 bytes at OFFSET

In `insert` the ACTION may be _member(id=NUMBER) or _group(id=NUMBER).

VALUE of a key by kind: `v` (exact, optional), `v/length` (lpm), `v&mask` (ternary), `low..high` (range). For the last
three a plain `v` matches only v.

The FIELDs of a digest are those of its struct, `0`, `1`... for a tuple, and `value` for a scalar.

In any order of the lines, entries and groups come before the first packet, and counters and registers are read after
the last.
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from inagg_switch.errors import MAX_ERRORS, SwitchError, count_line
from inagg_switch.program.arguments import PORTS
from inagg_switch.program.profiles import Group, Member

T = TypeVar("T")
Key = int | tuple[int, int]
Output = list[tuple[int, bytes]]
_CALL = re.compile(r"([\w.]+)\(([^()]*)\)")
_INDIRECT: dict[str, type[Member] | type[Group]] = {"_member": Member, "_group": Group}


class VectorError(SwitchError):
    """A line of a file of vectors is malformed, or the program refuses it."""


@dataclass(kw_only=True)
class _Line:
    """A command. `line` is its line in the file, or 0 without a file."""

    line: int = field(default=0, compare=False)


@dataclass
class Insert(_Line):
    table: str
    match: dict[str, Key]
    action: str | Member | Group
    params: dict[str, int] = field(default_factory=dict)
    priority: int = 0


@dataclass
class Default(_Line):
    table: str
    action: str
    params: dict[str, int]


@dataclass
class ProfileMember(_Line):
    profile: str
    number: int
    action: str
    params: dict[str, int]


@dataclass
class ProfileGroup(_Line):
    profile: str
    number: int
    members: list[int]


@dataclass
class Replicas(_Line):
    """(port, replication id) pairs of a multicast group or a clone session."""

    number: int
    replicas: list[tuple[int, int]]


@dataclass
class Rates(_Line):
    """(cir, cburst, pir, pburst) of a meter at an index, or of the n-th insert of a table."""

    name: str
    index: int
    rates: tuple[int, int, int, int]


@dataclass
class SetMember(_Line):
    """A member of a parser value set. `match` is by field if the set has several."""

    name: str
    match: Key | dict[str, Key]


@dataclass
class Cell(_Line):
    """The expected values of a counter (packets, bytes) or register (one value) at an index, or of the direct counter
    of a table's n-th insert."""

    name: str
    index: int
    values: tuple[int, ...]


@dataclass
class Digest(_Line):
    """A digest that a packet leads to."""

    name: str
    fields: dict[str, int]


@dataclass
class Bench(_Line):
    """In a benchmark each packet is input `run` times, each time with the next number in the 4 bytes at `offset`."""

    offset: int
    run: int


@dataclass
class Packet(_Line):
    port: int
    frame: bytes
    expected: Output = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    hint: str = ""


@dataclass
class Vectors:
    """A file of vectors, command by command. hint: the last one."""

    path: Path = field(default=Path("vectors"), compare=False)
    inserts: list[Insert] = field(default_factory=list)
    defaults: list[Default] = field(default_factory=list)
    groups: list[Replicas] = field(default_factory=list)
    clones: list[Replicas] = field(default_factory=list)
    members: list[ProfileMember] = field(default_factory=list)
    member_groups: list[ProfileGroup] = field(default_factory=list)
    meters: list[Rates] = field(default_factory=list)
    direct_meters: list[Rates] = field(default_factory=list)
    value_sets: list[SetMember] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    counters: list[Cell] = field(default_factory=list)
    direct_counters: list[Cell] = field(default_factory=list)
    registers: list[Cell] = field(default_factory=list)
    bench: Bench | None = None
    hint: str = ""

    def entry(self, table: str, number: int) -> Insert:
        """The n-th `insert` of a table."""
        found = [e for e in self.inserts if _same_name(e.table, table)]
        if number >= len(found):
            raise VectorError(f"table {table} has no insert {number}: inserts count from 0")
        return found[number]


def _same_name(one: str, other: str) -> bool:
    """True if one name is the other, or its suffix after a dot."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


class Problems:
    """Collects the errors in a file of vectors, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[int, Exception] = {}

    @contextmanager
    def of_line(self, line: int, *kinds: type[Exception]) -> Iterator[None]:
        """Collects an exception of these kinds, so that later lines are checked too."""
        try:
            yield
        except kinds as error:
            self._found.setdefault(line, error)

    def raise_all(self) -> None:
        """Raises VectorError if there are errors. It shows the first MAX_ERRORS."""
        lines = sorted(self._found)
        if not lines:
            return
        shown = [f"{self._path}:{line}: {self._found[line]}" for line in lines[:MAX_ERRORS]]
        raise VectorError("\n".join([*shown, *count_line(len(lines))])) from self._found[lines[0]]


def read_vectors(path: Path) -> Vectors:
    """Reads a file. Raises VectorError, which names the malformed lines."""
    vectors = Vectors(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise VectorError(f"{path}: not UTF-8 text") from error
    problems = Problems(path)
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            with problems.of_line(number, ValueError):
                _read_line(vectors, number, words)
    problems.raise_all()
    return vectors


# The fewest and the most words after each command.
_WORDS: dict[str, tuple[int, float]] = {
    "insert": (2, math.inf),
    "default": (2, math.inf),
    "group": (1, math.inf),
    "clone": (1, math.inf),
    "member": (3, math.inf),
    "members": (2, math.inf),
    "meter": (6, 6),
    "direct_meter": (6, 6),
    "value_set": (2, math.inf),
    "packet": (1, math.inf),
    "expect": (1, math.inf),
    "digest": (2, math.inf),
    "hint": (1, math.inf),
    "counter": (4, 4),
    "direct_counter": (4, 4),
    "register": (3, 3),
    "bench": (2, 2),
}


def _read_line(vectors: Vectors, line: int, words: list[str]) -> None:
    command, *rest = words
    if command not in _WORDS:
        raise ValueError(f"unknown command {command}; there are: {', '.join(_WORDS)}")
    least, most = _WORDS[command]
    if not least <= len(rest) <= most:
        raise ValueError(f"too {'few' if len(rest) < least else 'many'} words after {command}")
    if command in ("packet", "expect", "digest"):
        _read_packet(vectors, line, command, rest)
    elif command == "insert":
        vectors.inserts.append(_insert(rest, line))
    elif command == "default":
        vectors.defaults.append(Default(rest[0], *_call(" ".join(rest[1:])), line=line))
    elif command in ("group", "clone"):
        pairs = [_pair(word) for word in rest[1:]]
        groups = vectors.groups if command == "group" else vectors.clones
        groups.append(Replicas(_number(rest[0]), pairs, line=line))
    elif command == "member":
        call = _call(" ".join(rest[2:]))
        vectors.members.append(ProfileMember(rest[0], _number(rest[1]), *call, line=line))
    elif command == "members":
        numbers = [_number(word) for word in rest[2:]]
        vectors.member_groups.append(ProfileGroup(rest[0], _number(rest[1]), numbers, line=line))
    elif command in ("meter", "direct_meter"):
        cir, cburst, pir, pburst = (_number(word) for word in rest[2:])
        meters = vectors.meters if command == "meter" else vectors.direct_meters
        meters.append(Rates(rest[0], _number(rest[1]), (cir, cburst, pir, pburst), line=line))
    elif command == "value_set":
        vectors.value_sets.append(SetMember(rest[0], _member(rest[1:]), line=line))
    elif command == "hint":
        vectors.hint = " ".join(rest)
    elif command == "bench":
        if vectors.bench is not None:
            raise ValueError("bench is given twice")
        vectors.bench = Bench(_number(rest[0]), _number(rest[1]), line=line)
        if not vectors.bench.run:
            raise ValueError("a run has one packet at least")
    else:
        cells = {
            "counter": vectors.counters,
            "direct_counter": vectors.direct_counters,
            "register": vectors.registers,
        }
        values = tuple(_number(word) for word in rest[2:])
        cells[command].append(Cell(rest[0], _number(rest[1]), values, line=line))


def _read_packet(vectors: Vectors, line: int, command: str, words: list[str]) -> None:
    if command == "packet":
        vectors.packets.append(Packet(_port(words[0]), _frame(words[1:]), hint=vectors.hint, line=line))
        return
    if not vectors.packets:
        raise ValueError(f"{command} without a packet before it")
    packet = vectors.packets[-1]
    if command == "expect":
        packet.expected.append((_port(words[0]), _frame(words[1:])))
        return
    fields = _once("field", (_named(word, "FIELD=VALUE") for word in words[1:]))
    packet.digests.append(Digest(words[0], fields, line=line))


def _frame(words: list[str]) -> bytes:
    digits = "".join(words)
    wrong = re.search(r"[^0-9a-fA-F]", digits)
    if wrong is not None:
        raise ValueError(f"a frame must be hexadecimal, without `{wrong.group()}`")
    if len(digits) % 2:
        raise ValueError(f"a frame must be whole bytes, not {len(digits)} hexadecimal digits")
    return bytes.fromhex(digits)


def _named(text: str, form: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"expected {form}, not {text.strip()}")
    return name.strip(), _integer(value.strip())


def _integer(text: str) -> int:
    if re.fullmatch(r"-?[1-9][0-9]*", text):
        return int(text)
    if re.fullmatch(r"-?(0[xX])?[0-9a-fA-F]+", text):
        return int(text, 16)
    raise ValueError(f"expected a number, decimal or hexadecimal, not {text or 'nothing'}")


def _pair(word: str) -> tuple[int, int]:
    port, colon, rid = word.partition(":")
    if not colon:
        raise ValueError(f"expected PORT:RID, not {word}")
    return _number(port), _number(rid)


def _member(words: list[str]) -> Key | dict[str, Key]:
    if len(words) == 1 and "=" not in words[0]:
        return _value(words[0])
    return _once("field", (_key(word) for word in words))


def _number(text: str) -> int:
    value = _integer(text)
    if value < 0:
        raise ValueError(f"{text} is negative")
    return value


def _port(text: str) -> int:
    port = _number(text)
    if port >= PORTS:
        raise ValueError(f"port {text} is out of range, expected 0 to {PORTS - 1}")
    return port


def _insert(words: list[str], line: int) -> Insert:
    text = " ".join(words[1:])
    # Names of keys may have brackets too, so the action is the last call.
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
        return Insert(words[0], match, _INDIRECT[name](params["id"]), {}, priority, line=line)
    return Insert(words[0], match, name, params, priority, line=line)


def _key(text: str) -> tuple[str, Key]:
    name, equals, value = text.rpartition("=")
    if not equals:
        raise ValueError(f"expected KEY=VALUE without blanks, not {text}")
    return name, _value(value)


def _value(text: str) -> Key:
    for separator in ("..", "&", "/"):
        if separator in text:
            first, _, second = text.partition(separator)
            return _integer(first), _integer(second)
    return _integer(text)


def _call(text: str) -> tuple[str, dict[str, int]]:
    found = _CALL.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected ACTION(PARAM=VALUE, ...), not {text}")
    pairs = [pair for pair in found.group(2).split(",") if pair.strip()]
    return found.group(1), _once("parameter", (_named(pair, "PARAM=VALUE") for pair in pairs))


def _once(what: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{what} {name} is given twice")
        found[name] = value
    return found
