# SPDX-License-Identifier: Apache-2.0
"""Jobs on shared slots in virtual time: workers' links and servers' links at one switch.

The links of all jobs' workers come first, job by job, then those of their servers. A packet of a server says in front
where it goes: to the switch, or past it to one worker.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from inagg._core import ServedJob
from tests.conformance.fabric import Fabric, Hop
from tests.conformance.servers import make_servers

TO_SWITCH = 255


@dataclass(frozen=True, kw_only=True)
class SharedJob:
    """A job. servers: a power of two."""

    job: int
    epoch: int
    workers: int
    slots: int
    servers: int = 1
    priority: int = 0
    offset: int = 0
    first_chunk: int = 0


class SharingSwitch(Protocol):
    """What is between workers and servers. Jobs are numbered as in the fabric."""

    def up(self, job: int, rank: int, datagram: bytes) -> list[tuple[int, int, bytes]]:
        """(job, server, datagram) of each packet that leaves because of one of a worker."""

    def down(self, job: int, server: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(rank, datagram) of each copy of a server's result."""


@dataclass
class SharedFabric(Fabric):
    """The switch, and the servers of all jobs."""

    switch: SharingSwitch
    jobs: Sequence[SharedJob]
    words: int
    servers: list[list[ServedJob]] = field(init=False)

    def __post_init__(self) -> None:
        self.servers = [
            make_servers(
                one.servers,
                job=one.job,
                epoch=one.epoch,
                slots=one.slots,
                words=self.words,
                workers=one.workers,
                first_chunk=one.first_chunk,
                relayed=True,
            )
            for one in self.jobs
        ]
        self._workers = [(job, rank) for job, one in enumerate(self.jobs) for rank in range(one.workers)]
        self._servers = [(job, server) for job, one in enumerate(self.jobs) for server in range(one.servers)]
        self.packets: Counter[tuple[int, bool]] = Counter()  # by link, up or not, that have arrived

    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        self.packets[link, True] += 1
        if link < len(self._workers):
            job, rank = self._workers[link]
            return [
                Hop(self._link_of_server(to_job, server), False, left)
                for to_job, server, left in self.switch.up(job, rank, datagram)
            ]
        job, server = self._servers[link - len(self._workers)]
        to, datagram = datagram[0], datagram[1:]
        if to != TO_SWITCH:
            return [Hop(self._link_of_worker(job, to), False, datagram)]
        return [
            Hop(self._link_of_worker(job, rank), False, result)
            for rank, result in self.switch.down(job, server, datagram)
        ]

    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        self.packets[link, False] += 1
        job, server = self._servers[link - len(self._workers)]
        return [
            Hop(link, True, bytes([TO_SWITCH if to is None else to]) + left)
            for to, left in self.servers[job][server].receive(datagram, None)
        ]

    def counts(self, job: int) -> Counter[str]:
        """Packets by outcome at a job's servers, without zeros."""
        total: Counter[str] = Counter()
        for server in self.servers[job]:
            total.update(server.counts)
        return +total

    def _link_of_worker(self, job: int, rank: int) -> int:
        return self._workers.index((job, rank))

    def _link_of_server(self, job: int, server: int) -> int:
        return len(self._workers) + self._servers.index((job, server))
