# SPDX-License-Identifier: Apache-2.0
"""Ranks that sum themselves, in rounds, in virtual time (docs/protocol.md, 5.8): in place of a switch."""

from collections.abc import Sequence

import numpy as np

from inagg._core import JobShape, RoundSlots


class Rounds:
    """A job's ranks and their all-reduces. A rank joins a round as soon as it is to; the last one ends the round.

    next_chunks: by slot, the chunk that all ranks sum next. fruitless: rounds in which no slot was agreed.
    """

    def __init__(self, job: JobShape, workers: int, next_chunks: Sequence[int]) -> None:
        self._ranks = [RoundSlots(job, next_chunks) for _ in range(workers)]
        self._offers: dict[int, np.ndarray] = {}
        self.rounds = self.fruitless = 0

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """See Switch."""
        replies = [(rank, reply) for reply in self._ranks[rank].receive(datagram)]
        while self._all_join():
            replies += self._round()
        return replies

    def _all_join(self) -> bool:
        for rank, slots in enumerate(self._ranks):
            if rank not in self._offers and slots.wants_round:
                self._offers[rank] = slots.offer()
        return len(self._offers) == len(self._ranks)

    def _round(self) -> list[tuple[int, bytes]]:
        agreed = np.bitwise_or.reduce([*self._offers.values()])
        self._offers.clear()
        parts = [slots.contributions(agreed) for slots in self._ranks]
        peaks = np.maximum.reduce([peaks for peaks, _ in parts])
        sums = np.add.reduce([sums for _, sums in parts], dtype=np.int32)
        self.rounds += 1
        self.fruitless += not sums.size
        return [
            (rank, result)
            for rank, slots in enumerate(self._ranks)
            for result in slots.finish(agreed, peaks, sums)
        ]
