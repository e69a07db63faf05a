# SPDX-License-Identifier: Apache-2.0
"""The suite: what it runs, and its figures beside their targets."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.bench.pages.suite import contents
from inagg_testbed.bench.plan import Case
from inagg_testbed.bench.report import read_experiments, write_report
from inagg_testbed.bench.suite import SCALING_LINK, SCALING_WORKERS, Suite, fits, run_suite
from inagg_testbed.bench.targets import GOALS, verdicts
from inagg_testbed.errors import LauncherError
from inagg_testbed.report.page import page_of, render
from inagg_testbed.report.record import named_runs

LINKS = ("unshaped", "1gbit", "100mbit")


def row(link: str, workers: int, lane_bits: int | None, **changes: Any) -> dict[str, Any]:
    figures = {
        "experiment": "allreduce",
        "backend": "gloo" if lane_bits is None else "inagg",
        "elements": 1000,
        "words": 4,
        "iterations": 10,
        "packets": 100_000,
        "packets_per_message": {"sent": 62.0, "received": 31.0},
        "loss": 0.0,
        "time_ms": {"p50": 10.0, "min": 9.0},
        "times_ms": [9.0, 10.0, 12.0],
        "ratio_to_gloo": 1.7,
        "ratio_to_lossless": None,
        "busbw_MBps": 100.0,
        "line_rate_fraction": None,
        "link_bytes": 4240.0,
        "theory_bytes": 4000.0,
        "theory": "S",
        "steps": 1,
        "in_switch": 1.0,
        "cpu_s_per_GB": 2.0,
        "retransmits": 0,
        "max_abs_error": 0.0,
        "bound": 1.0,
        "checked": True,
    }
    return {"link": link, "workers": workers, "lane_bits": lane_bits, **figures, **changes}


def judged(name: str, *rows: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    return [(one.what, one.target, one.figure, one.met) for one in verdicts({name: {"rows": list(rows)}})]


def test_every_row_of_the_table_is_run_with_ten_rounds_or_more() -> None:
    for goal in GOALS:
        cases = [case for case in Suite().cases(goal.link) if case.experiment == "allreduce"]
        (case,) = (case for case in cases if (case.workers, case.elements) == (goal.workers, goal.elements))
        assert case.iterations >= 10
        assert case.backends == ("gloo", "inagg:32", "inagg:16", "inagg:8")


def test_scaling_goes_from_2_to_16_workers_and_over_all_sizes_that_fit() -> None:
    cases = [case for case in Suite().cases(SCALING_LINK) if case.experiment.startswith("scaling")]
    assert [case.workers for case in cases if case.experiment.endswith("workers")] == list(SCALING_WORKERS)
    sizes = [case.elements for case in cases if case.experiment.endswith("elements")]
    assert sizes[0] == 100
    assert sizes == sorted(sizes)


def test_a_tensor_too_large_for_the_memory_is_skipped() -> None:
    case = Case(workers=2, elements=100_000_000, backends=("gloo",))
    assert fits(case, 3 * 10**9)
    assert not fits(case, 2 * 10**9)


@pytest.mark.parametrize("link", LINKS)
def test_cases_with_the_same_workers_are_neighbours(link: str) -> None:
    workers = [case.workers for case in Suite().cases(link)]
    assert workers == sorted(workers)


@pytest.mark.parametrize("link", LINKS)
def test_a_quick_suite_is_small_and_can_be_measured(link: str) -> None:
    cases = Suite(quick=True).bench(link).cases
    assert {case.experiment for case in cases} == {case.experiment for case in Suite().cases(link)}
    assert all(case.workers == 2 and case.elements <= 100_000 and case.iterations == 2 for case in cases)


def test_a_ratio_is_beside_its_own_target() -> None:
    assert judged("allreduce", row("unshaped", 2, 32), row("unshaped", 2, 8), row("unshaped", 2, None)) == [
        ("unshaped, N=2, 1,000: inagg:32 vs gloo", "1.1x", "1.70x", True),
        ("unshaped, N=2, 1,000: inagg:8 vs gloo", "2x", "1.70x", False),
    ]


def test_servers_have_no_targets() -> None:
    served = row("unshaped", 4, 32, backend="inagg-server", line_rate_fraction=0.5)
    assert judged("allreduce", served) == []


def test_packets_into_the_switch_are_counted_with_four_workers() -> None:
    found = judged("allreduce", row("unshaped", 4, 32, ratio_to_gloo=None))  # 10,000 in 10 ms
    assert found == [("unshaped, N=4, 1,000: Mpps into switch", "1.5", "1.00", False)]


def test_numerics_are_judged_by_the_kernels_in_use_on_the_large_array() -> None:
    def step(name: str, of_memcpy: float, array: str = "40 MB", lane_bits: int = 32) -> dict[str, Any]:
        return {"step": name, "lane_bits": lane_bits, "array": array, "of_memcpy": of_memcpy}

    rows = [step("quantise", 0.9, "256 KiB"), step("quantise", 0.6), step("quantise", 0.7)]
    assert judged("numerics", *rows, step("dequantise", 0.49), step("dequantise", 0.9, lane_bits=16)) == [
        ("quantise, 32-bit lanes, of memcpy", "0.5", "0.60", True),
        ("dequantise, 32-bit lanes, of memcpy", "0.5", "0.49", False),
    ]


@pytest.mark.parametrize(("rate", "met"), [(3.5e6, True), (2.9e6, False)])
def test_the_switch_is_judged(rate: float, met: bool) -> None:
    assert [one.met for one in verdicts({"switch": {"packets_per_second": rate}})] == [met]


def test_a_line_rate_is_judged_for_32_bit_lanes() -> None:
    found = judged("allreduce", row("1gbit", 2, 32, line_rate_fraction=0.92, ratio_to_gloo=None))
    assert found == [("1gbit, N=2, 1,000: inagg:32, line rate", "0.93", "0.920", False)]
    assert judged("allreduce", row("1gbit", 2, 16, line_rate_fraction=0.92, ratio_to_gloo=None)) == []


def test_latency_is_judged_against_gloos() -> None:
    assert judged("latency", row("unshaped", 4, None), row("unshaped", 4, 32, ratio_to_gloo=5.1)) == [
        ("unshaped, N=4, 1,000: latency vs gloo", "5x", "5.10x", True)
    ]


def test_each_loss_has_its_own_bound() -> None:
    lossy = row("100mbit", 4, 32, loss=0.01, ratio_to_lossless=1.5)
    found = judged("loss", row("100mbit", 4, 32), lossy, {**lossy, "loss": 0.05})
    assert [(what.rpartition(": ")[2], target, met) for what, target, _, met in found] == [
        ("time at 1% loss", "<= 1.25x", False),
        ("time at 5% loss", "<= 2x", True),
    ]


@pytest.mark.parametrize(("packets", "met"), [(128, True), (129, False)])
def test_a_rank_that_waits_may_send_two_windows(packets: int, met: bool) -> None:
    figures = {"sleep_s": 5.0, "window": 64, "ranks": [{"packets": 64}, {"packets": packets}]}
    (verdict,) = verdicts({"straggler": figures})
    assert (verdict.target, verdict.figure, verdict.met) == ("<= 128", str(packets), met)


def test_the_report_holds_tables_plots_and_targets(tmp_path: Path) -> None:
    settings = {"link": "1000 Mbit/s each way", "gloo_over": "switch", "slots": 64}
    table = [row("1gbit", 2, lane_bits, line_rate_fraction=0.9) for lane_bits in (None, 32, 16, 8)]
    table += [{**table[1], "backend": served} for served in ("inagg-server", "inagg-server-1")]
    scaling = [
        {**each, "experiment": f"scaling, {axis}", axis: size}
        for each in table
        for axis, sizes in (("workers", (2, 16)), ("elements", (100, 1000)))
        for size in sizes
    ]
    for name, rows in (("allreduce", table), ("scaling", scaling)):
        figures = {"settings": {"1gbit": settings}, "rows": rows}
        (tmp_path / f"{name}.json").write_text(json.dumps(figures))
    (tmp_path / "switch.json").write_text(json.dumps({"packets": 200_000, "packets_per_second": 4.5e6}))
    found = write_report(tmp_path)
    assert set(read_experiments(tmp_path)) == {"allreduce", "scaling", "switch"}
    assert [one["met"] for one in json.loads((tmp_path / "targets.json").read_text())] == [
        one.met for one in found
    ]
    text = (tmp_path / "report.md").read_text()
    assert "| inagg:32 | 0.00424 | 0.004 | 1.060 | S | 1 |" in text
    assert "| 1gbit, N=2, 1,000: inagg:32 vs gloo | 0.93x | 1.70x | yes |" in text
    assert "1000 Mbit/s each way; gloo over the switch; 64 slots" in text
    assert "| switch in process: Mpps on a core | 3 | 4.50 | yes |" in text
    assert "| packets | packets_per_second |" in text
    (run,) = named_runs([tmp_path])
    assert run.record.figures["targets"] == [asdict(one) for one in found]
    page = contents([run])
    assert page.summary[0] == f"{sum(one.met for one in found)} of {len(found)} targets are met."
    assert len(page.verdicts) == len(found)
    assert [section.title for section in page.sections] == [
        "speedup",
        "allreduce",
        "scaling",
        "switch",
        "Definitions",
    ]
    assert render(page_of([run], {"suite": contents})) == (tmp_path / "report.html").read_text()
    for plot in ("ratios.png", "scaling.png"):
        assert f"]({plot})" in text
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")

    (tmp_path / "allreduce.json").unlink()
    assert write_report(tmp_path, toy=True) == []
    text = (tmp_path / "report.md").read_text()
    assert "targets do not apply" in text
    assert "met" not in text
    assert not (tmp_path / "ratios.png").exists()
    assert "to which the targets do not apply" in (tmp_path / "report.html").read_text()


def test_what_an_earlier_run_measured_is_not_in_the_folder_of_a_new_one(tmp_path: Path) -> None:
    for name in ("latency", "straggler", "numerics"):
        (tmp_path / f"{name}.json").write_text('{"rows": []}')
    with pytest.raises(LauncherError):  # before anything is measured
        run_suite(
            Suite(quick=True, program=tmp_path / "nosuch.p4"),
            tmp_path,
            tmp_path,
            on_stage=lambda _stage: None,
            on_progress=lambda _link, _done, _total: None,
        )
    assert set(read_experiments(tmp_path)) == {"numerics"}


def test_a_suite_can_leave_backends_out() -> None:
    for link in LINKS:
        assert {case.backends for case in Suite(backends=("inagg:16",)).cases(link)} == {("inagg:16",)}
