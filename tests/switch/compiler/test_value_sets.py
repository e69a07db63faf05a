# SPDX-License-Identifier: Apache-2.0
"""Parser value sets: their P4Info, and the packets that their members match."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from p4.config.v1 import p4info_pb2 as pb

from inagg_switch import CompileError, Switch
from inagg_switch.program.abi import Match
from tests.switch.snippets import compile_to_cpp, v1program

PARSER = """
    @id(7) value_set<bit<8>>(2) alone;
    value_set<pair_t>(4) pairs;
    state start {
        packet.extract(hdr.h);
        transition select(hdr.h.a) { alone: one; default: more; }
    }
    state one { meta.x = 1; transition accept; }
    state more { transition select(hdr.h.b, hdr.h.c) { pairs: two; (1, _): three; } }
    state two { meta.x = 2; transition accept; }
    state three { meta.x = 3; transition accept; }
"""
TOP = "struct pair_t { bit<8> first; @match(ternary) bit<16> second; }"
PROGRAM = v1program("sm.egress_spec = 1; hdr.h.d = (bit<32>) meta.x;", parser=PARSER, top=TOP)


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    path = tmp_path / "sets.p4"
    path.write_text(PROGRAM)
    with Switch.from_p4(path) as made:
        yield made


def write(switch: Switch, name: str, rows: list[list[tuple[bytes, bytes | None]]]) -> int:
    identity = next(v.preamble.id for v in switch.p4info.value_sets if v.preamble.name == name)
    flat = [part for row in rows for part in row]
    matches = (Match * max(1, len(flat)))(*(Match(value, mask, 0) for value, mask in flat))
    with switch.locked() as (api, handle):
        return int(api.value_set_write(handle, identity, matches, len(rows)))


def state_of(switch: Switch, a: int, b: int, c: int) -> int:
    ((_, frame),) = switch.process(1, bytes([a, b]) + c.to_bytes(2, "big") + bytes(4), 0.0)
    return frame[7]


def test_p4info_has_the_value_sets(switch: Switch) -> None:
    alone, pairs = switch.p4info.value_sets
    assert (alone.preamble.id, alone.preamble.name, alone.size) == (0x03000007, "P.alone", 2)
    assert [(m.id, m.name, m.bitwidth, m.match_type) for m in alone.match] == [
        (1, "", 8, pb.MatchField.EXACT)
    ]
    assert [(m.id, m.name, m.bitwidth, m.match_type) for m in pairs.match] == [
        (1, "first", 8, pb.MatchField.EXACT), (2, "second", 16, pb.MatchField.TERNARY)]  # fmt: skip


def test_an_empty_set_has_no_members(switch: Switch) -> None:
    assert state_of(switch, 0, 0, 0) == 0
    assert state_of(switch, 5, 1, 0) == 3


def test_members_are_replaced_as_a_whole(switch: Switch) -> None:
    assert write(switch, "P.alone", [[(b"\x05", None)], [(b"\x06", None)]]) == 0
    assert [state_of(switch, a, 0, 0) for a in (4, 5, 6)] == [0, 1, 1]
    assert write(switch, "P.alone", [[(b"\x04", None)]]) == 0
    assert [state_of(switch, a, 0, 0) for a in (4, 5, 6)] == [1, 0, 0]


def test_a_set_of_structs_matches_all_the_subjects(switch: Switch) -> None:
    assert write(switch, "P.pairs", [[(b"\x01", None), (b"\x12\x00", b"\xff\x00")]]) == 0
    assert [state_of(switch, 0, b, c) for b, c in ((1, 0x1234), (1, 0x1334), (2, 0x1234))] == [2, 3, 0]


def test_more_members_than_the_size_are_refused(switch: Switch) -> None:
    assert write(switch, "P.alone", [[(bytes([n]), None)] for n in range(3)]) < 0
    assert state_of(switch, 1, 0, 0) == 0


@pytest.mark.parametrize(("parser", "message"), [
    ("value_set<h_t>(2) s; state start { transition select(meta.x) { s: accept; } }",
     "the value set has elements"),
    ("value_set<string>(2) s; state start { transition accept; }", "the element of a value set must be bits"),
    ("value_set<pair_t>(meta.x) s; state start { transition accept; }", "must be a number known at compile time"),
    ("value_set<bit<8>>(2) s; state start { meta.x = s; transition accept; }", "expected bit<8>"),
])  # fmt: skip
def test_wrong_value_sets_are_refused(parser: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        compile_to_cpp(v1program(parser=parser, top=TOP))
