# SPDX-License-Identifier: Apache-2.0
"""The sums under way of one session: in order of submission, and by the memory of their results."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict

from inagg.sums.reduction import Reduction


class Pending:
    """Sums under way. No two of them share memory. Not thread-safe."""

    def __init__(self) -> None:
        self._in_order: OrderedDict[int, Reduction] = OrderedDict()
        # The memories of all sums, by address. They do not overlap, so both starts and stops ascend.
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._owners: list[Reduction] = []

    def __len__(self) -> int:
        return len(self._in_order)

    def add(self, reduction: Reduction) -> None:
        """Add a sum whose memory overlaps that of no sum here."""
        self._in_order[reduction.ticket] = reduction
        for memory in reduction.memories:
            place = bisect_left(self._starts, memory.start)
            self._starts.insert(place, memory.start)
            self._stops.insert(place, memory.stop)
            self._owners.insert(place, reduction)

    def remove(self, reduction: Reduction) -> None:
        """Remove a sum, if it is here."""
        if self._in_order.pop(reduction.ticket, None) is None:
            return
        for memory in reduction.memories:
            place = bisect_left(self._starts, memory.start)
            del self._starts[place], self._stops[place], self._owners[place]

    def first(self) -> Reduction | None:
        """The oldest sum."""
        return next(iter(self._in_order.values()), None)

    def overlapping(self, memory: range) -> list[Reduction]:
        """The sums that share addresses with `memory`, which is not empty; a sum once for each of its memories."""
        first = bisect_right(self._starts, memory.start)
        if first and self._stops[first - 1] > memory.start:
            first -= 1
        return self._owners[first : bisect_left(self._starts, memory.stop)]
