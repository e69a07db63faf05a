# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: the bound of stale-synchronous servers, and none of asynchronous ones."""

import random
from pathlib import Path

import pytest

from tests.baselines.ranks import run

RANKS, STEPS = 3, 40


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_rank_is_more_steps_ahead_than_the_bound(bound: int, tmp_path: Path) -> None:
    """Ranks stop in turn until all others can do no more."""
    draws = random.Random(bound)
    stops, step = [], 1
    while step + bound <= STEPS:
        stops.append((draws.randrange(RANKS), step))
        step += bound + draws.randint(1, 3)
    found = run("follow_the_bound", RANKS, tmp_path, bound=bound, steps=STEPS, stops=stops)
    assert sum(one["stopped"] for one in found) == len(stops) > 5
    assert [one["lead"] for one in found] == [bound] * RANKS


@pytest.mark.parametrize("name", ["server:async", "server:async=1"])
def test_no_rank_waits_for_another_on_an_asynchronous_server(name: str, tmp_path: Path) -> None:
    """The others do all their steps, and are done, while one rank stands still."""
    assert run("stand_still", RANKS, tmp_path, architecture=name, steps=20) == [20] * RANKS


def test_no_rack_waits_for_another(tmp_path: Path) -> None:
    racks = [[0, 1], [2]]
    assert (
        run("stand_still", RANKS, tmp_path, architecture="server:leaves", steps=20, racks=racks)
        == [20] * RANKS
    )
