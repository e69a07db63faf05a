# SPDX-License-Identifier: Apache-2.0
"""The lengths of queues, as a program sees them in egress."""

import pytest

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.errors import EntryError
from tests.switch.snippets import compile_to_cpp, v1program

FRAME = bytes(8)
FORWARD = "sm.egress_spec = 2;"
READ = "hdr.h.d = 13w0 ++ sm.deq_qdepth; hdr.h.c = (bit<16>) sm.enq_qdepth;"
MOST = (1 << 19) - 1


def switch(apply: str, egress: str = READ) -> Switch:
    return Switch.from_source(preprocess_text(v1program(apply, egress=egress), "queues.p4").text)


def fields(frame: bytes) -> tuple[int, int]:
    """c and d of the header."""
    return int.from_bytes(frame[2:4], "big"), int.from_bytes(frame[4:8], "big")


def test_egress_sees_the_queue_of_the_port_that_the_packet_leaves_by() -> None:
    with switch(FORWARD) as program:
        ((_, frame),) = program.process(1, FRAME, queues={1: 9, 2: 70})
        assert fields(frame) == (70, 70)
        ((_, frame),) = program.process(1, FRAME, queues={1: 9})
        assert fields(frame) == (0, 0)
        ((_, frame),) = program.process(1, FRAME)
        assert fields(frame) == (0, 0)


def test_each_copy_of_a_multicast_sees_its_own_queue() -> None:
    with switch("sm.mcast_grp = 1;") as program:
        program.multicast_group(1, [(2, 1), (3, 2), (4, 3)])
        left = program.process(1, FRAME, queues={2: 5, 4: 8})
        assert [(port, fields(frame)) for port, frame in left] == [(2, (5, 5)), (3, (0, 0)), (4, (8, 8))]


def test_a_clone_sees_the_queue_of_its_port() -> None:
    clone = "clone_preserving_field_list(CloneType.I2E, 5, 0);"
    with switch(FORWARD + clone) as program:
        program.clone_session(5, [(3, 1)])
        left = program.process(1, FRAME, queues={2: 5, 3: 6})
        assert sorted((port, fields(frame)) for port, frame in left) == [(2, (5, 5)), (3, (6, 6))]


def test_a_queue_that_19_bits_cannot_count_is_as_long_as_they_can() -> None:
    with switch(FORWARD) as program:
        for length in (MOST, MOST + 1, (1 << 32) - 1):
            ((_, frame),) = program.process(1, FRAME, queues={2: length})
            assert fields(frame) == (0xFFFF, MOST)


@pytest.mark.parametrize("length", [-1, 1 << 32, "long"])
def test_a_length_that_is_no_count_is_refused(length: int) -> None:
    with switch(FORWARD) as program, pytest.raises(EntryError, match="queue of port 2"):
        program.process(1, FRAME, queues={2: length})


def test_in_ingress_the_length_is_zero() -> None:
    with switch(FORWARD + READ, egress="if (sm.deq_qdepth > 3) { hdr.h.a = 1; }") as program:
        ((_, frame),) = program.process(1, FRAME, queues={2: 4})
        assert (frame[0], fields(frame)) == (1, (0, 0))


TABLE = """
    action mark() { hdr.h.a = 1; }
    table long { key = { sm.deq_qdepth : range; } actions = { mark; NoAction; } default_action = NoAction(); }
"""
SUB = "control Sub(inout headers_t hdr, inout standard_metadata_t s) { apply { hdr.h.d = 13w0 ++ s.enq_qdepth; } }"
OTHER_SUB = (
    "control Sub(inout headers_t hdr, inout standard_metadata_t s) { apply { hdr.h.d = s.packet_length; } }"
)


@pytest.mark.parametrize(
    ("program", "reads"),
    [
        (v1program(FORWARD, egress="hdr.h.d = sm.packet_length; mark_to_drop(sm);"), False),
        (v1program(FORWARD + READ), False),
        (v1program(FORWARD, egress="hdr.h.c = (bit<16>) sm.enq_qdepth;"), True),
        (v1program(FORWARD, egress="if (sm.deq_qdepth > 3) { hdr.h.a = 1; }"), True),
        (v1program(FORWARD, egress_locals=TABLE, egress="long.apply();"), True),
        (v1program(FORWARD, top=SUB, egress_locals="Sub() sub;", egress="sub.apply(hdr, sm);"), True),
        (v1program(FORWARD, top=OTHER_SUB, egress_locals="Sub() sub;", egress="sub.apply(hdr, sm);"), False),
        (v1program(FORWARD, egress="standard_metadata_t all = sm; hdr.h.c = (bit<16>) all.deq_qdepth;"), True),
    ],
    ids=["others", "ingress", "enq", "deq", "key", "callee", "others of a callee", "a copy of all"],
)  # fmt: skip
def test_queues_are_asked_for_only_if_egress_reads_their_length(program: str, reads: bool) -> None:
    assert f"kReadsQueues = {str(reads).lower()};" in compile_to_cpp(program)
