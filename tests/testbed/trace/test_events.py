# SPDX-License-Identifier: Apache-2.0
"""The trace that follows from what ranks and switches did."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inagg.spans import Span, Step
from inagg_testbed.cli.main import app
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.trace.events import make_trace
from inagg_testbed.trace.passages import Passage
from inagg_testbed.trace.ranks import RankTrace, last_steps, of_earlier_training, read_ranks
from tests.testbed.trace.validity import check, threads_of

SPANS = [
    Span("data loading", 0.0, 0.01),
    Span("forward", 0.01, 0.03),
    Span("backward", 0.03, 0.06),
    Span("all_reduce", 0.04, 0.09, 8000),
    Span("all_reduce", 0.05, 0.095, 4000),
    Span("wait", 0.06, 0.095),
    Span("optimizer", 0.095, 0.1),
]


def step(number: int, begin_s: float, spans: list[Span] = SPANS) -> Step:
    """A step of 100 ms."""
    moved = [span._replace(begin_s=begin_s + span.begin_s, end_s=begin_s + span.end_s) for span in spans]
    return Step(number, begin_s, begin_s + 0.1, moved)


def rank(number: int, *steps: Step) -> RankTrace:
    by_number = {each.number: each for each in steps}
    return RankTrace(number, f"h{number + 1}", 100 + number, 0.0, 0.0, 1000.0, by_number)


def passages(begin_s: float) -> list[Passage]:
    """In one step: 10 ms after h1 the first contributions of h2 come, 5 ms later the results of both chunks leave."""

    def one(time_s: float, port: str, is_result: bool, chunk: int, packets: int = 1) -> Passage:
        return Passage(begin_s + time_s, "s1", port, is_result, is_result, 1, chunk, packets)

    return [
        one(0.0415, "h1", False, 7, packets=2),
        one(0.0515, "h2", False, 7),
        one(0.0525, "h2", False, 8),
        one(0.0565, "h1", True, 7, packets=2),
        one(0.0565, "h2", True, 7, packets=2),
    ]


def two_ranks(passages: list[Passage] | None = None) -> dict[str, Any]:
    return make_trace([rank(0, step(4, 50.0)), rank(1, step(4, 50.0))], passages or [], steps=1)


def test_a_rank_has_its_program_and_collectives_on_threads() -> None:
    document = two_ranks()
    check(document)
    threads = threads_of(document, "rank 1 (h2)")
    assert [one["name"] for one in threads["program"]] == [
        "step 4",
        "forward",
        "backward",
        "wait",
        "optimizer",
    ]
    assert [(one["name"], one["ts"], one["dur"]) for one in threads["collectives"]] == [
        ("all_reduce 0.008 MB", 40_000, 50_000),
        ("all_reduce 0.004 MB", 50_000, 45_000),
    ]
    assert [one["dur"] for one in threads["data loading"]] == [10_000]


def test_spans_that_cross_are_cut() -> None:
    crossing = [Span("wait", 0.01, 0.05), Span("backward", 0.03, 0.06), Span("forward", -0.5, 0.02)]
    document = make_trace([rank(0, step(2, 9.0, crossing))], steps=1)
    check(document)
    slices = [(one["name"], one["ts"], one["dur"]) for one in threads_of(document, "rank 0 (h1)")["program"]]
    assert slices == [
        ("step 2", 0, 100_000),
        ("forward", 0, 20_000),
        ("wait", 10_000, 10_000),
        ("backward", 30_000, 30_000),
    ]


def test_a_collective_that_began_before_the_first_step_is_the_begin() -> None:
    document = make_trace([rank(0, step(2, 9.0, [Span("all_reduce", -0.25, 0.01, 1000)]))], steps=1)
    check(document)
    threads = threads_of(document, "rank 0 (h1)")
    assert (threads["collectives"][0]["ts"], threads["program"][0]["ts"]) == (0, 250_000)


def test_the_switch_has_each_port_and_what_is_under_way() -> None:
    document = two_ranks(passages(50.0))
    check(document)
    threads = threads_of(document, "switch s1")
    (late,) = threads["h2: contributions in"]
    assert (late["name"], late["ts"], late["dur"]) == ("2 contributions", 51_500, 1_001)
    assert late["args"] == {"packets": 2, "first_chunk": 7, "last_chunk": 8}
    (summing,) = threads["summing"]
    assert (summing["ts"], summing["dur"]) == (41_500, 15_000)
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    under_way = [(one["ts"], one["args"]["value"]) for one in counters if one["name"].startswith("chunks")]
    assert under_way == [(41_000, 2), (56_000, 2)]
    results = [(one["ts"], one["args"]["value"]) for one in counters if one["name"].startswith("h2: results")]
    assert results == [(56_000, 2), (57_000, 0)]


def test_arrows_are_drawn_where_the_packets_are_of_one_collective() -> None:
    """The second all-reduce begins while the first is under way, and the first ends while the second is."""
    document = two_ranks(passages(50.0))
    ends = [event for event in document["traceEvents"] if event["ph"] in "sf" and event["pid"] in (2, 1000)]
    of_h2 = [(one["ph"], one["pid"], one["ts"]) for one in ends]
    assert ("s", 2, 40_000) in of_h2
    assert ("f", 1000, 51_500) in of_h2
    assert ("s", 1000, 56_500) in of_h2
    assert ("f", 2, 94_999) in of_h2
    assert len({one["id"] for one in document["traceEvents"] if one["ph"] == "s"}) == 4


def test_a_step_of_many_collectives_has_the_arrows_of_each() -> None:
    count = 10_000  # quadratic time would be a minute
    each_s = 0.1 / count
    spans = [Span("all_reduce", each_s * n, each_s * (n + 0.8), 4) for n in range(count)]
    packets = [
        Passage(50.0 + each_s * (n + (0.5 if leaves else 0.2)), "s1", "h1", leaves, leaves, 1, n, 1)
        for n in range(count)
        for leaves in (False, True)
    ]
    started = time.process_time()
    document = make_trace([rank(0, step(4, 50.0, spans))], packets, steps=1)
    assert time.process_time() - started < 5
    assert len([event for event in document["traceEvents"] if event["ph"] == "s"]) == 2 * count


def test_a_trace_has_the_last_steps_that_all_ranks_have() -> None:
    ranks = [rank(0, *(step(n, float(n)) for n in range(6))), rank(1, *(step(n, float(n)) for n in range(5)))]
    assert last_steps(ranks, 2) == [3, 4]
    assert last_steps(ranks, 9) == [2, 3, 4]  # without the first two
    assert last_steps([rank(0, step(1, 1.0))], 9) == [1]
    with pytest.raises(ConfigurationError, match="rank 1 has 0"):
        last_steps([rank(0, step(1, 1.0)), rank(1)], 1)


def write(
    folder: Path, number: int, machine: str, ahead_s: float, error_s: float | None, **times: float
) -> None:
    """A rank's file. ahead_s: of its clock to the common one. times: on its clock."""
    written = {
        "rank": number,
        "host": "node",
        "pid": 7,
        "machine": machine,
        "clock": {"offset_s": -ahead_s, "error_s": error_s},
        **({"began_s": 0.0 + ahead_s, "ended_s": 1000.0 + ahead_s} | times),
        "steps": [step(5, 100.0 + ahead_s)],
    }
    (folder / f"rank{number}.json").write_text(json.dumps(written))


def begins_of_step(document: dict[str, Any]) -> list[float]:
    check(document)
    return [event["ts"] for event in document["traceEvents"] if event["name"] == "step 5"]


def test_ranks_of_several_machines_are_on_rank_0s_clock(tmp_path: Path) -> None:
    write(tmp_path, 0, "one", 0.0, 0.0)
    write(tmp_path, 1, "two", 300.0, 1e-4)
    document = make_trace(read_ranks(tmp_path), steps=3)
    assert document["otherData"]["clock_error_us"] == {"rank 1": pytest.approx(100)}
    assert begins_of_step(document) == pytest.approx([0, 0], abs=1e-2)


def test_ranks_that_know_the_time_of_day_only_are_on_one_clock(tmp_path: Path) -> None:
    """Two of them on one machine, whose clock they share: their times of day differ, because NTP has set it."""
    write(tmp_path, 0, "one", -1.7e9, None)
    write(tmp_path, 2, "two", 300.0 - 1.7e9, None)
    write(tmp_path, 3, "one", -1.7e9, None)
    text = (tmp_path / "rank3.json").read_text()
    (tmp_path / "rank3.json").write_text(text.replace('"offset_s": 1700000000.0', '"offset_s": 1700000000.5'))
    document = make_trace(read_ranks(tmp_path), steps=3)
    assert document["otherData"]["clock_error_us"] == {"rank 2": None}
    assert begins_of_step(document) == pytest.approx([0, 0, 0], abs=1)


def test_a_file_of_an_earlier_training_is_found(tmp_path: Path) -> None:
    write(tmp_path, 0, "one", 0.0, 0.0, began_s=50.0, ended_s=200.0)
    write(tmp_path, 1, "two", 300.0, 1e-4, began_s=351.0, ended_s=490.0)
    assert of_earlier_training(read_ranks(tmp_path)) is None
    write(tmp_path, 2, "one", 0.0, 0.0, began_s=10.0, ended_s=49.0)
    old = of_earlier_training(read_ranks(tmp_path))
    assert old is not None
    assert old.rank == 2


def test_the_command_warns_of_clocks_and_of_an_earlier_training(tmp_path: Path) -> None:
    folder, words = tmp_path / "ranks", ["trace", str(tmp_path / "ranks"), str(tmp_path / "trace.json")]
    folder.mkdir()
    write(folder, 0, "one", -1.7e9, None)
    write(folder, 1, "one", -1.7e9, None)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "clocks" not in done.output
    assert "earlier" not in done.output
    write(folder, 1, "two", -1.7e9, None, began_s=-1.7e9 - 9, ended_s=-1.7e9 - 1)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "clocks of ranks differ by what NTP or PTP leaves" in done.output
    assert "rank1.json seems to be of an earlier training" in done.output


def test_files_that_are_no_traces_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no rank has written a trace"):
        read_ranks(tmp_path)
    (tmp_path / "rank0.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"rank0.json: not the trace of a rank"):
        read_ranks(tmp_path)
