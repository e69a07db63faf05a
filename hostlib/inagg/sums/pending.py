# SPDX-License-Identifier: Apache-2.0
"""The sums under way of one session, in order, found by the memory that they are in."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict

from inagg.sums.reduction import Reduction


class Pending:
    """Sums no two of which share memory. Not safe for threads."""

    def __init__(self) -> None:
        self._in_order: OrderedDict[int, Reduction] = OrderedDict()
        # By address, those without memory left out: as none overlap, both starts and stops ascend.
        self._starts: list[int] = []
        self._by_start: list[Reduction] = []

    def __len__(self) -> int:
        return len(self._in_order)

    def add(self, reduction: Reduction) -> None:
        """One whose memory is none of `overlapping`'s."""
        self._in_order[reduction.ticket] = reduction
        if reduction.memory:
            place = bisect_left(self._starts, reduction.memory.start)
            self._starts.insert(place, reduction.memory.start)
            self._by_start.insert(place, reduction)

    def remove(self, reduction: Reduction) -> None:
        """Forget one, if it is there."""
        if self._in_order.pop(reduction.ticket, None) is not None and reduction.memory:
            place = bisect_left(self._starts, reduction.memory.start)
            del self._starts[place], self._by_start[place]

    def first(self) -> Reduction | None:
        """The oldest."""
        return next(iter(self._in_order.values()), None)

    def overlapping(self, memory: range) -> list[Reduction]:
        """Those that share addresses with `memory`."""
        if not memory:
            return []
        first = bisect_right(self._starts, memory.start)
        if first and self._by_start[first - 1].memory.stop > memory.start:
            first -= 1
        return self._by_start[first : bisect_left(self._starts, memory.stop)]
