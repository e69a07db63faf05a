# SPDX-License-Identifier: Apache-2.0
"""What the groups of a mesh do follows from their ranks' counts."""

from typing import Any

import pytest

from inagg_testbed.compare.groups import group_figures, theory_of_calls
from inagg_testbed.compare.ways import Way

STEPS = 10


def call(count: int, size: int, seconds: float = 0.5) -> dict[str, float]:
    """Calls of one kind, all of which have ended."""
    return {"count": count, "bytes": size, "ended": count, "ended_bytes": size, "seconds": seconds}


def rank(sent: int, received: int, path: str = "switch") -> list[dict[str, Any]]:
    """A rank's groups after ten steps: two sums a step of data parallel ranks, eight of tensor parallel ones."""
    return [
        {"name": "dp", "ranks": 4, "path": path, "calls": {"all_reduce": call(20, 8000)}},
        {"name": "tp", "ranks": 2, "path": path, "calls": {"all_reduce": call(80, 1000)}},
        {"name": "pp", "ranks": 2, "path": path, "calls": {"send": call(1, sent), "recv": call(1, received)}},
    ]


def test_figures_are_of_a_step_and_means_over_the_ranks_that_call() -> None:
    alone = {"name": "ep", "ranks": 1, "path": "local", "calls": {"all_reduce": call(9, 9)}}
    idle = {"name": "pp", "ranks": 2, "path": "switch", "calls": {"send": call(0, 0)}}
    found = group_figures([[*rank(100, 300), alone], [*rank(300, 100)[:2], idle]], STEPS)
    assert [(each.name, each.kind, each.path) for each in found] == [
        ("dp", "all_reduce", "switch"),
        ("tp", "all_reduce", "switch"),
        ("pp", "send", "gloo"),
        ("pp", "recv", "gloo"),
    ]
    assert [each.calls for each in found] == [2, 8, 0.1, 0.1]
    assert [each.bytes for each in found] == [800, 100, 10, 30]
    assert found[0].ms == 50


def test_sums_without_a_job_go_over_gloo() -> None:
    assert {each.path for each in group_figures([rank(1, 1, path="inner")], STEPS)} == {"gloo"}


def test_all_paths_of_a_dimension_are_named() -> None:
    """One of two groups has fallen back."""
    paths = {each.name: each.path for each in group_figures([rank(1, 1), rank(1, 1, path="inner")], STEPS)}
    assert paths == {"dp": "gloo, switch", "tp": "gloo, switch", "pp": "gloo"}


@pytest.mark.parametrize(
    ("way", "sums"),
    [
        ("ring", 1.5 * 800 + 100),
        ("inagg:32", 900),
        ("inagg:16", 450),
        ("inagg:16+ef", 400 + 100),  # only gradients have narrow lanes
    ],
)
def test_the_busiest_link_carries_sums_and_messages(way: str, sums: float) -> None:
    size, messages = theory_of_calls([rank(100, 300), rank(400, 0)], Way.parse(way), STEPS)
    assert size == pytest.approx(sums + 40)
    assert messages == pytest.approx((20 * 6 + 80 * 2) / 100 if way == "ring" else 1)
