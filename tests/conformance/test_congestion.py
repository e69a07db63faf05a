# SPDX-License-Identifier: Apache-2.0
"""Jobs that meet at a link, in virtual time, where switches mark what meets a queue, and where not (protocol 6.2)."""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pytest

from inagg_simulator import reference
from inagg_simulator.fabric import Fabric, Hop
from inagg_simulator.servers import make_servers
from inagg_simulator.virtual_network import EPOCH, Impairment, Network, make_workers

WORDS = 4
PACKET_BYTES = 20 + 256 * WORDS
RATE = 125e6  # a gigabit: a queue of 64 packets is half a millisecond, too short to be seen as delay
DELAY = 0.0001
SLOTS = 256


@dataclass
class OneServerLink(Fabric):
    """Jobs whose servers are one host. The link to it follows those of the jobs' workers, job by job; job j has number
    j + 1."""

    jobs: int
    workers: int

    def __post_init__(self) -> None:
        self.link = self.jobs * self.workers
        self._servers = [
            make_servers(1, job=job + 1, epoch=EPOCH, slots=SLOTS, words=WORDS, workers=self.workers)[0]
            for job in range(self.jobs)
        ]

    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric. A packet of the server says in front whom it is for."""
        if link < self.link:
            return [Hop(self.link, False, datagram)]
        return [Hop(datagram[0], False, datagram[1:])]

    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        header = reference.decode(datagram)
        job = header.job - 1
        return [
            Hop(link, True, bytes([job * self.workers + rank]) + left)
            for to, left in self._servers[job].receive(datagram, header.rank)
            for rank in (range(self.workers) if to is None else (to,))
        ]


def run(blocks: int, *, queue: int, mark: float, jobs: int = 2, workers: int = 2) -> Network:
    """One all-reduce of each job, at the same time. queue, mark: packets."""
    fabric = OneServerLink(jobs, workers)
    engines = [
        engine
        for job in range(jobs)
        for engine in make_workers(workers, slots=SLOTS, words=WORDS, job=job + 1)
    ]
    link = Impairment(delay=DELAY, rate=RATE, queue=queue * PACKET_BYTES, mark=mark * PACKET_BYTES)
    network = Network(
        engines, fabric, Impairment(delay=DELAY, rate=RATE), random.Random(1), links={fabric.link: link}
    )
    arrays = [np.full(blocks * 64 * WORDS, 1.0, np.float32) for _ in engines]
    for engine, array in zip(engines, arrays, strict=True):
        engine.submit(array, now=0.0)
    network.run(1, within=60.0)
    for array in arrays:
        assert (array == workers).all()
    return network


def test_jobs_that_meet_lose_less_where_marks_are_and_are_no_slower() -> None:
    without = run(4000, queue=64, mark=math.inf)
    marked = run(4000, queue=64, mark=32)
    assert without.overflows / without.packets > 0.1
    assert marked.overflows < 0.25 * without.overflows
    assert marked.now < 1.02 * without.now
    assert all(engine.stats["congested"] > 0 for engine in marked.engines)
    assert all(engine.stats["congested"] == 0 for engine in without.engines)


def test_the_queue_stays_at_the_mark() -> None:
    network = run(4000, queue=1024, mark=32)
    assert network.overflows == 0
    assert network.now < 1.1 * 4 * 4000 * PACKET_BYTES / RATE  # the link is busy
    for engine in network.engines:
        assert engine.stats["window"] < 64


@pytest.mark.parametrize("workers", [1, 3])
def test_marks_on_everything_stop_nothing(workers: int) -> None:
    network = run(1000, queue=4096, mark=-1, jobs=1, workers=workers)
    for engine in network.engines:
        assert engine.stats["window"] == 16
        assert engine.stats["congested"] == engine.stats["packets_received"]
        assert engine.stats["retransmits"] == 0
