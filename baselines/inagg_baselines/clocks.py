# SPDX-License-Identifier: Apache-2.0
"""Which rank of a stale-synchronous parameter server may go on. Neither threads nor messages."""

from collections.abc import Iterable


class Clocks:
    """The rule of SSP (Ho et al.: More effective distributed ML via a stale synchronous parallel parameter server, NIPS
    2013).

    A rank's clock is the number of its steps. A rank waits while its clock is more than `bound` ahead of the slowest
    rank's. So a rank with clock c goes on with weights that contain the first c - bound steps of every rank. Nobody
    waits for a rank that has left. With a bound of 0 the ranks take their steps together.
    """

    def __init__(self, ranks: Iterable[int], bound: int) -> None:
        self._clocks = dict.fromkeys(ranks, 0)
        self._waiting: set[int] = set()
        self._bound = bound

    def step(self, rank: int) -> list[int]:
        """A rank has done a step, and waits. Returns the ranks that go on now."""
        self._clocks[rank] += 1
        self._waiting.add(rank)
        return self._released()

    def leave(self, rank: int) -> list[int]:
        """A rank trains no more. Returns the ranks that go on now."""
        del self._clocks[rank]
        return self._released()

    def _released(self) -> list[int]:
        slowest = min(self._clocks.values(), default=0)
        released = [rank for rank in self._waiting if self._clocks[rank] - slowest <= self._bound]
        self._waiting.difference_update(released)
        return released
