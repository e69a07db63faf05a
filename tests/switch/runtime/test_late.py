# SPDX-License-Identifier: Apache-2.0
"""Frames whose UDP checksum comes late (isw_late in runtime/program.h): programs do what they do with whole frames."""

import ctypes
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.program.abi import Late, LateFunction, QueueFunction
from inagg_switch.vectors.format import read_vectors
from inagg_switch.vectors.run import failures
from tests import INAGG_P4
from tests.switch import PROGRAMS
from tests.switch.inagg.packets import Job, read_result
from tests.switch.snippets import v1program


class LateSwitch(Switch):
    """Gets two bytes of each frame late, at random places, or at a given one."""

    place: int | None = None
    fills = 0

    def process(
        self,
        port: int,
        frame: bytes | bytearray | memoryview,
        now: float = 0.0,
        queues: Mapping[int, int] | None = None,
        thread: int | None = None,
    ) -> list[tuple[int, bytes]]:
        data = bytes(frame)
        draws = random.Random(data)
        at = self.place if self.place is not None else draws.randrange(max(1, len(data) - 1))
        if len(data) < at + 2:
            return super().process(port, frame, now)
        received = ctypes.create_string_buffer(data[:at] + b"\xaa\x55" + data[at + 2 :], len(data))

        def fill(_: object) -> None:
            self.fills += 1
            ctypes.memmove(ctypes.addressof(received) + at, data[at : at + 2], 2)

        late = Late(at, LateFunction(fill), None)
        with self.locked() as (api, handle), self._lock.raising():
            self._out: list[tuple[int, bytes]] = []
            api.process(
                handle,
                0,
                port,
                received,
                len(data),
                round(now * 1e6),
                ctypes.byref(late),
                self._emit,
                QueueFunction(),
                None,
            )
            return self._out


@pytest.mark.parametrize("program", sorted(PROGRAMS.glob("*.p4")), ids=lambda p: p.stem)
def test_any_two_bytes_of_any_frame_may_be_late(program: Path) -> None:
    with LateSwitch.from_p4(program) as switch:
        assert list(failures(switch, read_vectors(program.with_suffix(".vectors")))) == []


HEADERS = """
header udp_t { bit<16> source; bit<16> port; bit<16> bytes; bit<16> sum; }
header pair_t { bit<48> x; bit<32> y; }
struct headers_t { udp_t u; udp_t v; pair_t p; }
struct metadata_t { udp_t kept; bit<16> y; }
"""
TAKE = "state start { packet.extract(hdr.u); transition accept; }"
LOOK = "state start { meta.y = packet.lookahead<bit<16>>(); packet.extract(hdr.u); transition accept; }"
SELECT = """
    state start { packet.extract(hdr.u); transition select(hdr.u.sum) { 0x1234: more; default: accept; } }
    state more { packet.extract(hdr.v); transition accept; }
"""
LOCALS = """
    register<bit<16>>(2) cells;
    action next(inout bit<16> n) { n = n + 1; }
    action found() { hdr.u.port = 1; }
    table sums { key = { hdr.u.sum : exact; } actions = { found; NoAction; } default_action = NoAction();
                 const entries = { 0x1234 : found(); } }
"""


CASES = [
    ("", TAKE, "", 1),
    ("mark_to_drop(sm);", TAKE, "", 0),
    ("hdr.u.sum = 7;", TAKE, "", 0),
    ("hdr.u.setInvalid();", TAKE, "", 0),
    ("hdr.u.port = hdr.u.sum; hdr.u.sum = 0;", TAKE, "", 1),
    ("hdr.v = hdr.u; hdr.u.setInvalid();", TAKE, "", 1),
    ("meta.kept = hdr.u; hdr.u.sum = 1; hdr.v = meta.kept;", TAKE, "", 1),
    ("meta.kept = hdr.u; hdr.u.setInvalid();", TAKE, "hdr.v = meta.kept;", 1),
    ("hdr.u.port = hdr.u.bytes == 3 ? hdr.u.sum : 5;", TAKE, "", 1),
    ("hdr.u.sum[3:0] = 1;", TAKE, "", 1),
    ("if (hdr.u.sum == 0x1234) { hdr.u.port = 1; }", TAKE, "", 1),
    ("if (hdr.u == hdr.v) { hdr.u.port = 1; }", TAKE, "", 1),
    ("next(hdr.u.sum);", TAKE, "", 1),
    ("sums.apply();", TAKE, "", 1),
    ("cells.write(0, hdr.u.sum); cells.read(hdr.u.port, 0);", TAKE, "", 1),
    ("hash(hdr.u.port, HashAlgorithm.crc16, 16w0, { hdr.u.sum }, 16w0xffff);", TAKE, "", 1),
    ("switch (hdr.u.sum) { 0x1234: { hdr.u.port = 1; } }", TAKE, "", 1),
    ("", "state start { transition accept; }", "", 1),
    ("", "state start { packet.extract(hdr.p); transition accept; }", "", 1),
    ("", "state start { packet.advance(64); transition accept; }", "", 0),
    ("hdr.u.sum = 1;", LOOK, "", 1),
    ("", SELECT, "", 1),
    ("sm.mcast_grp = 1;", TAKE, "hdr.u.port = (bit<16>) sm.egress_port;", 1),
    ("sm.mcast_grp = 1;", TAKE, "if (sm.egress_port == 2) { hdr.u.sum = 0; }", 1),
    ("clone(CloneType.I2E, 1);", TAKE, "", 1),
]


def program_of(case: tuple[str, str, str, int]) -> tuple[str, str, bool]:
    """Cases with one of these are one program, which takes seconds to compile. A program that clones works in another
    way."""
    code, parser, egress, _ = case
    return parser, egress, code.startswith("clone")


@pytest.mark.parametrize("case", CASES)
def test_a_late_checksum_is_filled_in_before_it_matters(case: tuple[str, str, str, int]) -> None:
    code, parser, egress, fills = case
    together = [other[0] for other in CASES if program_of(other) == program_of(case)]
    port = together.index(code)
    ingress = " ".join(
        f"if (sm.ingress_port == {number}) {{ {one} }}" for number, one in enumerate(together) if one
    )
    source = v1program(
        f"sm.egress_spec = 2; {ingress}", headers=HEADERS, parser=parser, locals=LOCALS, egress=egress
    )
    text = preprocess_text(source, "late.p4").text
    with Switch.from_source(text) as whole, LateSwitch.from_source(text) as late:
        assert isinstance(late, LateSwitch)
        late.place = 6
        for switch in (whole, late):
            switch.multicast_group(1, [(1, 0), (2, 0), (3, 0)])
            switch.clone_session(1, [(3, 0)])
        for frame in (
            b"\0\1\0\2\0\3\x12\x34",
            b"\0\1\0\2\0\4\x12\x35rest of it",
            b"\0\1\0\2\0\3\x12\x34" * 3,
        ):
            late.fills = 0
            assert late.process(port, frame) == whole.process(port, frame)
            assert late.fills == fills


def test_sums_need_no_late_checksum() -> None:
    with LateSwitch.from_p4(INAGG_P4) as switch:
        assert isinstance(switch, LateSwitch)
        switch.place = 14 + 20 + 6
        job = Job(workers=2)
        job.install(switch)
        words = [1, 2, 3, 4]
        assert switch.process(1, job.data(0, 0, words)) == []
        results = switch.process(2, job.data(1, 0, words))
        assert [read_result(frame).words for _, frame in results] == [[2, 4, 6, 8]] * 2
        assert switch.fills == 0
