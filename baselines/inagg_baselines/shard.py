# SPDX-License-Identifier: Apache-2.0
"""A shard of a parameter server: weights that threads change, one thread for each rank."""

import threading
from collections.abc import Callable, Iterable

import torch

from inagg_baselines.clocks import Clocks
from inagg_baselines.errors import LostRankError


class Shard:
    """A part of the weights, to which ranks add 1/N of their changes.

    Without a bound no rank waits for another (Dean et al.: Large scale distributed deep networks, NIPS 2012), and no
    lock guards the weights (Niu et al.: Hogwild!, NIPS 2011): of two changes at the same time an element may miss one.
    With a bound the ranks wait by the rule of Clocks.
    """

    def __init__(self, weights: torch.Tensor, ranks: int, bound: int | None) -> None:
        """weights: the first ones, of shape (elements,); the shard changes them. ranks: N."""
        self._weights, self._ranks = weights, ranks
        self._clocks = None if bound is None else Clocks(range(ranks), bound)
        # The condition guards all below, and with clocks the weights. _released: the weights with which ranks go on,
        # until they have copied them.
        self._changed = threading.Condition()
        self._training = set(range(ranks))
        self._released: dict[int, torch.Tensor] = {}
        self._lost: int | None = None

    def push(self, rank: int, change: torch.Tensor, weights: torch.Tensor) -> None:
        """Add a rank's change, wait until the rank may go on, and copy the weights that it goes on with.

        Raises LostRankError if a rank has been lost. change, weights: of shape (elements,).
        """
        self._check()
        if self._clocks is None:
            self._weights.add_(change, alpha=1 / self._ranks)
            weights.copy_(self._weights)
            return
        with self._changed:
            self._weights.add_(change, alpha=1 / self._ranks)
            self._release(self._clocks.step(rank))
            self._wait_for(lambda: rank in self._released)
            released = self._released.pop(rank)
        weights.copy_(released)

    def leave(self, rank: int, weights: torch.Tensor) -> None:
        """A rank trains no more: wait until none does, and copy the last weights. Raises LostRankError."""
        with self._changed:
            self._training.remove(rank)
            if self._clocks is not None:
                self._release(self._clocks.leave(rank))
            self._changed.notify_all()
            self._wait_for(lambda: not self._training)
        weights.copy_(self._weights)

    def lose(self, rank: int) -> None:
        """A rank is lost: whoever waits, or comes later, gets the error."""
        with self._changed:
            self._lost = rank
            self._changed.notify_all()

    def _release(self, ranks: Iterable[int]) -> None:
        """Ranks that go on together do so with the same weights, whatever the first of them adds next."""
        if released := list(ranks):
            self._released |= dict.fromkeys(released, self._weights.clone())
            self._changed.notify_all()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: condition() or self._lost is not None)
        if not condition():
            self._check()

    def _check(self) -> None:
        if self._lost is not None:
            raise LostRankError(self._lost)
