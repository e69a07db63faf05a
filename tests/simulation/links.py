# SPDX-License-Identifier: Apache-2.0
"""The engines of a world, with clocks of their own, and its links, which faults hit."""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from inagg._core import Engine, EngineError, JobShape, RetransmissionPolicy
from inagg_simulator.fabric import Fabric
from inagg_simulator.p4_switch import HEADERS_BYTES
from inagg_simulator.reference import HEADER
from inagg_simulator.virtual_network import PERFECT, Impairment, Network

# A way that is silent for so long is reported.
POLICY = RetransmissionPolicy(silent_s=2.0)


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
    """The network of a world: link r is rank r's, the next ones are those of the servers in the ranks' processes.

    still: until when a rank's process stands still; its kernel keeps what comes. cut: the links that pass nothing.
    flips: the links on which the next packet gets another bit; damaged: one has got it. failures: of engines, by rank.
    news: the ranks that have completed something, or failed, since it was cleared. frame: makes
    what a rank sends of an engine's datagram.
    """

    def __init__(
        self,
        engines: Sequence[Clocked],
        fabric: Fabric,
        how: Impairment,
        draws: Any,
        frame: Callable[[int, bytes], bytes],
    ) -> None:
        self.still: dict[int, float] = {}
        self.cut: set[int] = set()
        self.flips: set[int] = set()
        self.damaged = False
        self.news: set[int] = set()
        self.failures: dict[int, EngineError] = {}
        self._ranks = len(engines)
        self._frame = frame
        within_hosts = dict.fromkeys(range(self._ranks, 2 * self._ranks), PERFECT)
        super().__init__(cast("Sequence[Engine]", engines), fabric, how, draws, links=within_hosts)

    def _cable(self, link: int) -> int:
        """The link of a host, also for the server in its process."""
        return link - self._ranks if self._ranks <= link < 2 * self._ranks else link

    def send(self, link: int, datagram: bytes, *, up: bool) -> None:
        if self._cable(link) in self.cut:
            return
        bare = link < self._ranks
        if bare and up:
            datagram = self._frame(link, datagram)
        if self.flips and link in self.flips:
            self.flips.discard(link)
            datagram = self._flipped(datagram, 0 if bare and not up else HEADERS_BYTES)
        super().send(link, datagram, up=up)

    def _flipped(self, datagram: bytes, first: int) -> bytes:
        """With another bit of the UDP payload, often of the protocol's header."""
        self.damaged = True
        size = self.draws.choice([HEADER.size, len(datagram) - first])
        bit = self.draws.randrange(8 * min(size, len(datagram) - first))
        damaged = bytearray(datagram)
        damaged[first + bit // 8] ^= 1 << bit % 8
        return bytes(damaged)

    def flush(self, rank: int) -> None:
        until = self.still.get(rank, 0.0)
        if self.now < until:
            self._deadlines[rank] = until
        elif rank in self.failures:
            self._deadlines[rank] = math.inf
        else:
            before = len(self.completed[rank])
            super().flush(rank)
            failure = self.engines[rank].failure
            if failure is not None:
                self.failures[rank] = failure
            if failure is not None or len(self.completed[rank]) > before:
                self.news.add(rank)

    def step(self) -> bool:
        while self.still and self._under_way:
            time, _, link, datagram, up = self._under_way[0]
            until = self.still.get(self._cable(link), 0.0)
            if up or time >= until:
                break
            heapq.heapreplace(self._under_way, (until, next(self._order), link, datagram, up))
        return super().step()
