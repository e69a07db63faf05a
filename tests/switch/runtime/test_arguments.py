# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of the in-process switch: they raise an error of the package, whatever they are."""

import re
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_switch import EntryError, Group, Member, Switch, SwitchError
from tests.switch import PROGRAMS
from tests.switch.p4runtime.objects import OBJECTS_P4

SW = Switch.from_p4(OBJECTS_P4)
TABLES = Switch.from_p4(PROGRAMS / "tables.p4")
ROUTE = {"dst": 5}


def wrong(kind: Callable[..., object], number: object) -> object:
    """A Member or a Group whose number may have any type."""
    return kind(number)


ODD = st.sampled_from([
    None, True, -1, 0, 1, 3, 1 << 31, 1 << 32, 1 << 64, 1 << 20000, -(1 << 20000), 1.5, float("nan"), float("inf"), 1j,
    "", "1", "dst", "send", "ways", b"", b"\1", b"\1" * 9, bytearray(b"\1"), np.int64(1), np.float32(1), np.arange(3),
    [], [1], [(1,)], [(1, 2)], [(1, 2, 3)], [("a", 1)], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), (None, None),
    (1, -1), (b"\1", b"\1"), {}, {1, 2}, {"dst": 1}, {"dst": (1, 2)}, {"dst": None}, {"x": 1}, {1: 1, "x": 2},
    {"port": 1}, {"port": "1"}, {"port": 1 << 900}, {"dst": 1 << 20000}, [1 << 20000],
    slice(0, 2), object(), print, Member(1), wrong(Member, "x"), Group(-1), wrong(Group, None), iter([1, 2]),
    memoryview(b"12"),
])  # fmt: skip

CALLS: list[tuple[Callable[..., object], list[object]]] = [
    (SW.insert, ["route", ROUTE, "send", {"port": 1}, 0]),
    (SW.insert, ["route", ROUTE, Member(1), None, 0]),
    (SW.modify, ["route", ROUTE, Group(1), None, 0]),
    (SW.delete, ["route", ROUTE, 0]),
    (SW.set_default, ["translate", None, None]),
    (SW.entries, ["route"]),
    (SW.default_entry, ["route"]),
    (SW.multicast_group, [1, [(1, 0)]]),
    (SW.clone_session, [1, [(1, 0)], 60]),
    (SW.value_set, ["tag_types", [1]]),
    (SW.direct_meter, ["flows", {"src": 1}, (1, 1, 1, 1), 0]),
    (SW.direct_counter, ["flows", {"src": 1}, 0]),
    (SW.profile, ["ways"]),
    (SW.meter, ["port_rate"]),
    (SW.counter, ["x"]),
    (SW.register, ["x"]),
    (SW.profile("ways").insert, [1, "send", {"port": 1}]),
    (SW.profile("ways").modify, [1, "send", {"port": 1}]),
    (SW.profile("ways").delete, [1]),
    (SW.profile("ways").set_group, [1, [1]]),
    (SW.profile("ways").delete_group, [1]),
    (SW.meter("port_rate").__getitem__, [0]),
    (SW.meter("port_rate").__setitem__, [0, (1, 1, 1, 1)]),
    (SW.process, [1, b"12345678901234", 0.0]),
    (SW.trace, [1, b"12345678901234", 0.0]),
    (SW.on_trace, [None]),
    (Switch.from_source, ["", 0, "name"]),
    (Switch.from_p4, ["/nowhere.p4", {}, 0, []]),
]  # fmt: skip


@settings(max_examples=600)
@given(st.data())
def test_every_call_accepts_its_arguments_or_raises_a_switch_error(data: st.DataObject) -> None:
    call, good = data.draw(st.sampled_from(CALLS))
    given_arguments = list(good)
    for place in data.draw(st.sets(st.integers(0, len(good) - 1), min_size=1, max_size=2)):
        given_arguments[place] = data.draw(ODD)
    with suppress(SwitchError):
        call(*given_arguments)
    SW.process(1, bytes(14))  # the program still runs


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (SW.multicast_group, [1, [(1,)]], "expected pairs of port and replication id, not (1,)"),
        (SW.multicast_group, [1, [(-3, 0)]], "port: -3 is out of range"),
        (
            SW.meter("port_rate").__getitem__,
            [slice(0, 2)],
            "an index is one whole number, not slice(0, 2, None)",
        ),
        (
            SW.insert,
            ["route", ROUTE, Member(1), None, 1.5],
            "priority: expected a whole number, not 1.5",
        ),
        (SW.on_log, [3], "expected a function or None, not 3"),
        (SW.insert, ["route", {"dst": (1, 2)}, Member(1)], "takes one value, not (1, 2)"),
        (SW.insert, ["route", {"dst": "7"}, Member(1)], "expected a whole number or bytes, not '7'"),
        (SW.process, [1, "frame"], "a frame is bytes, not 'frame'"),
        (SW.process, [1, b"", "3"], "the time is a number of seconds, not '3'"),
        (SW.entries, [3], "table: expected a name, not 3"),
        (SW.multicast_group, [0, [(1, 0)]], "packets with group 0 are not multicast"),
        (SW.multicast_group, [1, [(512, 0)]], "port: 512 is out of range, expected 0 to 511"),
        (SW.clone_session, [1 << 15, [(1, 0)]], "32768 is out of range, expected 0 to 32767"),
        (SW.direct_meter, ["flows", {}, (2, 1, 1, 1), 1], "cir 2 is above pir 1"),
        (
            TABLES.insert,
            ["ranges", {"hdr.i.p": (3, 1), "hdr.i.q": 1}, "missed", None, 1],
            "from 3 to 1 is no range",
        ),
    ],
)
def test_an_error_names_what_was_given_and_what_is_expected(
    call: Callable[..., object], arguments: list[object], message: str
) -> None:
    with pytest.raises(SwitchError, match=re.escape(message)):
        call(*arguments)


def test_numbers_of_numpy_are_numbers() -> None:
    with Switch.from_p4(OBJECTS_P4) as sw:
        ways, rate = sw.profile("ways"), sw.meter("port_rate")
        calls: list[tuple[Callable[..., object], list[object]]] = [
            (ways.insert, [np.int64(1), "send", {"port": np.uint16(4)}]),
            (sw.insert, ["route", {"dst": np.uint8(5)}, wrong(Member, np.int32(1))]),
            (sw.multicast_group, [np.int64(1), np.array([[1, 0]])]),
            (rate.__setitem__, [np.int64(2), np.array([1, 2, 3, 4])]),
        ]
        for call, arguments in calls:
            call(*arguments)
        assert sw.entries("route")[0].action == Member(1)
        assert rate[2] == (1, 2, 3, 4)
        group: Callable[..., None] = sw.multicast_group
        with pytest.raises(EntryError, match="out of range"):
            group(np.int64(-1), [])
