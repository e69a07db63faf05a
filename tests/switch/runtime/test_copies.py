# SPDX-License-Identifier: Apache-2.0
"""Copies of a multicast: what they share, and which of them are known to be equal."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.program import abi
from tests import INAGG_P4
from tests.switch import PROGRAMS
from tests.switch.inagg.packets import Job
from tests.switch.snippets import v1program


@dataclass(frozen=True)
class Left:
    """A packet that has left, as the program has told: `shared` bytes at its end, `again` equal to the one before."""

    port: int
    frame: bytes
    shared: int
    again: bool


def process(program: Switch, port: int, frame: bytes) -> list[Left]:
    """Checks what the program says of the packets."""
    left: list[Left] = []

    def emit(
        _: int,
        port: int,
        data: "ctypes._Pointer[ctypes.c_uint8]",
        length: int,
        shared: int,
        copies: int,
        again: int,
        priority: int,
    ) -> None:
        left.append(Left(port, ctypes.string_at(data, length), shared, again != 0))

    program._emit = abi.EmitFunction(emit)
    program.process(port, frame)
    assert (
        len({(len(one.frame), one.shared, one.frame[-one.shared :]) for one in left if one.shared > 0}) <= 1
    )
    for before, one in zip([None, *left], left, strict=False):
        assert not one.again or (before is not None and before.frame == one.frame)
    return left


def test_the_results_of_a_sum_share_their_payload() -> None:
    with Switch.from_p4(INAGG_P4) as program:
        job = Job(workers=3)
        job.install(program)
        assert process(program, 1, job.data(0, 0, [1] * 4)) == []
        process(program, 2, job.data(1, 0, [2] * 4))
        results = process(program, 3, job.data(2, 0, [3] * 4))
        assert [one.shared for one in results] == [20 + 1024] * 3
        (once,) = process(program, 3, job.data(2, 0, [3] * 4))  # one copy only
        assert (once.shared, once.again) == (0, False)


@pytest.mark.parametrize("grouped", [False, True])
def test_results_are_known_to_be_equal_if_they_go_to_the_group(grouped: bool) -> None:
    with Switch.from_p4(INAGG_P4) as program:
        job = Job(workers=3, multicast=grouped)
        job.install(program)
        for rank in range(2):
            process(program, 1 + rank, job.data(rank, 0, [1] * 4))
        results = process(program, 3, job.data(2, 0, [1] * 4))
        assert [one.again for one in results] == [False, grouped, grouped]


def test_copies_share_nothing_once_egress_has_changed_the_length_of_one() -> None:
    with Switch.from_p4(PROGRAMS / "pipeline.p4") as program:
        program.multicast_group(5, [(1, 10), (2, 20), (3, 30), (2, 21)])
        frame = bytes.fromhex("040000000508") + bytes(range(192)) + b"rest"
        assert [one.shared for one in process(program, 2, frame)] == [128 + 4, 128 + 4, 0, 0]


# Each bit of `how` makes egress write in another way, by the copy's replication id.
WRITES = {
    "headers": """
header h_t { bit<16> how; bit<8> a; bit<8> b; bit<16> c; bit<8> seen; bit<16> hash; bit<8> end; bit<16> sum; }
header g_t { bit<8> a; bit<8> b; }
struct headers_t { h_t h; g_t g; g_t k; }
struct metadata_t { bit<8> x; bit<8> y; bool flag; }
""",
    "parser": "state start { packet.extract(hdr.h); packet.extract(hdr.g); packet.extract(hdr.k); transition accept; }",
    "top": """
control Inner(inout headers_t inside, in bit<8> rid) { apply { inside.g.b = rid & 1; } }
void set_to(out bit<8> target, in bit<8> value) { target = value; }
""",
    "egress_locals": """
    register<bit<8>>(4) seen;
    Inner() inner;
    bit<8> rid;
    action bump(inout g_t target, in bit<8> value) { target.a = target.a + value; }
    action by_table(out bit<8> target) { target = rid & 2; }
    table t { actions = { by_table(hdr.h.end); } const default_action = by_table(hdr.h.end); }
""",
    "egress": """
    rid = (bit<8>) sm.egress_rid;
    if (hdr.h.how[0:0] == 1) { hdr.h.a = rid & 1; }
    if (hdr.h.how[1:1] == 1) { hdr.h.c[3:0] = rid[3:0] & 2; }
    if (hdr.h.how[2:2] == 1 && rid[1:1] == 1) { hdr.g.setInvalid(); }
    if (hdr.h.how[3:3] == 1 && rid[0:0] == 1) { hdr.k = hdr.g; }
    if (hdr.h.how[4:4] == 1) { meta.flag = rid[0:0] == 1; }
    if (hdr.h.how[5:5] == 1) { inner.apply(hdr, rid); }
    if (hdr.h.how[6:6] == 1) { set_to(hdr.h.b, rid & 3); }
    if (hdr.h.how[7:7] == 1) { bump(hdr.k, rid & 1); }
    if (hdr.h.how[8:8] == 1) { t.apply(); }
    if (hdr.h.how[9:9] == 1) { seen.read(hdr.h.seen, 0); seen.write(0, hdr.h.seen + (rid & 1)); }
    if (hdr.h.how[10:10] == 1) { hash(hdr.h.hash, HashAlgorithm.crc16, 16w0, { rid & 1 }, 32w65536); }
    if (hdr.h.how[11:11] == 1 && rid[0:0] == 1) { mark_to_drop(sm); }
    if (hdr.h.how[12:12] == 1) { meta.x = rid; }
""",
    "update": "update_checksum(meta.flag, { hdr.h.a, hdr.h.b }, hdr.h.sum, HashAlgorithm.csum16);",
}


@pytest.fixture(scope="module")
def written() -> Iterator[tuple[Switch, Switch]]:
    """The program, which compares copies, and its traced build, which deparses each copy."""
    source = preprocess_text(v1program("sm.mcast_grp = 1;", **WRITES), "copies.p4").text
    with Switch.from_source(source) as program, Switch.from_source(source, traced=True) as traced:
        assert "kComparesCopies = true" in program.generated.read_text()
        assert "kComparesCopies = false" in traced.generated.read_text()
        yield program, traced


@pytest.mark.parametrize("way", range(13))
@given(
    others=st.sets(st.integers(0, 12), max_size=2), rids=st.lists(st.integers(0, 3), min_size=1, max_size=8)
)
def test_copies_leave_as_if_each_was_deparsed(
    written: tuple[Switch, Switch], way: int, others: set[int], rids: Sequence[int]
) -> None:
    ways = {way} | others
    frame = sum(1 << way for way in ways).to_bytes(2, "big") + bytes(range(32))
    found = []
    for program in written:
        program.multicast_group(1, [(1 + i, rid) for i, rid in enumerate(rids)])
        found.append(process(program, 1, frame))
    assert [(one.port, one.frame) for one in found[0]] == [(one.port, one.frame) for one in found[1]]
    assert not any(one.again for one in found[1])
    if len(set(rids)) == 1 and 9 not in ways:  # 9: each copy counts
        assert all(one.again for one in found[0][1:])


STANDARD_IN_METADATA = WRITES["headers"].replace("bool flag; }", "bool flag; standard_metadata_t s; }")


@pytest.mark.parametrize("code", [
    # An `out` argument is cleared.
    {"top": "control X(out headers_t hdr) { apply { } }", "egress": "if (rid == 1) { X.apply(hdr); }"},
    {"top": "void f(out metadata_t m) { }", "egress": "if (rid == 1) { f(meta); }", "update": "hdr.h.a = meta.y;"},
    {"top": "control X(out metadata_t m) { apply { } }", "egress_locals": "X() x; metadata_t other;",
     "egress": "if (rid == 1) { x.apply(meta); } else { x.apply(other); }", "update": "hdr.h.a = meta.y;"},
    {"headers": STANDARD_IN_METADATA, "egress": "if (rid == 1) { mark_to_drop(meta.s); }",
     "update": "if (meta.s.egress_spec == 511) { hdr.h.a = 99; }"},
    # `exit` ends egress only.
    {"top": "control X(inout headers_t hdr) { apply { if (hdr.h.a == 77) { exit; } hdr.h.b = 5; } }",
     "egress": "if (rid == 1) { exit; }", "update": "X.apply(hdr); hdr.h.a = 88;"},
    {"egress": "log_msg(\"{}\", { hdr.h.a }); hdr.h.a = rid;"},
], ids=repr)  # fmt: skip
def test_copies_are_right_in_programs_that_hide_what_they_write(code: dict[str, str]) -> None:
    code = {**code, "egress": f"bit<8> rid = (bit<8>) sm.egress_rid; {code['egress']}"}
    parser = WRITES["parser"].replace("transition", "meta.y = 7; transition")
    whole = v1program("sm.mcast_grp = 1;", **{"headers": WRITES["headers"], "parser": parser, **code})
    source = preprocess_text(whole, "copies.p4").text
    found = []
    for traced in (False, True):
        with Switch.from_source(source, traced=traced) as program:
            program.multicast_group(1, [(1 + i, rid) for i, rid in enumerate((0, 1, 1, 0, 2, 1))])
            found.append([(one.port, one.frame) for one in process(program, 1, bytes(range(40)))])
    assert found[0] == found[1]
    assert len({frame for _, frame in found[0]}) > 1 or "exit" in code["egress"]


def test_a_random_checksum_is_drawn_for_each_copy() -> None:
    update = "update_checksum(true, { hdr.h.a }, hdr.h.sum, HashAlgorithm.random);"
    whole = v1program("sm.mcast_grp = 1;", headers=WRITES["headers"], parser=WRITES["parser"], update=update)
    with Switch.from_source(preprocess_text(whole, "copies.p4").text) as program:
        program.multicast_group(1, [(1 + i, 0) for i in range(6)])
        assert len({one.frame for one in process(program, 1, bytes(40))}) > 1


BIG = """
header h_t { bit<8> a; bit<8> b; bit<16> c; }
header big_t { bit<512> a; bit<256> b; }
struct headers_t { h_t h; big_t g; }
struct metadata_t { bit<8> x; }
"""


def test_an_out_argument_touches_every_header() -> None:
    whole = v1program(
        "sm.mcast_grp = 1;",
        headers=BIG,
        parser="state start { packet.extract(hdr.h); packet.extract(hdr.g); transition accept; }",
        top="control X(out headers_t hdr) { apply { hdr.h.b = 2; } }",
        egress="if (sm.egress_rid == 1) { X.apply(hdr); }",
        deparser="packet.emit(hdr.g);",
    )
    with Switch.from_source(preprocess_text(whole, "copies.p4").text) as program:
        program.multicast_group(1, [(1, 0), (2, 1), (3, 1), (4, 0)])
        frames = [one.frame for one in process(program, 1, bytes(range(120)))]
    assert [len(frame) for frame in frames] == [116, 20, 20, 116]
