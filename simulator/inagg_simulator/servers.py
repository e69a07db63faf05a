# SPDX-License-Identifier: Apache-2.0
"""Aggregation servers in virtual time: the C++ core's `ServedJob` in the place of a switch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from inagg._core import JobShape, ServedJob
from inagg_contract.sizes import way_of
from inagg_simulator import reference


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
