# SPDX-License-Identifier: Apache-2.0
"""Gossip: a rank takes the mean of its weights and those of a few others."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inagg_baselines.messages import Messages
from inagg_baselines.vector import Vector

Partners = Callable[[], Sequence[int]]


def ring_neighbours(rank: int, ring: Sequence[int]) -> Partners:
    """The ranks before and behind a rank in a ring: two, one or none."""
    at = ring.index(rank)
    found = sorted({ring[at - 1], ring[(at + 1) % len(ring)]} - {rank})
    return lambda: found


def random_partner(rank: int, ranks: int, seed: int) -> Partners:
    """A partner, drawn in each step, so that all ranks form pairs. With an odd number of ranks one rests.

    seed: the same at all ranks, which then draw the same pairs.
    """
    draws = random.Random(seed)

    def partners() -> list[int]:
        order = draws.sample(range(ranks), ranks)
        other = order.index(rank) ^ 1
        return [order[other]] if other < ranks else []

    return partners


class GossipExchange:
    """Decentralised SGD (Lian et al.: Can decentralized algorithms outperform centralized algorithms?, NIPS 2017).

    After each step a rank takes the mean of its weights and those of its partners. Who is a partner of whom is
    symmetric, and all ranks have equally many partners (or a rank rests), so the matrix of the means is doubly
    stochastic, and the mean of all ranks' weights stays as it is. Ranks take the same number of steps. At the end all
    take the mean.
    """

    def __init__(self, group: Any, partners: Partners) -> None:
        """group: torch's gloo group, of all ranks. partners: of a step."""
        self._group, self._partners = group, partners
        self._messages = Messages(group)

    def start(self, parameters: Sequence[torch.Tensor]) -> None:
        """See Exchange."""
        self._vector = Vector(parameters, self._group)

    def after_step(self) -> None:
        """See Exchange."""
        partners = self._partners()
        own = self._vector.read()
        theirs = {rank: torch.empty_like(own) for rank in partners}
        self._messages.swap(sent=dict.fromkeys(partners, own), received=theirs)
        for weights in theirs.values():
            own += weights
        own /= 1 + len(theirs)
        self._vector.write()

    def finish(self) -> None:
        """See Exchange."""
        self._vector.average()
