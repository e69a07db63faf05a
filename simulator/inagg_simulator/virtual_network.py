# SPDX-License-Identifier: Apache-2.0
"""Workers and a switch in virtual time, on a network that loses, doubles, delays and reorders packets.

Workers are real engines (inagg._core.Engine); the switch is anything with process(rank, datagram) -> [(rank,
datagram)...]. Nothing sleeps: time jumps from event to event.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inagg._core import Engine, EngineError, JobShape, LaneBits, RetransmissionPolicy
from inagg_simulator.fabric import Fabric, Star, Switch
from inagg_simulator.reference import CONGESTED, HEADER, decode
from inagg_simulator.reference_switch import Aggregator, Job

JOB = 7
EPOCH = 5
# After which a socket that refused packets takes some again.
MOMENT = 0.0005


@dataclass(frozen=True)
class Impairment:
    """Probabilities and times, in seconds, of what happens to each packet in each direction."""

    loss: float = 0.0
    duplication: float = 0.0
    delay: float = 0.001
    rate: float = math.inf  # bytes a second of each link, each way
    queue: float = math.inf  # bytes that wait for it; what does not fit is lost
    mark: float = math.inf  # bytes that wait; what comes down and meets more is marked
    jitter: float = 0.0  # added uniformly: reorders
    straggling: float = 0.0  # probability that another copy arrives much later
    straggle: float = 1.0  # ... uniformly up to so much
    refusal: float = 0.0  # probability that a worker's socket takes no more than a few packets for a moment
    merging: float = 0.0  # for which a worker's socket collects datagrams into one message (UDP_GRO)


PERFECT = Impairment()


def congested(datagram: bytes) -> bytes:
    """What a switch makes of a packet that meets a queue."""
    header = decode(datagram)
    both = header._replace(flags=header.flags | CONGESTED, flags_check=header.flags_check | CONGESTED)
    return both.encode() + datagram[HEADER.size :]


@dataclass
class Network:
    engines: Sequence[Engine]
    switch: Switch | Fabric
    impairment: Impairment = PERFECT
    draws: random.Random = field(default_factory=lambda: random.Random(0))
    now: float = 0.0
    completed: dict[int, list[int]] = field(default_factory=dict)
    packets: int = 0
    overflows: int = 0  # packets that found a queue full
    between: Impairment | None = None  # of links between switches; that of the workers' links if not given
    links: Mapping[int, Impairment] = field(default_factory=dict)  # of single links
    # What looks at a worker after whatever has happened to it; False: no more.
    observers: dict[int, list[Callable[[Engine], bool]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fabric = self.switch if isinstance(self.switch, Fabric) else Star(self.switch)
        self._order = itertools.count()
        # (time, order, link, datagram, upwards)
        self._under_way: list[tuple[float, int, int, bytes, bool]] = []
        # (time, order, rank, action)
        self._plans: list[tuple[float, int, int, Callable[[Engine], object]]] = []
        self._busy_until: dict[tuple[int, bool], float] = {}
        self._deadlines = [math.inf] * len(self.engines)
        self._failure: EngineError | None = None  # the last
        self.completed = {rank: [] for rank in range(len(self.engines))}

    def send(self, link: int, datagram: bytes, *, up: bool) -> None:
        """Send a packet; any number of copies may arrive."""
        self.packets += 1
        others = self.between or self.impairment
        how = self.links.get(link, self.impairment if link < len(self.engines) else others)
        free = max(self.now, self._busy_until.get((link, up), 0.0))
        waiting = (free - self.now) * how.rate if math.isfinite(how.rate) else 0.0
        if waiting > how.queue:
            self.overflows += 1
            return
        if not up and waiting > how.mark:
            datagram = congested(datagram)
        sent = free + len(datagram) / how.rate
        self._busy_until[link, up] = sent
        copies = [] if self.draws.random() < how.loss else [how.delay]
        if self.draws.random() < how.duplication:
            copies.append(how.delay)
        delays = [delay + self.draws.uniform(0, how.jitter) for delay in copies]
        if self.draws.random() < how.straggling:
            delays.append(how.delay + self.draws.uniform(0, how.straggle))
        for delay in delays:
            heapq.heappush(self._under_way, (sent + delay, next(self._order), link, datagram, up))

    def plan(self, time: float, rank: int, action: Callable[[Engine], object]) -> None:
        """Do something at a later time, as a worker's program."""
        heapq.heappush(self._plans, (time, next(self._order), rank, action))

    def flush(self, rank: int) -> None:
        """Send all packets that a worker has to send now, or as many as its socket takes."""
        refuses = self.draws.random() < self.impairment.refusal
        limit = self.draws.randrange(4) if refuses else None
        for datagram in self.engines[rank].to_send(self.now, limit):
            self.send(rank, datagram, up=True)
        if refuses:
            self.plan(self.now + MOMENT, rank, lambda _: None)
        self.completed[rank] += self.engines[rank].completed()
        self._failure = self.engines[rank].failure or self._failure
        deadline = self.engines[rank].deadline()
        self._deadlines[rank] = math.inf if deadline is None else deadline
        if observers := self.observers.get(rank):
            self.observers[rank] = [observer for observer in observers if observer(self.engines[rank])]

    def step(self) -> bool:
        """Do the next event. Returns False if there is none."""
        timer = min(self._deadlines)
        arrival = self._under_way[0][0] if self._under_way else math.inf
        if self._plans and self._plans[0][0] <= min(arrival, timer):
            self.now, _, rank, action = heapq.heappop(self._plans)
            action(self.engines[rank])
            self.flush(rank)
            return True
        if self._under_way and arrival <= timer:
            self.now, _, link, datagram, up = heapq.heappop(self._under_way)
            if not up and link < len(self.engines):
                message = self._merge(link, datagram)
                self.engines[link].receive(message, self.now, datagram_bytes=max(len(datagram), 1))
                self.flush(link)
                return True
            for hop in (self._fabric.up if up else self._fabric.down)(link, datagram):
                self.send(hop.link, hop.datagram, up=hop.up)
            return True
        if timer == math.inf:
            return False
        self.now = max(self.now, timer)
        self.flush(self._deadlines.index(timer))
        return True

    def _merge(self, rank: int, datagram: bytes) -> bytes:
        """A message of this datagram and those that come to the rank soon: all of one size but the last, which may be
        shorter."""
        if self.impairment.merging == 0:
            return datagram
        merged = [datagram]
        until = self.now + self.impairment.merging
        coming = sorted(one for one in self._under_way if one[0] <= until and one[2] == rank and not one[4])
        for one in coming:
            if len(merged[-1]) < len(datagram) or len(one[3]) > len(datagram):
                break
            merged.append(one[3])
            self._under_way.remove(one)
        heapq.heapify(self._under_way)
        return b"".join(merged)

    def run(self, collectives: int, *, within: float) -> None:
        """Run until every rank has completed so many collectives. AssertionError after `within` virtual seconds."""
        for rank in range(len(self.engines)):
            self.flush(rank)
        while any(len(done) < collectives for done in self.completed.values()):
            if self._failure is not None:
                raise self._failure
            assert self.step(), f"nothing left to happen at {self.now} s, completed: {self.completed}"
            assert self.now <= within, f"not done after {within} s, completed: {self.completed}"

    def drain(self) -> None:
        """Deliver all packets in flight."""
        while self._under_way:
            self.step()


def make_shape(
    workers: int, *, slots: int, words: int, job: int = JOB, epoch: int = EPOCH, first_chunk: int = 0
) -> JobShape:
    return JobShape(
        number=job, epoch=epoch, slots=slots, words=words, workers=workers, first_chunk=first_chunk
    )


def make_workers(
    workers: int,
    *,
    slots: int,
    words: int,
    job: int = JOB,
    epoch: int = EPOCH,
    first_chunk: int = 0,
    members: Sequence[int] | None = None,
    ways: int = 1,
    ways_apart: bool = False,
    threads: int = 1,
    packet_threads: int = 1,
    homes: Sequence[int] = (),
    **timers: float,
) -> list[Engine]:
    """The engines of all ranks. members: TreeFabric.members; None: one switch. threads: of the switches.
    packet_threads: of each rank. homes: the ranks that have servers in their processes, behind shared slots, by way.
    timers: of RetransmissionPolicy."""
    shape = make_shape(workers, slots=slots, words=words, job=job, epoch=epoch, first_chunk=first_chunk)
    policy = RetransmissionPolicy(**timers)
    return [
        Engine(
            shape,
            rank=rank,
            member=member,
            ways=ways,
            ways_apart=ways_apart,
            threads=threads,
            packet_threads=packet_threads,
            home=homes.index(rank) if rank in homes else None,
            policy=policy,
        )
        for rank, member in enumerate(range(workers) if members is None else members)
    ]


def make_aggregator(
    workers: int,
    *,
    slots: int,
    words: int,
    job: int = JOB,
    epoch: int = EPOCH,
    first_chunk: int = 0,
    above: Sequence[int] = (),
) -> Aggregator:
    """The reference aggregator with a job that begins at `first_chunk`. above: as in Job."""
    return Aggregator(words, {job: Job(workers, slots, epoch, first_chunk=first_chunk, above=above)})


def make_network(
    workers: int, *, slots: int, words: int, impairment: Impairment = PERFECT, seed: int = 0, **timers: Any
) -> Network:
    """Workers around the reference aggregator. timers: of RetransmissionPolicy."""
    engines = make_workers(workers, slots=slots, words=words, **timers)
    aggregator = make_aggregator(workers, slots=slots, words=words)
    return Network(engines, aggregator, impairment, random.Random(seed))


def all_reduce(
    network: Network,
    inputs: NDArray[np.float32],
    *,
    lane_bits: LaneBits = 32,
    average: bool = False,
    within: float = 60.0,
) -> list[NDArray[np.float32]]:
    """Do one collective of inputs[rank, element]. Returns each rank's result."""
    outputs = [row.copy() for row in inputs]
    before = len(network.completed[0])
    for engine, output in zip(network.engines, outputs, strict=True):
        engine.submit(output, lane_bits=lane_bits, average=average, now=network.now)
    network.run(before + 1, within=network.now + within)
    return outputs


def failure_of(engine: Engine) -> EngineError:
    assert engine.failure is not None, "the engine has not failed"
    return engine.failure
