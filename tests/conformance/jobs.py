# SPDX-License-Identifier: Apache-2.0
"""Jobs one after another on one switch, or on servers, as tests in virtual time need them."""

from inagg._core import JobShape
from inagg_simulator import p4_switch
from inagg_simulator.fabric import Switch
from inagg_simulator.reference_switch import Aggregator, Job
from inagg_simulator.rounds import Rounds
from inagg_simulator.servers import Servers, make_servers
from tests.conformance.examples import WORDS, Example


class PlainJobs:
    """Jobs one after another on one reference switch."""

    def __init__(self) -> None:
        self._aggregator = Aggregator(WORDS, {})

    def start(self, job: int, epoch: int, example: Example) -> Switch:
        made = Job(example.workers, example.slots, epoch, first_chunk=example.first_chunk)
        self._aggregator.jobs = {job: made}
        return self._aggregator

    def end(self) -> None:
        pass


class P4Jobs:
    """Jobs one after another on the P4 program. multicast: their results go to their groups."""

    def __init__(self, multicast: bool = False) -> None:
        self.program = p4_switch.load(WORDS)
        self._multicast = multicast
        self._running: p4_switch.P4Switch | None = None

    def start(self, job: int, epoch: int, example: Example) -> Switch:
        entries = p4_switch.Entries(
            job=job,
            workers=example.workers,
            slots=example.slots,
            epoch=epoch,
            first_chunk=example.first_chunk,
            multicast=self._multicast,
        )
        self._running = p4_switch.P4Switch(self.program, entries)
        return self._running

    def end(self) -> None:
        if self._running is not None:
            self._running.remove()
            self._running = None


class ServedJobs:
    """Jobs one after another on servers: on so many, or on one a slot."""

    def __init__(self, servers: int) -> None:
        self._servers = servers

    def ways(self, example: Example) -> int:
        return min(self._servers, example.slots)

    def start(self, job: int, epoch: int, example: Example) -> Switch:
        made = make_servers(
            self.ways(example),
            job=job,
            epoch=epoch,
            slots=example.slots,
            words=WORDS,
            workers=example.workers,
            first_chunk=example.first_chunk,
        )
        return Servers(made, example.slots, example.workers)

    def end(self) -> None:
        pass


class RoundJobs:
    """Jobs one after another whose ranks sum themselves. next_chunks: by slot, with which the next one goes on."""

    def __init__(self) -> None:
        self.next_chunks: list[int] = []
        self.made: list[Rounds] = []

    def start(self, job: int, epoch: int, example: Example) -> Switch:
        shape = JobShape(number=job, epoch=epoch, slots=example.slots, words=WORDS, workers=example.workers)
        self.made.append(Rounds(shape, example.workers, self.next_chunks))
        return self.made[-1]

    def end(self) -> None:
        pass
