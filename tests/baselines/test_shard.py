# SPDX-License-Identifier: Apache-2.0
"""A shard and its threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from inagg_baselines.errors import LostRankError
from inagg_baselines.shard import Shard

ELEMENTS = 10_000


def test_ranks_that_go_on_together_have_the_same_weights() -> None:
    """Whichever of them pushes again at once."""
    shard = Shard(torch.zeros(ELEMENTS), 3, bound=0)

    def train(rank: int) -> bool:
        weights = torch.empty(ELEMENTS)
        right = []
        for step in range(1, 201):
            shard.push(rank, torch.full((ELEMENTS,), 3.0), weights)
            right.append(bool((weights == 3 * step).all()))
        return all(right)

    with ThreadPoolExecutor(3) as ranks:
        assert list(ranks.map(train, range(3))) == [True] * 3


@pytest.mark.parametrize("bound", [None, 0])
def test_whoever_waits_or_comes_later_hears_of_a_lost_rank(bound: int | None) -> None:
    shard = Shard(torch.zeros(1), 2, bound)
    leaving = threading.Event()

    def leave() -> None:
        leaving.set()
        shard.leave(0, torch.empty(1))

    with ThreadPoolExecutor(1) as ranks:
        waits = ranks.submit(leave)
        assert leaving.wait(10)
        shard.lose(1)
        with pytest.raises(LostRankError, match="rank 1 has ended"):
            waits.result(10)
    with pytest.raises(LostRankError, match="rank 1 has ended"):
        shard.push(1, torch.zeros(1), torch.empty(1))
