# SPDX-License-Identifier: Apache-2.0
"""The parts of a world that carry packets: engines with clocks of their own, links, the switch, servers."""

import heapq
from collections.abc import Sequence
from typing import Any, cast

from inagg._core import Engine, EngineError, JobShape, ServedJob
from inagg_contract.sizes import way_of
from inagg_simulator import reference
from inagg_simulator.fabric import Switch
from inagg_simulator.virtual_network import Impairment, Network
from tests.conformance.examples import WORDS, Example
from tests.conformance.jobs import P4Jobs, PlainJobs

# Slot versions of a world's switch that a job may have.
_MOST_VERSIONS = 16


class Clocked:
    """An engine whose clock runs at another rate, and has another origin. Times of others are the world's."""

    def __init__(self, engine: Engine, rate: float, origin: float) -> None:
        self._engine, self._rate, self._origin = engine, rate, origin

    def _own(self, now: float) -> float:
        return self._origin + now * self._rate

    def receive(self, message: bytes, now: float, **how: Any) -> None:
        self._engine.receive(message, self._own(now), **how)

    def to_send(self, now: float, limit: int | None = None) -> list[bytes]:
        return self._engine.to_send(self._own(now), limit)

    def deadline(self) -> float | None:
        own = self._engine.deadline()
        return None if own is None else (own - self._origin) / self._rate + 1e-9

    def submit(self, array: Any, *, now: float) -> int:
        return self._engine.submit(array, now=self._own(now))

    def fill(self, result: bytes, now: float) -> bool:
        return self._engine.fill(result, self._own(now))

    def go_on(self, job: JobShape, *, now: float, **way: Any) -> None:
        self._engine.go_on(job, now=self._own(now), **way)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class Links(Network):
    """The network of a world. still: until when a rank's process stands still; its kernel keeps what comes. cut: the
    ranks whose link passes nothing."""

    def __init__(self, engines: Sequence[Clocked], switch: Switch, how: Impairment, draws: Any) -> None:
        self.still: dict[int, float] = {}
        self.cut: set[int] = set()
        super().__init__(cast("Sequence[Engine]", engines), switch, how, draws)

    @property
    def failure(self) -> EngineError | None:
        """Of an engine, the last."""
        return self._failure

    def send(self, link: int, datagram: bytes, *, up: bool) -> None:
        if link not in self.cut:
            super().send(link, datagram, up=up)

    def flush(self, rank: int) -> None:
        until = self.still.get(rank, 0.0)
        if self.now < until:
            self._deadlines[rank] = until
        else:
            super().flush(rank)

    def step(self) -> bool:
        while self._under_way:
            time, _, link, datagram, up = self._under_way[0]
            until = self.still.get(link, 0.0)
            if up or time >= until:
                break
            heapq.heapreplace(self._under_way, (until, next(self._order), link, datagram, up))
        return super().step()


class SwitchBox:
    """The switch. alive: it runs. still: it runs, and stands still. ways: the jobs whose entries it has, by epoch."""

    def __init__(self, p4: P4Jobs | None) -> None:
        """p4: the program; None: it is a reference switch."""
        self._p4 = p4
        self._jobs = self._fresh()
        self.alive, self.still = True, False
        self.ways: dict[int, Switch] = {}

    def _fresh(self) -> PlainJobs | P4Jobs:
        """A switch that has just started: its slots are empty."""
        if self._p4 is None:
            return PlainJobs()
        for name in ("epoch", "chunk", "members", "final"):
            slots = self._p4.program.register(f"slot_{name}")
            for index in range(_MOST_VERSIONS):
                slots[index] = 0
        return self._p4

    def install(self, number: int, epoch: int, workers: int, slots: int, first_chunk: int) -> None:
        """Insert the entries of a job."""
        job = Example(workers, slots, [], Impairment(), first_chunk=first_chunk, seed=0)
        self.ways = {epoch: self._jobs.start(number, epoch, job)}

    def remove(self, epoch: int) -> None:
        """Remove them; they may be missing."""
        if self.ways.pop(epoch, None) is not None:
            self._jobs.end()

    def die(self) -> None:
        """Its entries are gone."""
        self.alive = False
        for epoch in list(self.ways):
            self.remove(epoch)
        self._jobs = self._fresh()


class AllWays:
    """Everything that sums for the job: a packet goes to the switch or to a server, by its epoch.

    served: by epoch, the number of servers, and those that serve.
    """

    def __init__(self, box: SwitchBox, slots: int, workers: int) -> None:
        self._box, self._slots, self._workers = box, slots, workers
        self.served: dict[int, tuple[int, dict[int, ServedJob]]] = {}

    def serve(self, shape: JobShape, index: int, servers: int, epoch: int) -> None:
        """A server begins to serve the job."""
        _, serving = self.served.setdefault(epoch, (servers, {}))
        serving[index] = ServedJob(shape, servers=servers, index=index)

    def serves(self, index: int, epoch: int) -> bool:
        """Whether a server serves the way of an epoch."""
        return epoch in self.served and index in self.served[epoch][1]

    def end_server(self, index: int) -> None:
        """A server ends: that of a rank's process, which has its number in all ways."""
        for _, serving in self.served.values():
            serving.pop(index, None)

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """See Switch."""
        header = reference.decode(datagram)
        if header.epoch in self.served:
            servers, serving = self.served[header.epoch]
            served = serving.get(way_of(header.chunk, self._slots, servers))
            left = [] if served is None else served.receive(datagram, rank)
            return [
                (to, each)
                for receiver, each in left
                for to in (range(self._workers) if receiver is None else (receiver,))
            ]
        way = self._box.ways.get(header.epoch) if self._box.alive and not self._box.still else None
        return [] if way is None else way.process(rank, datagram)


def shape_of(number: int, epoch: int, first_chunk: int, slots: int, workers: int) -> JobShape:
    """The job on a way."""
    return JobShape(
        number=number, epoch=epoch, first_chunk=first_chunk, slots=slots, words=WORDS, workers=workers
    )
