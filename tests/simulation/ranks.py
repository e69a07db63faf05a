# SPDX-License-Identifier: Apache-2.0
"""The ranks of a world: their programs, their heartbeats, and how they meet when the job changes its way."""

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inagg._core import EngineError
from inagg.errors import ControllerRefusedError, JobError
from inagg.membership.meeting import Ask, CannotServeError, Meeting, OverError
from inagg.membership.way import index_of
from inagg_contract.documents import WayChange
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.servers import JobKey, Summed
from inagg_simulator.p4_switch import headers
from tests.simulation.links import POLICY, Clocked
from tests.simulation.ways import Way

if TYPE_CHECKING:
    from tests.simulation.world import World

_BEAT_S = 0.5
# A switch that does not answer pings for so long is silent.
_SWITCH_SILENT_S = 2.0


class Rank:
    """One rank. job_index: of its job, number: its number there, link: its number among all. left: it has left the
    job. gave_up: why it cannot go on."""

    def __init__(
        self,
        world: "World",
        job: int,
        way: Way,
        link: int,
        engine: Clocked,
        inputs: list[NDArray[np.float32]],
    ) -> None:
        self._world, self.job_index, self.engine = world, job, engine
        self.number, self.link, self._way = way.rank, link, way
        self.sums = [array.copy() for array in inputs]
        self.left = False
        self.gave_up = ""
        self._server = world.wires.start_server(link)
        self._server_ended = False
        self._lost: set[int] = set()  # epochs of ways that it knows are lost
        self._switch_heard_at = 0.0
        self._attends = 1  # the start of the controller to which its presence is connected
        self._steps: Generator[Ask, Any, None] | None = None
        self._submitted = 0

    @property
    def job(self) -> Job:
        """Its job, as the controller has it."""
        return self._world.control.jobs[self.job_index]

    @property
    def title(self) -> str:
        """For the story."""
        return f"rank {self.number}" + (f" of job {self.job.id}" if self.job_index else "")

    def frame(self, datagram: bytes) -> bytes:
        """What it sends of a packet."""
        own = self._world.wires.ranks.stations[self.link]
        return headers(own, self._way.destination(datagram), len(datagram)) + datagram

    # --- the program

    def submit(self) -> None:
        """Begin the next sum, and plan the one after it; then leave."""
        world = self._world
        if self.gave_up:
            return
        if self._submitted < len(self.sums):
            self.engine.submit(self.sums[self._submitted], now=world.network.now)
            self._submitted += 1
            world.later(self, world.draws.uniform(0, world.scenario.lateness), self.submit)
        elif len(world.network.completed[self.link]) < len(self.sums):
            world.later(self, 0.05, self.submit)
        else:
            world.later(self, world.draws.uniform(0, 0.5), self.leave)

    def leave(self) -> None:
        """As Session.leave."""
        leave = partial(self._world.control.leave, self.job.id, self.number)
        self._world.ask(self, leave, self._gone, self._kept, repeat=True)

    def _gone(self, _: object) -> None:
        if not self.left:
            self.left = True
            self._world.tell(f"{self.title} has left")

    def _kept(self, _: object) -> None:
        self.beat(once=True)
        self._world.later(self, 0.05, self.leave)

    def give_up(self, failure: EngineError) -> None:
        """As Session.fail."""
        self.gave_up = failure.message
        self._world.tell(f"{self.title} gives up: {failure.message}")
        leave = partial(self._world.control.leave, self.job.id, self.number, error=failure.message)
        self._world.ask(self, leave, repeat=True)

    # --- heartbeats

    def beat(self, *, once: bool = False) -> None:
        """Report what is wrong, and learn what is."""
        world = self._world
        if self.left or self.gave_up:
            return
        if world.reaches_switch(self):
            self._switch_heard_at = world.network.now
        if self._steps is None and (why := self._complaint()):
            self._report(why)
        world.ask(self, self._heartbeat, partial(self._heard, self._way.epoch))
        if not once:
            world.later(self, world.draws.uniform(0.9, 1.1) * _BEAT_S, self.beat)

    def _complaint(self) -> str:
        if self._server_ended and index_of(self._way, self.number) is not None:  # type: ignore[arg-type]
            return f"{self.title}: the server in its process has ended"
        return f"{self.title}: no answer" if self.engine.stats["silent_chunk"] is not None else ""

    def _report(self, why: str) -> None:
        report, epoch = self._world.control.report_loss, self._way.epoch
        self._world.ask(self, lambda now: report(self.job.id, self.number, now, epoch, why))

    def _heartbeat(self, now: float) -> tuple[str, str | None, int | None]:
        control, number = self._world.control, self.job.id
        if self._attends != control.instance:
            control.table.attend(number, self.number, now)
            self._attends = control.instance
        served = self._server.jobs.get(JobKey(number, self._way.epoch))
        silent = self._world.network.now - self._switch_heard_at >= _SWITCH_SILENT_S
        summed = None if served is None else Summed(**served.sums.chunks)
        job = control.table.heartbeat(
            number, self.number, now, Report(0, summed=summed, switch_silent=silent)
        )
        return job.state, job.reason, None if job.change is None else job.change.lost

    def _heard(self, epoch: int, answer: tuple[str, str | None, int | None]) -> None:
        """epoch: of its way when it asked."""
        state, reason, lost = answer
        if state == "failed":
            self._world.job_failed(self, reason)
        elif lost is None or lost in self._lost or epoch != self._way.epoch:
            return
        elif self._steps is None and not self.left and not self.gave_up:
            self._lost.add(lost)
            self._steps = self._change(lost)
            self._advance(None)

    # --- a change of way, as `inagg.membership.change`

    def suspect(self) -> None:
        """It takes its way for dead, which it may not be."""
        self._report("a suspicion")

    def break_server(self) -> None:
        """The server in its process ends."""
        self._server_ended = True
        self._world.wires.end_server(self._server)

    def _change(self, lost: int) -> Generator[Ask, Any, None]:
        world = self._world
        meeting = Meeting(self, self.number, lost, self._offer, self._serve)
        way: Any = yield from meeting.find_way()
        self._way = way
        self.engine.go_on(way.shape, policy=POLICY, now=world.network.now, **way.engine())
        self._server.drop_others(JobKey(self.job.id, way.epoch))
        world.seen.update({way.kind: 1, "filled": meeting.filled})
        world.tell(f"{self.title} goes on, on {way.title}, epoch {way.epoch}")
        world.network.flush(self.link)
        yield from meeting.resumed(way)

    def _offer(self) -> tuple[int, None]:
        """Its server is replaced if it has ended."""
        if self._server_ended:
            self._server = self._world.wires.start_server(self.link, self._server.station.udp_port + 1)
            self._server_ended = False
        return self._server.station.udp_port, None

    def freeze(self) -> list[int]:
        """As a transport."""
        self.engine.freeze()
        return list(self.engine.next_chunks())

    def kept(self, chunk: int) -> bytes:
        """As a transport."""
        return bytes(self.engine.kept(chunk))

    def fill(self, result: bytes) -> bool:
        """As a transport."""
        return self.engine.fill(result, self._world.network.now)

    def _serve(self, way: Any) -> bool:
        index = index_of(way, self.number)
        if index is None:
            return False
        if self._server_ended:
            raise CannotServeError(f"the server in the process of rank {self.number} has ended")
        self.serve(way, index)
        return True

    def serve(self, way: Way, index: int) -> None:
        """The server in its process admits the job."""
        self._server.serve(JobKey(self.job.id, way.epoch), way, index)

    def _advance(self, answer: object, refused: ControllerRefusedError | None = None) -> None:
        assert self._steps is not None
        if isinstance(answer, WayChange) and answer.lost is not None:
            self._lost.add(answer.lost)
        try:
            ask = self._steps.send(answer) if refused is None else self._steps.throw(refused)
        except StopIteration:
            self._steps = None
            return
        except OverError as over:
            self._steps = None
            self._world.job_failed(self, str(over))
            return
        except JobError as error:
            self._world.fail(f"{self.title}: {error}")
            return
        request = getattr(self._world.control, ask.request)
        wait = self._world.draws.uniform(0, 0.05) if ask.hold_s else 0.0
        self._world.later(
            self,
            wait,
            lambda: self._world.ask(
                self,
                lambda now: request(self.job.id, self.number, now, *ask.arguments),
                self._advance,
                lambda error: self._advance(None, error),
                repeat=True,
            ),
        )
