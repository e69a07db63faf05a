# SPDX-License-Identifier: Apache-2.0
"""The sums under way of one session: in order of submission, and by the memory of their results."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict

from inagg.sums.reduction import Reduction


class Pending:
    """Sums under way. No two of them share memory. Not thread-safe."""

    def __init__(self) -> None:
        self._in_order: OrderedDict[int, Reduction] = OrderedDict()
        # Sums by address, without those of empty tensors. They do not overlap, so both starts and stops ascend.
        self._starts: list[int] = []
        self._by_start: list[Reduction] = []

    def __len__(self) -> int:
        return len(self._in_order)

    def add(self, reduction: Reduction) -> None:
        """Add a sum whose memory overlaps that of no sum here."""
        self._in_order[reduction.ticket] = reduction
        if reduction.memory:
            place = bisect_left(self._starts, reduction.memory.start)
            self._starts.insert(place, reduction.memory.start)
            self._by_start.insert(place, reduction)

    def remove(self, reduction: Reduction) -> None:
        """Remove a sum, if it is here."""
        if self._in_order.pop(reduction.ticket, None) is not None and reduction.memory:
            place = bisect_left(self._starts, reduction.memory.start)
            del self._starts[place], self._by_start[place]

    def first(self) -> Reduction | None:
        """The oldest sum."""
        return next(iter(self._in_order.values()), None)

    def overlapping(self, memory: range) -> list[Reduction]:
        """The sums that share addresses with `memory`."""
        if not memory:
            return []
        first = bisect_right(self._starts, memory.start)
        if first and self._by_start[first - 1].memory.stop > memory.start:
            first -= 1
        return self._by_start[first : bisect_left(self._starts, memory.stop)]
