# SPDX-License-Identifier: Apache-2.0
"""Which servers sum for a job whose ranks serve, where racks are known (docs/protocol.md, 5.6).

The ranks of a rack send to servers of their own rack. These send the rack's sum to the server at the root of the way,
if that is in another rack. Ways: see `sizes.way_of`. Needs only the standard library.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple


class ServedWay(NamedTuple):
    """What a rank's server sums of one way of the chunks.

    members: the ranks whose processes send to it: as workers, or as servers of other racks. above: the rank to whose
    server it sends its sums; None: it is the root.
    """

    way: int
    members: tuple[int, ...]
    above: int | None = None


class Racks:
    """The racks of a job's ranks.

    labels: of the rack of each rank; an empty one is a rack of its own, as is a rack without a server. servers: the
    number of the job's servers; rank w < `servers` runs the root of way w.
    """

    def __init__(self, labels: Sequence[str], servers: int) -> None:
        self._ways = range(servers)
        self._ranks = range(len(labels))
        by_label: dict[str, list[int]] = defaultdict(list)
        for rank, label in enumerate(labels):
            if label:
                by_label[label].append(rank)
        # Rank -> its rack, of racks whose ranks have a sum to make before another rack needs it.
        self._rack = {
            rank: rack for rack in by_label.values() if len(rack) > 1 and rack[0] < servers for rank in rack
        }
        self._between: dict[tuple[int, int], int] = {}  # (first rank of a rack, way) -> the rank that serves
        for rack in {rack[0]: rack for rack in self._rack.values()}.values():
            serving = [rank for rank in rack if rank < servers]
            elsewhere = [way for way in self._ways if way not in serving]
            for number, way in enumerate(elsewhere):
                self._between[rack[0], way] = serving[number % len(serving)]

    def server(self, rank: int, way: int) -> int:
        """The rank to whose server a rank sends the chunks of a way."""
        rack = self._rack.get(rank)
        return way if rack is None else self._between.get((rack[0], way), way)

    def served_by(self, rank: int) -> list[ServedWay]:
        """What the server of a rank sums; nothing if it has none. At the root of a way its own is first."""
        served = []
        for way in sorted(self._ways, key=lambda way: way != rank):
            if way == rank:
                served.append(ServedWay(way, self._members_of_root(way)))
            elif rank in self._rack and self._between.get((self._rack[rank][0], way)) == rank:
                served.append(ServedWay(way, tuple(self._rack[rank]), above=way))
        return served

    def _members_of_root(self, way: int) -> tuple[int, ...]:
        senders = {self.server(rank, way) for rank in self._ranks} - {way}
        direct = {rank for rank in self._ranks if self.server(rank, way) == way}
        return tuple(sorted(senders | direct))
