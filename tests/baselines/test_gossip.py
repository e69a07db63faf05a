# SPDX-License-Identifier: Apache-2.0
"""Gossip keeps the mean of all weights, and reaches it."""

from pathlib import Path

import pytest
import torch

from inagg_baselines.gossip import random_partner, ring_neighbours
from tests.baselines.ranks import run


@pytest.mark.parametrize("name", ["gossip", "gossip:random"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_the_mean_stays_and_all_reach_it(name: str, ranks: int, tmp_path: Path) -> None:
    seen = torch.tensor(
        run("mix", ranks, tmp_path, architecture=name, steps=60, racks=[])
    )  # rank, time, element
    means = seen.mean(dim=0)
    torch.testing.assert_close(means, means[:1].expand_as(means), rtol=0, atol=1e-6)
    spread = (seen - means).abs().amax(dim=(0, 2))
    assert spread[0] > 0.1
    assert spread[-2] < 1e-5  # before the end
    assert spread[-1] < 1e-6
    assert (seen[:, -1] == seen[0, -1]).all()


def test_the_ring_goes_through_rack_after_rack(tmp_path: Path) -> None:
    """Rank 0 has the neighbours 2 and 1 in the ring 0, 2, 3, 1."""
    seen = torch.tensor(run("mix", 4, tmp_path, architecture="gossip", steps=1, racks=[[0, 2], [3, 1]]))
    torch.testing.assert_close(seen[0, 1], seen[[0, 1, 2], 0].mean(dim=0))


def test_neighbours() -> None:
    found = {rank: ring_neighbours(rank, [0, 2, 4, 3, 1])() for rank in range(5)}
    assert found == {0: [1, 2], 1: [0, 3], 2: [0, 4], 3: [1, 4], 4: [2, 3]}
    assert [ring_neighbours(rank, [0, 1])() for rank in (0, 1)] == [[1], [0]]
    assert ring_neighbours(0, [0])() == []


@pytest.mark.parametrize("ranks", [1, 2, 5, 6])
def test_pairs_are_mutual_and_meet_everybody(ranks: int) -> None:
    draws = [random_partner(rank, ranks, seed=7) for rank in range(ranks)]
    met: set[tuple[int, int]] = set()
    for _ in range(100):
        of = {rank: partner for rank, draw in enumerate(draws) for partner in draw()}
        assert all(of[partner] == rank != partner for rank, partner in of.items())
        assert len(of) == ranks - ranks % 2
        met |= set(of.items())
    assert len(met) == ranks * (ranks - 1)
