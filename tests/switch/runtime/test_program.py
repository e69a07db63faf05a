# SPDX-License-Identifier: Apache-2.0
"""Switch: the in-process switch, and the preprocessed source of its program."""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inagg_switch import EntryError, Switch, SwitchError
from tests import INAGG_P4
from tests.switch import PROGRAMS
from tests.switch.inagg.packets import Job, read_result
from tests.switch.snippets import v1program

STATE_P4 = PROGRAMS / "state.p4"
SMALL = v1program("hdr.h.b = hdr.h.a + 1; sm.egress_spec = 2;")


@pytest.fixture
def state_program() -> Iterator[Switch]:
    with Switch.from_p4(STATE_P4) as program:
        yield program


# --- the preprocessed source


def test_the_preprocessed_source_compiles_to_the_same_program() -> None:
    with Switch.from_p4(INAGG_P4) as program, Switch.from_source(program.source) as again:
        assert again.p4info == program.p4info
        assert again.source == program.source
        assert again.generated == program.generated  # the same entry of the cache
        job = Job(workers=1)
        job.install(again)
        ((_, frame),) = again.process(1, job.data(0, 0, [1, 2, 3, 4]))
        assert read_result(frame).words == [1, 2, 3, 4]


def test_the_preprocessed_source_needs_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "part.p4").write_text("const bit<8> ONE = STEP;\n")
    (tmp_path / "main.p4").write_text(SMALL.replace("header h_t", '#include "part.p4"\nheader h_t', 1).replace(
        "hdr.h.a + 1", "hdr.h.a + ONE"))  # fmt: skip
    with Switch.from_p4(tmp_path / "main.p4", {"STEP": "5"}) as program:
        source = program.source
    for path in tmp_path.iterdir():
        path.unlink()
    with Switch.from_source(source) as program:
        assert program.process(1, bytes(8)) == [(2, bytes([0, 5]) + bytes(6))]


def test_constants_have_their_values() -> None:
    with Switch.from_p4(INAGG_P4) as program:
        assert program.constants["INAGG_PORT"] == 0x4941
        assert program.constants["KIND_RESULT"] == 0x8


# --- state


def test_registers_read_and_write(state_program: Switch) -> None:
    cells = state_program.register("cells")
    assert len(cells) == 8
    cells[3] = 0x112233445566
    assert cells[3] == 0x112233445566
    ((_, out),) = state_program.process(1, bytes((1, 3)) + bytes(6))
    assert out[2:] == bytes.fromhex("112233445566")
    state_program.process(1, bytes((0, 7)) + b"\xff" * 6)
    assert cells[7] == 2**48 - 1
    assert list(iter(cells)) == [cells[i] for i in range(8)]


@pytest.mark.parametrize(("index", "value"), [(8, 0), (-1, 0), (0, 1 << 48), (0, -1)])
def test_a_register_write_that_does_not_fit_changes_nothing(
    state_program: Switch, index: int, value: int
) -> None:
    cells = state_program.register("cells")
    cells[0] = 5
    with pytest.raises(EntryError):
        cells[index] = value
    assert [cells[i] for i in range(8)] == [5] + [0] * 7


def test_out_of_bounds_accesses_of_the_program_touch_nothing(state_program: Switch) -> None:
    # As a debugging build of BMv2: the destination of a read keeps its value; writes and counts are ignored.
    frame = bytes((1, 8)) + bytes.fromhex("0000000000aa")
    assert state_program.process(1, frame) == [(1, frame)]
    state_program.process(1, bytes((0, 8)) + b"\xff" * 6)
    state_program.process(1, bytes((0, 255)) + b"\xff" * 6)
    assert [state_program.register("cells")[i] for i in range(8)] == [0] * 8
    assert [state_program.counter("seen")[i] for i in range(4)] == [(0, 0)] * 4


def test_counters_count_as_declared(state_program: Switch) -> None:
    state_program.process(1, bytes((9, 2)) + bytes(6) + b"payload")
    assert state_program.counter("I.seen")[2] == (1, 15)
    assert state_program.counter("seen_packets")[2] == (1, 0)
    state_program.counter("seen")[2] = (10, 20)
    assert state_program.counter("seen")[2] == (10, 20)
    with pytest.raises(EntryError, match="outside"):
        state_program.counter("seen")[4]


@pytest.mark.parametrize(
    ("group", "replicas"), [(0, [(1, 1)]), (70000, [(1, 1)]), (1, [(600, 1)]), (1, [(1, 70000)])]
)
def test_impossible_multicast_groups(
    state_program: Switch, group: int, replicas: list[tuple[int, int]]
) -> None:
    with pytest.raises(EntryError):
        state_program.multicast_group(group, replicas)


def test_deleting_a_group_that_is_not_there(state_program: Switch) -> None:
    with pytest.raises(EntryError, match="not there"):
        state_program.multicast_group(5, [])
    state_program.multicast_group(5, [(1, 1)])
    state_program.multicast_group(5, [])


def test_two_programs_share_nothing() -> None:
    with Switch.from_p4(STATE_P4) as one, Switch.from_p4(STATE_P4) as other:
        one.register("cells")[0] = 5
        assert other.register("cells")[0] == 0


def test_a_closed_program_says_so(state_program: Switch) -> None:
    state_program.close()
    state_program.close()
    with pytest.raises(SwitchError, match="closed"):
        state_program.process(1, b"")
    with pytest.raises(SwitchError, match="closed"):
        state_program.register("cells")[0]


@pytest.mark.parametrize(("port", "length"), [(511, 8), (1, 65601)])
def test_packets_that_cannot_come_from_a_port_are_dropped(
    state_program: Switch, port: int, length: int
) -> None:
    assert state_program.process(port, bytes(length)) == []


@pytest.mark.parametrize(
    ("port", "now"),
    [(512, 0.0), ((1 << 32) + 1, 0.0), (-1, 0.0), (1, -1.0), (1, 1e30), (1, float("inf")), (1, float("nan"))],
)
def test_a_port_or_a_time_out_of_range_is_refused(state_program: Switch, port: int, now: float) -> None:
    with pytest.raises(SwitchError, match="out of range"):
        state_program.process(port, bytes(8), now)


def test_a_frame_may_be_any_bytes() -> None:
    with Switch.from_p4(STATE_P4) as one, Switch.from_p4(STATE_P4) as other:
        frame = bytes(range(8))
        expected = one.process(1, frame)
        assert expected == other.process(1, bytearray(frame))
        assert one.process(1, frame) == other.process(1, memoryview(frame))


@pytest.mark.parametrize("value", [(1 << 64, 0), (0, -1), (1,)])
def test_counts_that_do_not_fit_are_refused(state_program: Switch, value: tuple[int, ...]) -> None:
    counter = state_program.counter(state_program.p4info.counters[0].preamble.name)
    before = counter[0]
    write: Callable[..., None] = counter.__setitem__  # takes values that its type refuses
    with pytest.raises(EntryError, match="expected"):
        write(0, value)
    assert counter[0] == before


def test_timestamps_count_microseconds_from_the_first_packet(tmp_path: Path) -> None:
    text = v1program("hdr.h.d = sm.ingress_global_timestamp[31:0]; sm.egress_spec = 1;",
                     egress="hdr.h.c = sm.egress_global_timestamp[15:0];")  # fmt: skip
    path = tmp_path / "time.p4"
    path.write_text(text)
    with Switch.from_p4(path) as program:
        seen = [program.process(1, bytes(8), now)[0][1] for now in (1000.0, 1000.5, 1000.25)]
    assert [int.from_bytes(f[4:], "big") for f in seen] == [0, 500_000, 250_000]
    assert [int.from_bytes(f[2:4], "big") for f in seen] == [0, 500_000 & 0xFFFF, 250_000 & 0xFFFF]


def test_threads_may_share_a_program() -> None:
    with Switch.from_p4(STATE_P4) as program:

        def work() -> None:
            for _ in range(300):
                assert len(program.process(1, bytes((2, 1)) + (1).to_bytes(6, "big"))) == 1
                program.counter("seen")[1]

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert program.register("cells")[1] == 1200


def test_a_program_may_be_closed_while_threads_use_it() -> None:
    errors: list[str] = []

    def use(program: Switch, begun: threading.Barrier) -> None:
        begun.wait()
        try:
            while True:
                program.process(1, bytes(8))
        except SwitchError as error:
            errors.append(str(error))

    for _ in range(20):
        program = Switch.from_p4(STATE_P4)
        begun = threading.Barrier(4)
        threads = [threading.Thread(target=use, args=(program, begun)) for _ in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        program.close()
        for thread in threads:
            thread.join()
    assert errors == ["the program is closed"] * 60


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_program_is_not_copied(state_program: Switch, copied: Callable[[Switch], object]) -> None:
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copied(state_program)
