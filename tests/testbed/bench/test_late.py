# SPDX-License-Identifier: Apache-2.0
"""The figures of a rank that stalls, from literal events and from a small run."""

from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.bench.late import LateBench, plot_late, run_late, summarise, table, title
from inagg_testbed.errors import ConfigurationError, WrongResultError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed

BENCH = LateBench(workers=2, steps=2, accuracy=0.5, rounds=1)


def events(deadline_share: float = 0.75, weights: str = "same") -> list[tuple[int, dict[str, Any]]]:
    """The training that waits is right after 8 s; that with a deadline after 5 s, and its last rank skips a pass."""
    found: list[tuple[int, dict[str, Any]]] = []
    for run, curve in enumerate(([(4.0, 0.25), (8.0, 0.5)], [(2.5, 0.25), (5.0, deadline_share)])):
        for rank in range(2):
            passes = 1 if (rank, run) == (1, 1) else 2
            found += [(rank, {"event": "step", "run": run, "step": step}) for step in range(passes)]
            end = {"event": "end", "run": run, "late": rank * run, "weights": weights if rank else "same"}
            found.append((rank, end))
        found.append((0, {"event": "run", "run": run, "curve": curve}))
    return found


def test_the_ratio_is_that_of_the_times_to_accuracy() -> None:
    figures = summarise(BENCH, events())
    assert [row["seconds"] for row in figures["rows"]] == [8.0, 5.0]
    assert [(row["computed"], row["late"]) for row in figures["rows"]] == [(2, 0), (1, 1)]
    assert (figures["ratios"], figures["ratio"], figures["bound"]) == ([0.625], 0.625, 0.5)
    assert table(figures)[1] == [
        ["1", "waiting", "8.0 s", "2", "0", ""],
        ["1", "deadline", "5.0 s", "1", "1", "0.62"],
    ]


def test_an_accuracy_that_is_not_reached_has_no_ratio() -> None:
    figures = summarise(BENCH, events(deadline_share=0.25))
    assert figures["ratio"] is None
    assert table(figures)[1][1] == ["1", "deadline", "not reached", "1", "1", ""]
    assert "median" not in title(figures)


def test_ranks_with_different_weights_are_an_error() -> None:
    with pytest.raises(WrongResultError, match="run 0: the ranks have 2 different sets of weights"):
        summarise(BENCH, events(weights="other"))


def test_one_worker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one worker waits for nobody"):
        LateBench(workers=1)


@pytest.mark.netns
@pytest.mark.usefixtures("forked_processes")
def test_a_small_run(tmp_path: Path) -> None:
    bench = LateBench(workers=2, steps=20, step_s=0.03, every=3, accuracy=0.1, rounds=1)
    with open_testbed(hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path) as testbed:
        figures = run_late(bench, testbed, lambda *_: None)
    waiting, deadline = figures["rows"]
    assert (waiting["computed"], waiting["late"]) == (20, 0)
    assert deadline["computed"] <= 20
    assert [len(row["curve"]) for row in figures["rows"]] == [4, 4]
    plot_late(figures, tmp_path / "late.png")
    assert (tmp_path / "late.png").stat().st_size > 1000
