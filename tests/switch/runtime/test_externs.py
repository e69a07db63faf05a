# SPDX-License-Identifier: Apache-2.0
"""Messages, assertions and digests of a program for the control plane; time in meters and idle entries."""

import ctypes
from collections.abc import Callable

import pytest

from inagg_switch import Switch, SwitchError
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.program import abi
from inagg_switch.program.values import encode_match, find
from tests.switch import PROGRAMS
from tests.switch.snippets import v1program

SELECTORS = PROGRAMS / "selectors.p4"
FRAME = bytes.fromhex("01 02 0003 00000004")


def run(statement: str) -> Switch:
    return Switch.from_source(preprocess_text(v1program(statement), "test.p4").text)


def test_log_msg_shows_numbers_in_their_places_and_any_characters() -> None:
    statement = (
        'log_msg("a = {}, {c} \\\\{} and more", { hdr.h.a, hdr.h.c + 1 });'
        'log_msg("caf\u00e97 \U0001f6001 ??/ \\"quoted\\" {}", { CounterType.bytes });'
    )
    messages: list[str] = []
    with run(statement) as switch:
        switch.on_log(messages.append)
        switch.process(1, FRAME)
    assert messages == ["a = 1, 4 {} and more", 'caf\u00e97 \U0001f6001 ??/ "quoted" 1']


def test_an_endless_loop_is_ended() -> None:
    """After a million rounds of all loops for one packet, including loops in functions."""
    top = """
        counter(1, CounterType.packets) rounds;
        void count(in bit<32> more) { for (bit<32> i = 0; i <= more; i = i + 1) { rounds.count(0); } }
    """
    text = v1program("count(hdr.h.d - 1); count(32w0xFFFFFFFF); count(5);", top=top)
    messages: list[str] = []
    with Switch.from_source(preprocess_text(text, "test.p4").text) as switch:
        switch.on_log(messages.append)
        for times in (1, 2):
            assert len(switch.process(1, FRAME)) == 1
            assert switch.counter("rounds")[0][0] == times * 1_000_000
    assert messages == ["loops end after 1000000 iterations for one packet"] * 2


def test_a_callback_may_not_use_its_switch_and_its_errors_are_raised() -> None:
    with run('log_msg("said");') as switch:

        def process(_: str) -> None:
            switch.process(1, FRAME)

        calls: list[Callable[[str], None]] = [
            process,
            lambda _: switch.on_log(None),
            lambda _: switch.close(),
        ]
        for call in calls:
            switch.on_log(call)
            with pytest.raises(SwitchError, match="may not use its switch"):
                switch.process(1, FRAME)
        switch.on_log(None)
        assert len(switch.process(1, FRAME)) == 1


@pytest.mark.parametrize("what", ["assert", "assume"])
def test_nothing_leaves_after_a_failed_assertion(what: str) -> None:
    messages: list[str] = []
    with run(f"{what}(hdr.h.a == 1);") as switch:
        switch.on_log(messages.append)
        assert len(switch.process(1, FRAME)) == 1
        assert switch.process(1, b"\x02" + FRAME[1:]) == []
        assert switch.process(1, FRAME) == []
    assert [m.split(":")[0] for m in messages] == [f"{what.capitalize()} error"]


@pytest.mark.parametrize(
    ("ingress", "egress"),
    [
        # Copies of a multicast packet, clones and further rounds run after the packet that fails.
        ("sm.mcast_grp = 1;", "assert(hdr.h.a != 2);"),
        ("clone(CloneType.I2E, 1); assert(hdr.h.a != 2);", ""),
        ("resubmit_preserving_field_list(0); assert(hdr.h.a != 2);", ""),
        ("clone(CloneType.I2E, 1);", "assert(hdr.h.a != 2);"),
        ("", "clone(CloneType.E2E, 1); assert(hdr.h.a != 2 || sm.instance_type != 2);"),
    ],
)
def test_nothing_runs_after_a_failed_assertion(ingress: str, egress: str) -> None:
    text = v1program(
        f"sm.egress_spec = 2; {ingress}",
        egress_locals="counter(1, CounterType.packets) copies;",
        egress=f"copies.count(0); {egress}",
    )
    messages: list[str] = []
    with Switch.from_source(preprocess_text(text, "test.p4").text, traced=True) as switch:
        switch.multicast_group(1, [(port, 0) for port in range(1, 6)])
        switch.clone_session(1, [(port, 0) for port in range(1, 6)])
        switch.on_log(messages.append)
        lines, _ = switch.trace(1, b"\x02" + FRAME[1:])
        assert len(messages) == 1
        failed = lines.index(messages[0])
        assert lines[failed + 1 :][-1] == "dropped: an assertion failed"
        assert not [
            line
            for line in lines[failed:]
            if line.startswith(("egress", "another pass: ingress", "packet of"))
        ]
        copies, _ = switch.counter("copies")[0]
        lines, out = switch.trace(1, FRAME)
        assert (lines, out) == (["packet of 8 bytes received on port 1", "dropped: an assertion failed"], [])
        assert switch.counter("copies")[0][0] == copies


def test_a_digest_has_its_fields_concatenated() -> None:
    seen: list[tuple[int, bytes]] = []
    function = abi.DigestFunction(
        lambda _, digest, data, length: seen.append((digest, ctypes.string_at(data, length)))
    )
    with Switch.from_p4(SELECTORS) as switch:
        with switch.locked() as (api, handle):
            assert api.on_digest(handle, function, None) == 0
        switch.process(3, bytes.fromhex("09 1235 00"))
        switch.process(3, bytes.fromhex("08 1235 00"))
        switch.process(3, bytes.fromhex("42 1235 06"))
        switch.process(3, bytes.fromhex("43 1235 06"))
        struct, list_, bits = (
            find(switch.p4info.digests, name, "digest") for name in ("learned_t", "digest_0", "digest_1")
        )
    assert seen == [
        (struct.preamble.id, bytes.fromhex("1235 0003 01")),
        (list_.preamble.id, bytes.fromhex("1235 06")),
        (bits.preamble.id, bytes.fromhex("1235")),
    ]
    assert [m.bitstring.bit.bitwidth for m in list_.type_spec.tuple.members] == [16, 8]
    assert bits.type_spec.bitstring.bit.bitwidth == 16


def test_a_meter_fills_with_time() -> None:
    with Switch.from_p4(SELECTORS) as switch:
        meter = find(switch.p4info.meters, "rates", "meter").preamble.id
        with switch.locked() as (api, handle):
            # Two packets a second, four at most; bursts of one and two.
            assert api.meter_write(handle, meter, 1, abi.Meter(2, 1, 4, 2, 1)) == 0
            assert api.meter_write(handle, meter, 1, abi.Meter(5, 1, 4, 2, 1)) < 0  # committed above peak
        colours = [switch.process(1, bytes.fromhex("01000101"), now)[0][1][4] for now in (0, 0, 0, 0.25, 0.5)]
        assert colours == [0, 1, 2, 1, 0]
        with switch.locked() as (api, handle):
            assert api.meter_write(handle, meter, 1, None) == 0
        assert {switch.process(1, bytes.fromhex("01000101"), 0.5)[0][1][4] for _ in range(9)} == {0}


@pytest.mark.parametrize(("rate", "burst"), [(2, 2**64 - 1), (2**64 - 1, 1), (2**63 - 1, 2**64 - 1)])
def test_a_meter_takes_the_greatest_rates_and_bursts(rate: int, burst: int) -> None:
    with Switch.from_p4(SELECTORS) as switch:
        switch.meter("rates")[1] = (rate, burst, rate, burst)
        for now in (0, 1, 1.5, 2, 4, 2**40):
            assert switch.process(1, bytes.fromhex("01000101"), now)[0][1][4] == 0


def test_an_entry_knows_when_it_was_hit() -> None:
    with Switch.from_p4(SELECTORS) as switch:
        switch.insert("measured", {"hdr.ask.flow": 7}, "skip")
        for now in (1.0, 2.5):
            switch.process(1, bytes.fromhex("01000700"), now)
        switch.process(1, bytes.fromhex("01000800"), 3.0)
        seen: list[int] = []
        visit = abi.EntryFunction(lambda _, entry: seen.append(entry.contents.last_hit_us))
        table = find(switch.p4info.tables, "measured", "table").preamble.id
        with switch.locked() as (api, handle):
            assert api.table_entries(handle, table, 0, 9, visit, None) == 1
    assert seen == [2_500_000]


def test_a_member_in_use_cannot_be_deleted() -> None:
    with Switch.from_p4(SELECTORS) as switch:
        info = find(switch.p4info.tables, "single", "table")
        profile = info.implementation_id
        action = find(switch.p4info.actions, "member", "action").preamble.id
        key = encode_match(info, {"hdr.ask.what": 1})
        with switch.locked() as (api, handle):
            assert api.member_insert(handle, profile, 5, action, b"\x00\x09", 2) == 0
            assert api.member_insert(handle, profile, 5, action, b"\x00\x09", 2) < 0
            assert api.table_insert_indirect(handle, info.preamble.id, key, 0, abi.MEMBER, 6) < 0
            assert api.table_insert_indirect(handle, info.preamble.id, key, 0, abi.MEMBER, 5) == 0
            assert api.member_delete(handle, profile, 5) < 0
            assert api.table_delete(handle, info.preamble.id, key, 0) == 0
            assert api.member_delete(handle, profile, 5) == 0
