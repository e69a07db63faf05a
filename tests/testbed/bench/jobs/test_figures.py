# SPDX-License-Identifier: Apache-2.0
"""The figures of several jobs, computed from the times of their phases."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.bench.jobs.figures import (
    JobOutcome,
    PhaseTime,
    RunOutcome,
    jain_index,
    jobs_table,
    make_rows,
    table,
    title,
)
from inagg_testbed.bench.jobs.plot import plot_jobs

ELEMENTS = 250_000  # 1 MB


def job(
    number: int,
    seconds: Sequence[float],
    path: str = "switch",
    slots: int | None = 32,
    waited_s: float = 0.0,
    in_switch: float = 1.0,
) -> JobOutcome:
    """A job whose phases have 10 all-reduces each, of 0.1 s if undisturbed, after pauses of 1 s."""
    begins = [waited_s + 1 + index + sum(seconds[:index]) for index in range(len(seconds))]
    phases = tuple(
        PhaseTime(sums=10, began_s=began, seconds=each) for began, each in zip(begins, seconds, strict=True)
    )
    return JobOutcome(
        job=number,
        path=path,
        slots=slots,
        sum_s=0.1,
        waited_s=waited_s,
        in_switch=in_switch,
        phases=phases,
    )


def leased(number: int, scale: float = 1.0) -> RunOutcome:
    """Job 0 does 20 MB in 2 s, job 1 in 4 s."""
    first = job(0, [1.0 * scale, 1.0 * scale])
    jobs = first, job(1, [1.5 * scale, 2.5 * scale], "inner", None, in_switch=0.0)
    return RunOutcome(round=number, policy="leased", jobs=jobs)


def queued(number: int) -> RunOutcome:
    """Both jobs do 20 MB in 2 s, but job 1 waits for 6 s."""
    return RunOutcome(
        round=number, policy="queued", jobs=(job(0, [1.0, 1.0]), job(1, [1.0, 1.0], waited_s=6.0))
    )


def server(number: int, scale: float = 1.0) -> RunOutcome:
    """Both jobs do 20 MB in 4 s."""
    jobs = tuple(job(each, [2.0 * scale, 2.0 * scale], "server", 64, in_switch=0.0) for each in (0, 1))
    return RunOutcome(round=number, policy="server", jobs=jobs)


def rows() -> list[dict[str, Any]]:
    return make_rows([leased(0), server(0), queued(0)], ELEMENTS)


@pytest.mark.parametrize(
    ("goodputs", "index"), [([3.0, 3.0, 3.0], 1.0), ([5.0, 0.0, 0.0, 0.0], 0.25), ([1.0, 3.0], 0.8)]
)
def test_the_jain_index_is_1_if_all_have_the_same(goodputs: list[float], index: float) -> None:
    assert jain_index(goodputs) == pytest.approx(index)


def test_the_goodput_of_a_policy_is_the_sum_of_its_jobs() -> None:
    first, second, _ = rows()
    assert [each["goodput_MBps"] for each in first["jobs"]] == pytest.approx([10.0, 5.0])
    assert (first["goodput_MBps"], second["goodput_MBps"]) == pytest.approx((15.0, 10.0))
    assert (first["jain"], second["jain"]) == pytest.approx((0.9, 1.0))


def test_a_job_that_waits_has_less_goodput_and_is_done_later() -> None:
    *_, waiting = rows()
    assert [each["goodput_MBps"] for each in waiting["jobs"]] == pytest.approx([10.0, 2.5])
    assert waiting["jain"] == pytest.approx(12.5**2 / (2 * (100 + 6.25)))
    assert [each["waited_s"] for each in waiting["jobs"]] == [0.0, 6.0]
    assert [each["completion_s"] for each in waiting["jobs"]] == [4.0, 10.0]  # with pauses of 1 s
    assert waiting["completion_s"] == {"mean": 7.0, "last": 10.0}


def test_the_ratio_is_the_median_of_those_of_the_rounds() -> None:
    runs = [leased(0), server(0), leased(1), server(1, 0.5), leased(2, 2.0), server(2, 2.0)]
    first, second = make_rows(runs, ELEMENTS)
    assert (first["ratios"], second["ratios"]) == (
        pytest.approx({"leased": 1.0, "server": 15 / 10}),
        pytest.approx({"leased": 10 / 15, "server": 1.0}),  # of 10/15, 20/15 and 5/7.5
    )
    assert (first["rounds"], second["goodput_MBps"]) == (3, pytest.approx(10.0))  # of 10, 20 and 5


def test_times_and_slowdowns_are_percentiles_over_all_phases() -> None:
    first, *_ = rows()
    assert first["phase_s"] == pytest.approx({"p50": 1.25, "p95": 2.35})  # of 1.0, 1.0, 1.5 and 2.5
    assert first["slowdown"] == first["phase_s"]  # undisturbed, each phase takes a second
    assert first["jobs"][1]["phase_s"]["p50"] == pytest.approx(2.0)


def test_a_row_says_what_summed_and_which_slots_were_granted_in_each_round() -> None:
    (first,) = make_rows([leased(0), leased(1)], ELEMENTS)
    assert [(each["sums_by"], each["slots"]) for each in first["jobs"]] == [
        (["switch", "switch"], [32, 32]),
        (["gloo", "gloo"], [None, None]),
    ]


def test_the_tables_have_a_line_for_each_policy_and_for_each_job() -> None:
    header, body = table(rows())
    assert header[:8] == ["policy", "MB/s", "vs leased", "vs queued", "Jain", "in switch", "mean s", "last s"]
    assert [line[:8] for line in body] == [
        ["leased", "15", "1.00x", "1.20x", "0.900", "50%", "5.0", "6.0"],
        ["server", "10", "0.67x", "0.80x", "1.000", "0%", "6.0", "6.0"],
        ["queued", "12.5", "0.83x", "1.00x", "0.735", "100%", "7.0", "10.0"],
    ]
    header, body = jobs_table(rows())
    assert header[:7] == ["policy, job", "sums by", "slots", "MB/s", "in switch", "waited s", "done s"]
    assert [line[:7] for line in body] == [
        ["leased, 0", "switch", "32", "10", "100%", "0.0", "4.0"],
        ["leased, 1", "gloo", "-", "5", "0%", "0.0", "6.0"],
        ["server, 0", "server", "64", "5", "0%", "0.0", "6.0"],
        ["server, 1", "server", "64", "5", "0%", "0.0", "6.0"],
        ["queued, 0", "switch", "32", "10", "100%", "0.0", "4.0"],
        ["queued, 1", "switch", "32", "2.5", "100%", "6.0", "10.0"],
    ]


def test_without_a_policy_that_leases_all_are_compared_with_the_first() -> None:
    header, body = table(make_rows([server(0)], ELEMENTS))
    assert (header[2], body[0][2]) == ("vs server", "1.00x")


def test_the_file_has_every_phase() -> None:
    document = queued(0).document(ELEMENTS)
    assert document["jain"] == pytest.approx(12.5**2 / (2 * (100 + 6.25)))
    (_, second) = document["jobs"]
    assert second["phases"] == [
        {"sums": 10, "began_s": began, "seconds": 1.0, "slowdown": 1.0} for began in (7.0, 9.0)
    ]
    assert (second["sums_by"], second["slots"], second["goodput_MBps"]) == ("switch", 32, 2.5)
    assert (second["waited_s"], second["completion_s"], second["in_switch"]) == (6.0, 10.0, 1.0)


def test_the_title_says_which_job_has_a_late_rank() -> None:
    settings = {"jobs": 2, "workers": 2, "elements": ELEMENTS, "active": 0.5, "rounds": 1, "slots": 64}
    plain = title({"alone_ms": 100.0, "settings": {**settings, "skew": 0.0, "pool": None}})
    assert "late" not in plain
    assert (
        "\nall slots to lease, 64 asked for by each job; an all-reduce of a job alone takes 100.0 ms" in plain
    )
    late = title({"alone_ms": 100.0, "settings": {**settings, "skew": 2.0, "pool": 48}})
    assert "50% of the time; a rank of job 1 is 2 all-reduces late\n48 slots to lease" in late


def test_the_figures_can_be_drawn(tmp_path: Path) -> None:
    runs = [leased(0), server(0), leased(1)]
    figures = {"rows": rows(), "runs": [run.document(ELEMENTS) for run in runs]}
    for name, begins in (("jobs.png", b"\x89PNG"), ("jobs.pdf", b"%PDF"), ("jobs.svg", b"<?xml")):
        plot_jobs(figures, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
