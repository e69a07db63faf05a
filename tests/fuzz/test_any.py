# SPDX-License-Identifier: Apache-2.0
"""Random entries and packets for any program, and the comparison of the model with BMv2 (`tests.fuzz.any`)."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1.p4info_pb2 import P4Info

from inagg_switch.vectors.format import Packet, Vectors, read_vectors
from inagg_switch.vectors.run import lines_of
from tests.fuzz.any import check, minimise
from tests.fuzz.any_vectors import VectorGenerator
from tests.switch import PROGRAMS, bmv2

INFO = text_format.Parse(
    """
    tables {
      preamble { id: 1 name: "I.t" }
      match_fields { id: 1 name: "h.a" bitwidth: 8 match_type: EXACT }
      match_fields { id: 2 name: "h.b" bitwidth: 16 match_type: TERNARY }
      match_fields { id: 3 name: "h.c[0]" bitwidth: 32 match_type: LPM }
      match_fields { id: 4 name: "h.isValid()" bitwidth: 1 match_type: RANGE }
      action_refs { id: 2 }
      size: 64
    }
    actions { preamble { id: 2 name: "I.set" } params { id: 1 name: "port" bitwidth: 9 } }
    """,
    P4Info(),
)
# A header of one byte; if it is 7, a header of two bytes follows.
CONFIG = {
    "header_types": [{"name": "a_t", "fields": [["x", 8, False]]}, {"name": "b_t", "fields": [["y", 16, False]]}],
    "headers": [{"name": "a", "header_type": "a_t"}, {"name": "b", "header_type": "b_t"}],
    "header_stacks": [],
    "pipelines": [{"tables": [{"name": "I.t"}]}],
    "parsers": [
        {
            "init_state": "start",
            "parse_states": [
                {
                    "name": "start",
                    "parser_ops": [{"op": "extract", "parameters": [{"type": "regular", "value": "a"}]}],
                    "transition_key": [{"type": "field", "value": ["a", "x"]}],
                    "transitions": [{"type": "hexstr", "value": "0x07", "mask": None, "next_state": "more"}],
                },
                {
                    "name": "more",
                    "parser_ops": [{"op": "extract", "parameters": [{"type": "regular", "value": "b"}]}],
                    "transition_key": [],
                    "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
                },
            ],
        }
    ],
}  # fmt: skip


def test_packets_follow_the_parser() -> None:
    packets = VectorGenerator(INFO, CONFIG, 1).vectors(100).packets
    assert sum(p.frame[0] == 7 for p in packets) > 80
    assert any(len(p.frame) < 3 for p in packets)
    assert any(len(p.frame) > 3 for p in packets)


def test_the_same_seed_gives_the_same_vectors() -> None:
    assert VectorGenerator(INFO, CONFIG, 5).vectors(9) == VectorGenerator(INFO, CONFIG, 5).vectors(9)


def test_vectors_are_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    for seed in range(20):
        made = VectorGenerator(INFO, CONFIG, seed).vectors(3)
        made.packets[0].expected = [(1, b"\x01\x02")]
        (tmp_path / "v").write_text("\n".join(lines_of(made, INFO)))
        read = read_vectors(tmp_path / "v")
        assert read == made


def test_only_what_makes_the_difference_is_left() -> None:
    vectors = Vectors(packets=[Packet(1, bytes([n])) for n in range(16)])

    def differs(v: Vectors) -> bool:
        return {b"\x03", b"\x0a"} <= {p.frame for p in v.packets}

    assert [p.frame for p in minimise(vectors, differs).packets] == [b"\x03", b"\x0a"]


@pytest.mark.bmv2
@pytest.mark.skipif(not bmv2.available(), reason="p4c, simple_switch or libnanomsg is missing")
@pytest.mark.parametrize("program", ["tables", "parsing"])
def test_the_model_does_what_bmv2_does(program: str) -> None:
    assert check(PROGRAMS / f"{program}.p4", range(1, 3), 40, None) == 0
