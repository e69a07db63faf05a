# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different collectives: all of them get an error that names both sides, in seconds."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed

WORKER = Path(__file__).with_name("mismatch_worker.py")
RANKS = 3
# Case -> number of the first collective in which rank 1 differs, its text at rank 1, its text at the others.
EXPECTED = {
    "sizes": (1, "all_reduce(SUM, float32[1001])", "all_reduce(SUM, float32[1000])"),
    "types": (1, "all_reduce(SUM, int16[1000])", "all_reduce(SUM, float32[1000])"),
    "order": (2, "all_reduce(SUM, float32[1000])", "broadcast(float32[10], src=0)"),
    "of_one_length_in_bytes_before_a_sum": (
        1,
        "all_reduce(MAX, int32[10])",
        "all_reduce(MAX, float32[10])",
    ),
    "both_within_the_inner_group": (1, "barrier()", "broadcast(float32[10], src=1)"),
}

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, dict[str, Any]]]:
    """Case -> rank -> the rank's event."""
    found: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("mismatch")
    ) as testbed:
        group = testbed.launch([sys.executable, str(WORKER), "{events}"], name="mismatch")
        group.follow(
            lambda rank, row: found[row["case"]].update({rank: row}), timeout_s=120, watch=testbed.services
        )
    return found


@pytest.mark.parametrize("case", EXPECTED)
def test_all_ranks_are_told_what_each_called(rows: dict[str, dict[int, dict[str, Any]]], case: str) -> None:
    number, odd, others = EXPECTED[case]
    for rank in range(RANKS):
        row = rows[case][rank]
        assert row["collective"] == number, row
        assert row["calls"] == {"0": others, "1": odd, "2": others}
        named = "ranks 0 (h1, 10.0.0.1), 2 (h3, 10.0.0.3)", "rank 1 (h2, 10.0.0.2)"
        said = f"{named[0]}: collective {number} is {others}; {named[1]}: collective {number} is {odd}"
        assert said in row["error"]
        assert row["seconds"] < 20


def test_a_rank_that_is_late_is_no_mismatch(rows: dict[str, dict[int, dict[str, Any]]]) -> None:
    assert [rows["late_but_right"][rank]["error"] for rank in range(RANKS)] == [None] * RANKS


def test_ranks_that_make_groups_in_different_order_are_told_which(
    rows: dict[str, dict[int, dict[str, Any]]],
) -> None:
    told = rows["groups_in_different_order"]
    assert "group of the ranks [0, 2] where another makes one of [0, 1]" in told[0]["error"]
    assert "group of the ranks [0, 1] where another makes one of [0, 2]" in told[1]["error"]
