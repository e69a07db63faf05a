# SPDX-License-Identifier: Apache-2.0
"""The rule of stale-synchronous servers, whatever the order of pushes."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from inagg_baselines.clocks import Clocks
from tests.examples import at_most


def test_a_rank_waits_for_the_slowest() -> None:
    clocks = Clocks([0, 1], bound=1)
    assert clocks.step(0) == [0]
    assert clocks.step(0) == []
    assert sorted(clocks.step(1)) == [0, 1]


def test_nobody_waits_for_a_rank_that_has_left() -> None:
    clocks = Clocks([0, 1], bound=0)
    assert clocks.step(0) == []
    assert clocks.leave(1) == [0]
    assert clocks.step(0) == [0]
    assert clocks.leave(0) == []


@settings(max_examples=at_most(200, explored=20_000))
@given(st.integers(1, 5), st.integers(0, 4), st.randoms(use_true_random=False))
def test_ranks_keep_the_bound_and_go_on(ranks: int, bound: int, draws: Random) -> None:
    """Ranks step in any order, and leave at any time."""
    clocks = Clocks(range(ranks), bound)
    steps = dict.fromkeys(range(ranks), 0)  # of those that have not left
    ready = set(range(ranks))
    while steps:
        assert ready  # nobody waits for ever
        rank = draws.choice(sorted(ready))
        ready.remove(rank)
        if draws.random() < 0.05:
            del steps[rank]
            released = clocks.leave(rank)
        else:
            steps[rank] += 1
            released = clocks.step(rank)
        assert not ready & set(released)
        ready |= set(released)
        slowest = min(steps.values(), default=0)
        assert all(steps[one] - slowest <= bound for one in released)
        assert all(steps[one] - slowest > bound for one in steps.keys() - ready)
