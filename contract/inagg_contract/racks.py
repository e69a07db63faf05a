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
        by_label: dict[str, list[int]] = defaultdict(list)
        for rank, label in enumerate(labels):
            if label:
                by_label[label].append(rank)
        self._asked = [list(range(servers)) for _ in labels]  # by rank and way
        for rack in by_label.values():
            serving = [rank for rank in rack if rank < servers]
            elsewhere = [way for way in range(servers) if way not in serving]
            if len(rack) == 1 or not serving:
                continue
            for number, way in enumerate(elsewhere):
                for rank in rack:
                    self._asked[rank][way] = serving[number % len(serving)]

    def server(self, rank: int, way: int) -> int:
        """The rank to whose server a rank sends the chunks of a way."""
        return self._asked[rank][way]

    def served_by(self, rank: int) -> list[ServedWay]:
        """What the server of a rank sums; nothing if it has none. At the root of a way its own is first."""
        served = []
        for way in sorted(range(len(self._asked[rank])), key=lambda way: way != rank):
            if way == rank:
                members = {
                    sender if asked[way] == way else asked[way] for sender, asked in enumerate(self._asked)
                }
                served.append(ServedWay(way, tuple(sorted(members))))
            elif rack := tuple(sender for sender, asked in enumerate(self._asked) if asked[way] == rank):
                served.append(ServedWay(way, rack, above=way))
        return served
