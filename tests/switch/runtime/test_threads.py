# SPDX-License-Identifier: Apache-2.0
"""A program of several threads: what each has for itself, what they share, and what the control plane sees."""

import struct
from collections.abc import Iterator

import pytest

from inagg_switch import EntryError, Switch, SwitchError
from inagg_switch._ports import run_bench
from inagg_switch.compiler.parse.preprocess import preprocess_text
from tests.switch.snippets import v1program

THREADS = 4
HEADERS = """
header h_t { bit<32> stripe; @steer(0) bit<32> thread; }
struct headers_t { h_t h; }
struct metadata_t { }
"""
# Adds 1 to a cell in a way that loses some if two threads do so at once, and to that of a second stripe.
COUNT = v1program(
    """
    @stripe(hdr.h.stripe) { add(hdr.h.stripe); }
    @stripe(hdr.h.stripe ^ 1) { add(hdr.h.stripe ^ 1); }
    counted.count(hdr.h.thread);
    directly.apply();
    sm.egress_spec = 1;
    """,
    headers=HEADERS,
    locals="""
    register<bit<32>>(4) cells;
    counter(16, CounterType.packets_and_bytes) counted;
    direct_counter(CounterType.packets_and_bytes) hits;
    action add(bit<32> at) { bit<32> n; cells.read(n, at); cells.write(at, n + 1); }
    table directly {
        key = { hdr.h.stripe : exact; } actions = { NoAction; } default_action = NoAction(); counters = hits;
    }
    """,
)
WRONG = COUNT.replace("@stripe(hdr.h.stripe ^ 1) {", "@stripe(hdr.h.stripe + 7) {")
ASSERTED = COUNT.replace("sm.egress_spec = 1;", "assert(hdr.h.stripe != 3); sm.egress_spec = 1;")


def make(source: str = COUNT, threads: int = THREADS, *, traced: bool = False) -> Switch:
    return Switch.from_source(preprocess_text(source, "count.p4").text, threads=threads, traced=traced)


def frame(stripe: int, thread: int) -> bytes:
    return struct.pack("!II", stripe, thread)


@pytest.fixture
def program() -> Iterator[Switch]:
    with make() as made:
        yield made


def test_no_addition_of_threads_at_once_is_lost(program: Switch) -> None:
    """Each thread's packets enter the same two stripes, half of them in the other order."""
    passes, stripes = 20_000, (0, 1)
    packets = [(1, frame(stripe, thread)) for thread in range(THREADS) for stripe in stripes]
    _, sent = run_bench(program.api_address, program.handle, THREADS, packets, 0, passes, None, 1)
    each = passes * len(packets)
    assert sent == each
    assert [program.register("cells")[cell] for cell in range(4)] == [each, each, 0, 0]
    counted = program.counter("counted")
    assert [counted[thread] for thread in range(THREADS)] == [(passes * 2, passes * 16)] * THREADS


def test_traced_threads_at_once_run_one_packet_after_the_other() -> None:
    with make(traced=True) as program:
        packets = [(1, frame(stripe, thread)) for thread in range(THREADS) for stripe in (0, 1)]
        run_bench(program.api_address, program.handle, THREADS, packets, 0, 2000, None, 1)
        each = 2000 * len(packets)
        assert [program.register("cells")[cell] for cell in range(4)] == [each, each, 0, 0]


def test_who_has_locked_the_program_may_run_packets_of_several_threads(program: Switch) -> None:
    with program.locked():
        for thread in range(THREADS):
            program.process(1, frame(0, 0), thread=thread)
    assert program.register("cells")[0] == THREADS


def test_every_thread_has_every_entry_and_their_hits_add_up(program: Switch) -> None:
    program.insert("directly", {"hdr.h.stripe": 2}, "NoAction")
    for thread in range(THREADS):
        program.process(1, frame(2, 0), thread=thread)
    assert program.direct_counter("directly", {"hdr.h.stripe": 2}) == (4, 32)
    (entry,) = program.entries("directly")
    assert (entry.packets, entry.bytes) == (4, 32)
    with pytest.raises(EntryError):
        program.insert("directly", {"hdr.h.stripe": 2}, "NoAction")
    program.delete("directly", {"hdr.h.stripe": 2})
    for thread in range(THREADS):
        program.process(1, frame(2, 0), thread=thread)
    assert program.entries("directly") == []


def test_entries_that_move_in_the_table_keep_their_counts(program: Switch) -> None:
    for stripe in range(3):
        program.insert("directly", {"hdr.h.stripe": stripe}, "NoAction")
        for thread in range(stripe + 1):
            program.process(1, frame(stripe, 0), thread=thread)
    program.delete("directly", {"hdr.h.stripe": 0})
    assert program.direct_counter("directly", {"hdr.h.stripe": 1}) == (2, 16)
    assert program.direct_counter("directly", {"hdr.h.stripe": 2}) == (3, 24)


def test_a_counter_that_is_written_counts_on_from_there(program: Switch) -> None:
    counted = program.counter("counted")
    for thread in range(THREADS):
        program.process(1, frame(0, 5), thread=thread)
    assert counted[5] == (4, 32)
    counted[5] = (100, 1000)
    program.process(1, frame(0, 5), thread=3)
    assert counted[5] == (101, 1008)


def test_a_register_is_the_same_on_every_thread(program: Switch) -> None:
    cells = program.register("cells")
    cells[2] = 40
    for thread in range(THREADS):
        program.process(1, frame(2, 0), thread=thread)
    assert (cells[2], cells[3]) == (44, 4)


def test_packets_run_on_each_thread_in_turn(program: Switch) -> None:
    for _ in range(THREADS + 1):
        assert program.process(1, frame(0, 0)) == [(1, frame(0, 0))]
    assert program.counter("counted")[0] == (5, 40)


def test_time_begins_with_the_first_packet_of_any_thread() -> None:
    source = v1program(
        "hdr.h.stripe = sm.ingress_global_timestamp[31:0]; sm.egress_spec = 1;", headers=HEADERS
    )
    with make(source) as program:
        stamps = [program.process(1, frame(0, 0), now, thread=thread)[0][1]
                  for thread, now in ((2, 5.0), (0, 5.1), (2, 5.2))]  # fmt: skip
    assert [struct.unpack("!II", stamp)[0] for stamp in stamps] == [0, 100_000, 200_000]


def test_after_a_failed_assertion_no_thread_runs_a_packet() -> None:
    with make(ASSERTED) as program:
        assert len(program.process(1, frame(0, 0), thread=2)) == 1
        assert program.process(1, frame(3, 0), thread=1) == []
        assert [program.process(1, frame(0, 0), thread=thread) for thread in range(THREADS)] == [[]] * THREADS


def test_a_traced_program_reports_cells_of_two_stripes() -> None:
    with make(WRONG, traced=True) as program:
        said: list[str] = []
        program.on_log(said.append)
        program.process(1, frame(0, 0))
        assert said == []
        program.process(1, frame(1, 0))
        assert said == [
            "I.cells[1] is used in stripe 7 and in stripe 1",
            "I.cells[0] is used in stripe 0 and in stripe 8",
        ]


def test_cells_may_move_to_another_stripe_when_entries_change() -> None:
    with make(WRONG, traced=True) as program:
        said: list[str] = []
        program.on_log(said.append)
        program.process(1, frame(0, 0))
        program.insert("directly", {"hdr.h.stripe": 2}, "NoAction")
        program.process(1, frame(1, 0))
        assert said == []


def test_a_program_for_one_thread_says_why() -> None:
    plain = preprocess_text(v1program("", headers=HEADERS.replace("@steer(0)", "")), "plain.p4").text
    with pytest.raises(
        SwitchError, match=r"2 threads cannot run this program: no header field .* has @steer"
    ):
        Switch.from_source(plain, threads=2)
    with Switch.from_source(plain, threads=2, or_one=True) as program:
        assert program.threads == 1
        assert "@steer" in str(program.one_thread)


@pytest.mark.parametrize("threads", [0, -1, 3, 65, 128])
def test_a_number_of_threads_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(SwitchError, match=rf"{threads} threads: a switch has 1, 2, 4, ... 64"):
        make(threads=threads)


@pytest.mark.parametrize("thread", [-1, THREADS])
def test_a_thread_that_does_not_exist_runs_nothing(program: Switch, thread: int) -> None:
    with pytest.raises(SwitchError, match=rf"no thread {thread}: the switch has {THREADS}"):
        program.process(1, frame(0, 0), thread=thread)
