"""From what the workers of a benchmark report to its rows."""

from dataclasses import replace
from typing import Any

import pytest

from inagg_testbed.bench_allreduce import (
    AllReduceBench,
    line_rate_fraction,
    make_rows,
    speedups,
    table,
    wrong_results,
)
from inagg_testbed.bench_plan import BackendSpec, Plan
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.links import LinkSpec

GLOO, INAGG_16 = BackendSpec.parse("gloo"), BackendSpec.parse("inagg:16")


def bench() -> AllReduceBench:
    return AllReduceBench(
        workers=(4,),
        elements=(1_000_000,),
        link_name="100mbit",
        link=LinkSpec.parse("100mbit"),
        backends=(GLOO, INAGG_16),
    )


def event(rank: int, index: int, seconds: float, **changes: Any) -> dict[str, Any]:
    right = {
        "digest": f"sum {index}",
        "max_abs_error": 1e-6,
        "bound": 1e-5,
        "wrong_index": None,
        "retransmits": 1,
    }
    return {"rank": rank, "index": index, "seconds": seconds, **right, **changes}


def events(scale: float) -> list[dict[str, Any]]:
    """Three iterations of two ranks; the slower rank takes 0.5, 0.4 and 0.6 s times scale."""
    slow = {0: 0.5, 1: 0.4, 2: 0.6}
    return [event(rank, index, scale * (slow[index] - 0.1 * rank)) for index in slow for rank in (0, 1)]


def test_a_row_has_exactly_these_fields() -> None:
    (row,) = make_rows(bench(), {(4, 1_000_000, "gloo"): events(1.0)})
    assert list(row) == [
        *("backend", "lane_bits", "workers", "elements", "dtype", "link"),
        *("time_ms", "algbw_MBps", "busbw_MBps", "line_rate_fraction", "retransmits"),
        *("max_abs_error", "bound", "checked"),
    ]
    assert list(row["time_ms"]) == ["p50", "p95", "min"]


def test_the_time_of_an_iteration_is_that_of_its_slowest_rank() -> None:
    (row,) = make_rows(bench(), {(4, 1_000_000, "gloo"): events(1.0)})
    assert row["time_ms"] == pytest.approx({"p50": 500.0, "p95": 590.0, "min": 400.0})


def test_bandwidths_are_those_of_nccl_tests() -> None:
    (row,) = make_rows(bench(), {(4, 1_000_000, "gloo"): events(1.0)})
    assert row["algbw_MBps"] == pytest.approx(8.0)  # 4 MB in 0.5 s
    assert row["busbw_MBps"] == pytest.approx(12.0)  # x 2(4-1)/4


def test_retransmits_of_all_ranks_and_iterations_add_up() -> None:
    (row,) = make_rows(bench(), {(4, 1_000_000, "gloo"): events(1.0)})
    assert row["retransmits"] == 6


@pytest.mark.parametrize(
    ("backend", "fraction"),
    [
        ("inagg:32", 0.64),  # 32 Mbit each way in 0.5 s of 100 Mbit/s
        ("inagg:16", 0.32),
        ("gloo", 0.96),  # a ring sends 2(N-1)/N times as much
    ],
)
def test_line_rate_fraction_counts_the_payload_that_the_algorithm_sends(
    backend: str, fraction: float
) -> None:
    spec = BackendSpec.parse(backend)
    assert line_rate_fraction(spec, 4, 1_000_000, 100_000_000, 0.5) == pytest.approx(fraction)


def test_an_unshaped_link_has_no_line_rate() -> None:
    assert line_rate_fraction(GLOO, 4, 1_000_000, None, 0.5) is None


def test_a_wrong_result_is_described_and_unchecks_its_row() -> None:
    wrong = event(1, 2, 0.5, wrong_index=17, wrong_value="0.25", exact_value=0.5, max_abs_error=None)
    found = {(4, 1_000_000, "inagg:16"): [*events(1.0), wrong]}
    (row,) = make_rows(bench(), found)
    assert not row["checked"]
    assert row["max_abs_error"] == float("inf")
    (text,) = wrong_results(found)
    assert "inagg:16" in text
    assert "rank 1" in text
    assert "element 17 is 0.25, exactly 0.5" in text
    assert table([row])[1][0][-1] == "WRONG"


def test_ranks_that_disagree_are_wrong() -> None:
    found = {(4, 1_000_000, "inagg:16"): [*events(1.0), event(2, 1, 0.5, digest="other")]}
    (row,) = make_rows(bench(), found)
    assert not row["checked"]
    (text,) = wrong_results(found)
    assert "iteration 1: the ranks have different results" in text


def test_speedups_are_against_gloo_of_the_same_size() -> None:
    rows = make_rows(
        bench(),
        {
            (4, 1_000_000, "gloo"): events(1.0),
            (4, 1_000_000, "inagg:16"): events(0.25),
            (4, 9, "inagg:16"): events(1),
        },
    )
    assert speedups(rows) == pytest.approx(
        {(4, 1_000_000, "gloo", None): 1.0, (4, 1_000_000, "inagg", 16): 4.0}
    )


@pytest.mark.parametrize("text", ["nccl", "gloo:32", "inagg:8", "inagg:x", ""])
def test_an_unknown_backend_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="inagg:32"):
        BackendSpec.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "0 slots: want a power of two"),
        ({"slots": 1}, "1 slots"),
        ({"slots": 96}, "96 slots"),
        ({"backends": (GLOO, GLOO)}, "backend gloo, gloo: each value only once"),
        ({"workers": (2, 2)}, "workers 2, 2"),
        ({"elements": (9, 9)}, "elements 9, 9"),
        ({"loss": 0.6}, r"loss 0\.6 is outside 0 to 0\.5"),
        ({"switch": "bridge"}, "a bridge neither aggregates"),
        ({"switch": "bridge", "backends": (GLOO,), "loss": 0.1}, "nor drops packets"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(bench(), **changes)


def test_gloo_alone_can_be_measured_over_a_bridge() -> None:
    assert replace(bench(), switch="bridge", backends=(GLOO,)).switch == "bridge"


def test_a_backend_is_written_as_it_is_read() -> None:
    assert [str(BackendSpec.parse(text)) for text in ("gloo", "inagg", "inagg:16")] == [
        "gloo",
        "inagg:32",
        "inagg:16",
    ]


def test_a_plan_survives_the_command_line() -> None:
    plan = Plan(backends=("gloo", "inagg:32"), elements=(1, 2), iterations=3, warmup=0, seed=5, words=4)
    assert Plan.from_json(plan.to_json()) == plan
