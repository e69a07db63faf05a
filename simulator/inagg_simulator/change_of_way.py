# SPDX-License-Identifier: Apache-2.0
"""A job that goes on another way, in virtual time: ranks freeze, exchange what they lack, and go on (docs/protocol.md,
6.4)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from inagg._core import Engine, JobShape
from inagg_simulator import reference
from inagg_simulator.fabric import Switch
from inagg_simulator.slot_rules.packets import age
from inagg_simulator.virtual_network import Network


class Way(NamedTuple):
    """What sums for a job. ways, ways_apart, home: as of an engine."""

    switch: Switch
    job: JobShape
    epoch: int
    ways: int = 1
    ways_apart: bool = False
    home: int | None = None


@dataclass
class Ways:
    """All ways that a job has had, as a network's switch. A packet goes to that of its epoch.

    on_packet: called with the number of packets that the last way has had, before each.
    """

    last: Way
    on_packet: Callable[[int], None] = lambda _: None
    _alive: dict[int, Switch] = field(init=False)
    _packets: int = 0

    def __post_init__(self) -> None:
        self._alive = {self.last.epoch: self.last.switch}

    def change_to(self, way: Way) -> None:
        """From now on `way` is the last one. Those before still answer packets, if they live."""
        self.last, self._packets = way, 0
        self._alive[way.epoch] = way.switch

    def kill(self) -> None:
        """The last way loses every packet."""
        self._alive.pop(self.last.epoch, None)

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """See Switch."""
        epoch = reference.decode(datagram).epoch
        if epoch == self.last.epoch:
            self.on_packet(self._packets)
            self._packets += 1
        way = self._alive.get(epoch)
        return [] if way is None else way.process(rank, datagram)


class ChangeOfWay:
    """One change, of all ranks of a network whose switch is `ways`.

    next_way: makes the way on which the job goes on; called when all ranks are frozen. pause: returns the seconds that
    a rank takes for its next step. before: the change before this one. A rank freezes once it has gone on from that.
    """

    def __init__(
        self,
        network: Network,
        ways: Ways,
        next_way: Callable[[], Way],
        pause: Callable[[], float],
        before: "ChangeOfWay | None" = None,
    ) -> None:
        self._network, self._ways, self._next_way, self._pause = network, ways, next_way, pause
        self._before = before
        self._has_gone_on: set[int] = set()
        self._waiting: dict[int, Callable[[], None]] = {}  # for a rank to go on
        self._frozen: dict[int, list[int]] = {}  # rank -> its next chunks, by slot
        self.filled = 0  # results that ranks got from others

    def begin(self) -> None:
        """A rank suspects that the way is dead, and all ranks freeze, at different times."""
        for rank in range(len(self._network.engines)):
            freeze = partial(self._later, rank, self._freeze)
            if self._before is None or rank in self._before._has_gone_on:
                freeze()
            else:
                self._before._waiting[rank] = freeze

    def _later(self, rank: int, action: Callable[[int, Engine], None]) -> None:
        time = self._network.now + self._pause()
        self._network.plan(time, rank, lambda engine: action(rank, engine))

    def _freeze(self, rank: int, engine: Engine) -> None:
        engine.freeze()
        self._frozen[rank] = engine.next_chunks()
        if len(self._frozen) == len(self._network.engines):
            self._ways.change_to(self._next_way())
            for each in self._frozen:
                self._later(each, self._go_on)

    def _go_on(self, rank: int, engine: Engine) -> None:
        """Other ranks may have gone on already."""
        for slot, chunk in enumerate(self._frozen[rank]):
            ahead = [other for other in self._frozen if age(self._frozen[other][slot], chunk) > 0]
            if not ahead:
                continue
            assert {self._frozen[other][slot] for other in ahead} == {
                chunk + len(self._frozen[rank]) & 2**32 - 1
            }
            assert engine.fill(self._network.engines[ahead[0]].kept(chunk), self._network.now)
            self.filled += 1
        way = self._ways.last
        engine.go_on(
            way.job,
            rank=rank,
            ways=way.ways,
            ways_apart=way.ways_apart,
            home=way.home,
            now=self._network.now,
        )
        self._has_gone_on.add(rank)
        if (next_change := self._waiting.pop(rank, None)) is not None:
            next_change()
