# SPDX-License-Identifier: Apache-2.0
"""Aggregation servers in virtual time: the C++ core's `ServedJob` in the place of a switch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from inagg._core import JobShape, ServedJob
from inagg_contract.sizes import way_of
from inagg_simulator import reference
from inagg_simulator.reference_switch import Sent, Up


def make_servers(
    servers: int,
    *,
    job: int,
    epoch: int,
    slots: int,
    words: int,
    workers: int,
    first_chunk: int = 0,
    relayed: bool = False,
    homes: Sequence[int] = (),
) -> list[ServedJob]:
    """The servers of a job, by index. homes: the ranks in whose processes they run, if the job is relayed; registered
    servers have none."""
    shape = JobShape(
        number=job, epoch=epoch, slots=slots, words=words, workers=workers, first_chunk=first_chunk
    )
    return [
        ServedJob(shape, servers=servers, index=index, relayed=relayed, home=homes[index] if homes else None)
        for index in range(servers)
    ]


@dataclass
class Servers:
    """The servers of one job. A packet goes to that of its chunk; one of another job to any."""

    servers: Sequence[ServedJob]
    slots: int
    workers: int

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(receiver's rank, datagram) of each packet that leaves."""
        way = way_of(reference.decode(datagram).chunk, self.slots, len(self.servers))
        return [
            (to, left)
            for receiver, left in self.servers[way].receive(datagram, rank)
            for to in (range(self.workers) if receiver is None else (receiver,))
        ]

    @property
    def counters(self) -> Counter[str]:
        """Packets by outcome, of all servers, without zeros."""
        total: Counter[str] = Counter()
        for server in self.servers:
            total.update(server.counts)
        return +total


class ServedSwitch:
    """A server in the place of a switch of a tree: what a rank's server does for the ranks of its rack.

    job: with the workers of the whole job. slots: S. members: those of this server. ways: in how many the chunks go.
    above: its member number at each server above. Below the roots there are as many as ways, further down there is one;
    a root has none, and sums one way, `way`.
    """

    def __init__(
        self,
        job: JobShape,
        slots: int,
        members: int,
        *,
        ways: int = 1,
        above: Sequence[int] = (),
        way: int = 0,
    ) -> None:
        self._slots, self._ways, self._members, self._above = slots, ways, members, above
        self._served = {
            one: ServedJob(
                job,
                servers=ways,
                index=one,
                members=(1 << members) - 1,
                rank_above=above[self._parent(one)] if above else None,
            )
            for one in (range(ways) if above else (way,))
        }

    def _parent(self, way: int) -> int:
        return way % len(self._above)

    def served(self, chunk: int) -> ServedJob:
        """What sums a chunk. Raises KeyError if it goes another way than a root's."""
        return self._served[way_of(chunk, self._slots, self._ways)]

    def contribute(self, member: int, datagram: bytes) -> Sent:
        """See TreeSwitch."""
        header = reference.decode(datagram)
        return self._sent(header.chunk, self.served(header.chunk).receive(datagram, member))

    def result(self, datagram: bytes) -> Sent:
        """See TreeSwitch."""
        header = reference.decode(datagram)
        return self._sent(header.chunk, self.served(header.chunk).receive_from_above(datagram))

    def _sent(self, chunk: int, replies: Sequence[tuple[int | None, bytes]]) -> Sent:
        sent = Sent()
        for receiver, datagram in replies:
            if receiver is None:
                sent += [(member, datagram) for member in range(self._members)]
            elif receiver == ServedJob.ABOVE:
                sent.append((Up(self._parent(way_of(chunk, self._slots, self._ways))), datagram))
            else:
                sent.append((receiver, datagram))
        return sent

    @property
    def counters(self) -> Counter[str]:
        """Packets by outcome, without zeros."""
        total: Counter[str] = Counter()
        for served in self._served.values():
            total.update(served.counts)
        return +total
