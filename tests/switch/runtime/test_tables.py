# SPDX-License-Identifier: Apache-2.0
"""Tables of programs/tables.p4: lookups compared with a scan of all entries, and changes that are refused."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from inagg_switch import EntryError, Switch, SwitchError, UnknownName
from inagg_switch.compiler.lower import tables as _lower_tables
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.program.values import MatchValue
from tests.switch import PROGRAMS
from tests.switch.snippets import v1program

TABLES_P4 = PROGRAMS / "tables.p4"

Match: TypeAlias = dict[str, MatchValue]


@pytest.fixture
def program() -> Iterator[Switch]:
    with Switch.from_p4(TABLES_P4) as made:
        yield made


def look_up(program: Switch, which: int, k: int = 0, p: int = 0, q: int = 0) -> int:
    """The value that the table's action gives; 0 where NoAction runs."""
    frame = bytes([which]) + k.to_bytes(4, "big") + p.to_bytes(2, "big") + bytes([q])
    ((_, out),) = program.process(1, frame)
    return int.from_bytes(out[2:4], "big")


@dataclass
class Kind:
    """A table, how to make a random key for it, and whether a key matches (k, p, q)."""

    table: str
    which: int
    make: Callable[[random.Random], Match]
    matches: Callable[[Match, int, int, int], bool]
    rank: Callable[[Match, int], int]  # the highest wins
    missed: int
    prioritised: bool


def pair(match: Match, key: str) -> tuple[int, int]:
    """The prefix, mask or range of a key."""
    value = match[key]
    assert isinstance(value, tuple)
    first, second = value
    assert isinstance(first, int)
    assert isinstance(second, int)
    return first, second


def prefix_match(match: Match, k: int) -> bool:
    number, length = pair(match, "hdr.i.k")
    return length == 0 or (number ^ k) >> (32 - length) == 0


def prefix(r: random.Random) -> tuple[int, int]:
    length = r.choice((0, 1, 8, 16, 24, 31, 32))
    return r.choice((0x0A010203, 0x0A01FFFF, r.getrandbits(32))) >> (32 - length) << (32 - length), length


def masked(r: random.Random, width: int) -> tuple[int, int]:
    mask = r.choice((0, 1, (1 << width) - 1, 0xF0 & (1 << width) - 1, r.getrandbits(width)))
    return r.getrandbits(3) & mask, mask


def span(r: random.Random) -> tuple[int, int]:
    low, high = sorted((r.randrange(40), r.choice((r.randrange(40), r.randrange(1 << 16), (1 << 16) - 1))))
    return low, high


def masked_match(match: Match, key: str, value: int) -> bool:
    number, mask = pair(match, key)
    return value & mask == number


def span_match(match: Match, p: int) -> bool:
    low, high = pair(match, "hdr.i.p")
    return low <= p <= high


KINDS = {
    "exact": Kind(
        "exactly", 0, lambda r: {"hdr.i.k": r.randrange(4), "hdr.i.p": r.randrange(4)},
        lambda m, k, p, q: (m["hdr.i.k"], m["hdr.i.p"]) == (k, p), lambda m, priority: 0, 0xFFFF, False),
    "lpm": Kind(
        "prefix", 1, lambda r: {"hdr.i.k": prefix(r)}, lambda m, k, p, q: prefix_match(m, k),
        lambda m, priority: pair(m, "hdr.i.k")[1], 0xFFFF, False),
    "exact and lpm": Kind(
        "both", 2, lambda r: {"hdr.i.q": r.randrange(2), "hdr.i.k": prefix(r)},
        lambda m, k, p, q: m["hdr.i.q"] == q and prefix_match(m, k),
        lambda m, priority: pair(m, "hdr.i.k")[1], 0, False),
    "ternary": Kind(
        "masks", 3, lambda r: {"hdr.i.k": masked(r, 32), "hdr.i.p": masked(r, 16)},
        lambda m, k, p, q: masked_match(m, "hdr.i.k", k) and masked_match(m, "hdr.i.p", p),
        lambda m, priority: priority, 0, True),
    "range": Kind(
        "ranges", 4, lambda r: {"hdr.i.p": span(r), "hdr.i.q": r.randrange(2)},
        lambda m, k, p, q: span_match(m, p) and m["hdr.i.q"] == q,
        lambda m, priority: priority, 0x1234, True),
    "optional": Kind(
        "maybe", 5, lambda r: {n: r.randrange(3) for n in ("hdr.i.q", "hdr.i.p") if r.random() < 0.6},
        lambda m, k, p, q: m.get("hdr.i.q", q) == q and m.get("hdr.i.p", p) == p,
        lambda m, priority: priority, 0, True),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_lookups_agree_with_a_scan_of_all_entries(program: Switch, name: str) -> None:
    kind = KINDS[name]
    r = random.Random(3)
    entries: dict[str, tuple[Match, int, int]] = {}
    size = 16 if name == "exact" else 1024
    for step in range(600):
        match = kind.make(r)
        priority = len(entries) * 1000 + step + 1 if kind.prioritised else 0
        key = str(sorted(match.items())) + (str(priority) if kind.prioritised else "")
        if entries and r.random() < 0.35:
            gone = r.choice(list(entries))
            old, old_priority, _ = entries.pop(gone)
            program.delete(kind.table, old, old_priority)
        elif key not in entries and len(entries) < size:
            program.insert(kind.table, match, "set", {"value": step + 1}, priority)
            entries[key] = (match, priority, step + 1)
        k = r.choice((0x0A010203, 0x0A01FF00, r.randrange(4), r.getrandbits(32)))
        p, q = r.randrange(40), r.randrange(3)
        fitting = [e for e in entries.values() if kind.matches(e[0], k, p, q)]
        best = max(fitting, key=lambda e: kind.rank(e[0], e[1]), default=None)
        assert look_up(program, kind.which, k, p, q) == (kind.missed if best is None else best[2])
    assert len(program.entries(kind.table)) == len(entries)


def test_equal_priorities_match_in_order_of_insertion(program: Switch) -> None:
    program.insert("masks", {"hdr.i.k": (0, 1)}, "set", {"value": 1}, priority=5)
    program.insert("masks", {"hdr.i.k": (0, 2)}, "set", {"value": 2}, priority=5)
    assert look_up(program, 3, k=0) == 1


def test_bits_outside_a_prefix_or_a_mask_are_ignored(program: Switch) -> None:
    program.insert("both", {"hdr.i.q": 4, "hdr.i.k": (0x0A000101, 24)}, "set", {"value": 5})
    program.insert(
        "masks", {"hdr.i.k": (0x0A000101, 0xFFFFFF00), "hdr.i.p": (3, 0)}, "set", {"value": 7}, priority=1
    )
    (lpm,), (ternary,) = program.entries("both"), program.entries("masks")
    assert lpm.match == {"hdr.i.q": 4, "hdr.i.k": (0x0A000100, 24)}
    assert ternary.match["hdr.i.k"] == (0x0A000100, 0xFFFFFF00)
    assert look_up(program, 3, k=0x0A000177, p=9) == 7
    program.delete("both", {"hdr.i.q": 4, "hdr.i.k": (0x0A000102, 24)})
    assert not program.entries("both")


def test_a_value_without_prefix_mask_or_end_matches_only_itself(program: Switch) -> None:
    program.insert("both", {"hdr.i.q": 4, "hdr.i.k": 0x0A000101}, "set", {"value": 5})
    program.insert("masks", {"hdr.i.k": 0x0A000101}, "set", {"value": 7}, priority=1)
    program.insert("ranges", {"hdr.i.p": 3, "hdr.i.q": 1}, "set", {"value": 1}, priority=2)
    (lpm,), (ternary,), (range_,) = (program.entries(table) for table in ("both", "masks", "ranges"))
    assert lpm.match["hdr.i.k"] == (0x0A000101, 32)
    assert ternary.match["hdr.i.k"] == (0x0A000101, 0xFFFFFFFF)
    assert range_.match["hdr.i.p"] == (3, 3)


def test_two_slices_of_one_field_are_separate_keys() -> None:
    table = """action mark(bit<8> v) { hdr.h.b = v; }
        table t { key = { hdr.h.a[3:0]: exact; hdr.h.a[7:4]: ternary; } actions = { mark; NoAction; } }"""
    text = v1program("sm.egress_spec = 1; t.apply();", locals=table)
    with Switch.from_source(preprocess_text(text, "test.p4").text) as switch:
        match: Match = {"hdr.h.a[3:0]": 5, "hdr.h.a[7:4]": (2, 3)}
        switch.insert("t", match, "mark", {"v": 9}, priority=1)
        (entry,) = switch.entries("t")
        assert entry.match == match
        frames = [bytes([high << 4 | low]) + bytes(40) for high, low in ((2, 5), (6, 5), (3, 5), (2, 4))]
        marked = [switch.process(1, frame)[0][1] != frame for frame in frames]
        assert marked == [True, True, False, False]


def test_entries_are_read_back_as_written(program: Switch) -> None:
    program.insert("masks", {"hdr.i.k": (0x0A000000, 0xFF000000)}, "add", {"value": 7, "more": 9}, priority=3)
    program.insert("both", {"hdr.i.q": 4, "hdr.i.k": (0x0A000000, 8)}, "set", {"value": 5})
    program.insert("both", {"hdr.i.q": 5}, "set", {"value": 6})
    program.insert("ranges", {"hdr.i.p": (3, 9), "hdr.i.q": 1}, "set", {"value": 1}, priority=2)
    program.insert("ranges", {"hdr.i.q": 2}, "missed", priority=1)
    program.insert("maybe", {"hdr.i.p": 3}, "NoAction", priority=1)
    (entry,) = program.entries("masks")
    assert (entry.match, entry.action, entry.params) == (
        {"hdr.i.k": (0x0A000000, 0xFF000000)}, "I.add", {"value": 7, "more": 9})  # fmt: skip
    assert (entry.priority, entry.is_const) == (3, False)
    assert sorted(str(e.match) for e in program.entries("both")) == [
        "{'hdr.i.q': 4, 'hdr.i.k': (167772160, 8)}", "{'hdr.i.q': 5}"]  # fmt: skip
    assert sorted(str(e.match) for e in program.entries("ranges")) == [
        "{'hdr.i.p': (3, 9), 'hdr.i.q': 1}", "{'hdr.i.q': 2}"]  # fmt: skip
    assert program.entries("maybe")[0].match == {"hdr.i.p": 3}
    assert {e.is_const for e in program.entries("fixed")} == {True}


def test_direct_counters_count_hits_only(program: Switch) -> None:
    key = {"hdr.i.k": 1, "hdr.i.p": 2}
    program.insert("exactly", key, "set", {"value": 1})
    look_up(program, 0, k=1, p=2)
    look_up(program, 0, k=1, p=2)
    look_up(program, 0, k=9, p=9)
    assert program.direct_counter("exactly", key) == (2, 16)
    program.modify("exactly", key, "set", {"value": 2})
    assert program.direct_counter("exactly", key) == (2, 16)
    assert program.entries("exactly")[0].packets == 2


def test_a_default_action_is_changed_and_reset(program: Switch) -> None:
    assert look_up(program, 0) == 0xFFFF
    program.set_default("exactly", "set", {"value": 3})
    assert look_up(program, 0) == 3
    assert program.default_entry("exactly").params == {"value": 3}
    program.set_default("exactly", None)
    assert look_up(program, 0) == 0xFFFF


KEY = {"hdr.i.k": 1, "hdr.i.p": 2}
REFUSED = {
    "an equal entry": lambda p: p.insert("exactly", KEY, "set", {"value": 9}),
    "deleting what is not there": lambda p: p.delete("exactly", {"hdr.i.k": 2, "hdr.i.p": 2}),
    "modifying what is not there": lambda p: p.modify("exactly", {"hdr.i.k": 2, "hdr.i.p": 2}, "missed"),
    "a value too wide": lambda p: p.insert("exactly", {"hdr.i.k": 1 << 32, "hdr.i.p": 2}, "missed"),
    "a negative value": lambda p: p.insert("exactly", {"hdr.i.k": -1, "hdr.i.p": 2}, "missed"),
    "an exact key left out": lambda p: p.insert("exactly", {"hdr.i.k": 1}, "missed"),
    "a parameter too wide": lambda p: p.insert(
        "exactly", {"hdr.i.k": 3, "hdr.i.p": 2}, "set", {"value": 1 << 16}
    ),
    "a parameter left out": lambda p: p.insert("exactly", {"hdr.i.k": 3, "hdr.i.p": 2}, "set"),
    "a priority where none belongs": lambda p: p.insert(
        "exactly", {"hdr.i.k": 3, "hdr.i.p": 2}, "missed", priority=1
    ),
    "a priority beyond 32 bits": lambda p: p.insert("masks", {}, "NoAction", priority=(1 << 32) + 1),
    "a negative priority": lambda p: p.insert("masks", {}, "NoAction", priority=-1),
    "a priority left out": lambda p: p.insert("masks", {}, "NoAction"),
    "a prefix too long": lambda p: p.insert("prefix", {"hdr.i.k": (1, 33)}, "missed"),
    "a range upside down": lambda p: p.insert(
        "ranges", {"hdr.i.p": (3, 2), "hdr.i.q": 1}, "missed", priority=1
    ),
    "a table with const entries": lambda p: p.insert("fixed", {"p": 9}, "missed", priority=1),
    "deleting a const entry": lambda p: p.delete("fixed", {"p": 2}, priority=2),
    "a const default action": lambda p: p.set_default("prefix", "set", {"value": 1}),
    "a table without keys": lambda p: p.insert("keyless", {}, "set", {"value": 1}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_change_leaves_everything_as_it_was(program: Switch, what: str) -> None:
    program.insert("exactly", KEY, "set", {"value": 1})
    tables = [t.preamble.name for t in program.p4info.tables]
    before = [program.entries(t) for t in tables] + [program.default_entry(t) for t in tables]
    with pytest.raises(EntryError):
        REFUSED[what](program)
    assert [program.entries(t) for t in tables] + [program.default_entry(t) for t in tables] == before


def test_where_an_action_cannot_be_used_is_said() -> None:
    source = v1program(
        "t.apply();",
        locals="action a() {} action b() {}"
        " table t { key = { meta.x: exact; } actions = { @tableonly a; @defaultonly b; NoAction; }"
        " default_action = b; }",
    )
    with Switch.from_source(preprocess_text(source).text) as sw:
        with pytest.raises(
            EntryError, match=r"cannot insert .* in table .*t: action .*b is @defaultonly there"
        ):
            sw.insert("t", {"meta.x": 1}, "b")
        with pytest.raises(EntryError, match=r"default action of table .*t: action .*a is @tableonly there"):
            sw.set_default("t", "a")
        sw.insert("t", {"meta.x": 1}, "a")
        sw.set_default("t", "NoAction")


def test_a_table_without_keys_misses_and_runs_its_default_action() -> None:
    source = v1program(
        "if (t.apply().hit) { hdr.h.a = 1; } switch (u.apply().action_run) { send: { hdr.h.b = 2; } }",
        locals="action send(bit<9> port) { sm.egress_spec = port; }"
        " table t { actions = { send; NoAction; } default_action = NoAction; }"
        " table u { actions = { send; NoAction; } default_action = NoAction; }",
    )
    with Switch.from_source(preprocess_text(source).text) as sw:
        assert sw.process(1, bytes(8)) == [(0, bytes(8))]
        sw.set_default("t", "send", {"port": 3})
        assert sw.process(1, bytes(8)) == [(3, bytes(8))]
        sw.set_default("u", "send", {"port": 4})
        assert sw.process(1, bytes(8)) == [(4, b"\0\2" + bytes(6))]


def test_an_entry_may_be_const_among_others_that_are_not() -> None:
    source = v1program(
        "t.apply();",
        locals="table t { key = { meta.x: ternary; } actions = { NoAction; }"
        " entries = { const priority = 2: 1: NoAction(); priority = 1: 2: NoAction(); } }",
    )
    with Switch.from_source(preprocess_text(source).text) as sw:
        with pytest.raises(EntryError, match="the program declares it const"):
            sw.delete("t", {"meta.x": 1}, priority=2)
        with pytest.raises(EntryError, match="the program declares it const"):
            sw.modify("t", {"meta.x": 1}, "NoAction", priority=2)
        sw.delete("t", {"meta.x": 2}, priority=1)
        sw.insert("t", {"meta.x": 3}, "NoAction", priority=1)
        assert [(e.match["meta.x"], e.is_const) for e in sw.entries("t")] == [
            ((1, 255), True),
            ((3, 255), False),
        ]


def test_a_priority_beyond_32_bits_does_not_find_an_entry(program: Switch) -> None:
    program.insert("masks", {}, "NoAction", priority=1)
    for priority in ((1 << 32) + 1, 1 - (1 << 32)):
        with pytest.raises(EntryError, match="out of range"):
            program.modify("masks", {}, "NoAction", priority=priority)
        with pytest.raises(EntryError, match="out of range"):
            program.delete("masks", {}, priority=priority)
        with pytest.raises(EntryError, match="out of range"):
            program.direct_counter("masks", {}, priority=priority)
    assert [entry.priority for entry in program.entries("masks")] == [1]


def test_a_full_table_accepts_an_entry_after_a_deletion(program: Switch) -> None:
    for number in range(16):
        program.insert("exactly", {"hdr.i.k": number, "hdr.i.p": 0}, "missed")
    with pytest.raises(EntryError, match="full"):
        program.insert("exactly", {"hdr.i.k": 16, "hdr.i.p": 0}, "missed")
    program.delete("exactly", {"hdr.i.k": 3, "hdr.i.p": 0})
    program.insert("exactly", {"hdr.i.k": 16, "hdr.i.p": 0}, "missed")


@pytest.mark.parametrize(("call", "message"), [
    (lambda p: p.insert("nope", {}, "set"), "no table `nope`; there are: I.exactly"),
    (lambda p: p.insert("exactly", KEY, "only_here"), "table I.exactly has no action `only_here`; there are: I.set, "),
    (lambda p: p.insert("exactly", {"k": 1}, "set"), "table I.exactly has no key `k`; did you mean `hdr.i.k`?"),
    (lambda p: p.insert("exactly", {"port": 1}, "set"), "table I.exactly has no key `port`; there are: hdr.i.k, hdr"),
    (lambda p: p.insert("exactly", KEY, "mised"), "table I.exactly has no action `mised`; did you mean `I.missed`?"),
    (lambda p: p.insert("exactly", KEY, "set", {"valeu": 1}), "I.set has no parameter `valeu`; did you mean `value`?"),
    (lambda p: p.insert("exactly", KEY, "missed", {"x": 1}), "action I.missed has no parameter `x`"),
    (lambda p: p.counter("hits"), "no counter `hits`; there are: none"),
    (lambda p: p.register("r"), "no register `r`"),
])  # fmt: skip
def test_unknown_names(program: Switch, call: Callable[[Switch], object], message: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(message)):
        call(program)


ENTRIES = """table t {{ key = {{ hdr.h.a: exact; }} actions = {{ NoAction; }} size = 1;
    entries = {{ {entries} }} }}"""


def with_entries(entries: str) -> Switch:
    text = v1program("t.apply();", locals=ENTRIES.format(entries=entries))
    return Switch.from_source(preprocess_text(text, "test.p4").text)


def test_entries_of_the_program_always_fit() -> None:
    with with_entries("1: NoAction(); 2: NoAction();") as switch:
        assert sorted((e.match["hdr.h.a"] for e in switch.entries("t")), key=str) == [1, 2]
        with pytest.raises(EntryError):
            switch.insert("t", {"hdr.h.a": 3}, "NoAction")


def test_a_program_with_an_entry_that_the_table_refuses_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_lower_tables, "_refuse_doubles", lambda *_: None)
    with pytest.raises(SwitchError, match="cannot start: an entry of table"):
        with_entries("1: NoAction(); 1: NoAction();")
