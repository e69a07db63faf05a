# SPDX-License-Identifier: Apache-2.0
"""The ranks of a world: their programs, their heartbeats, and how they meet when the job changes its way."""

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inagg.errors import ControllerRefusedError, JobError
from inagg.membership.meeting import Ask, CannotServeError, Meeting, OverError
from inagg.membership.way import index_of
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.servers import Summed
from tests.simulation.parts import Clocked

if TYPE_CHECKING:
    from tests.simulation.world import World

_BEAT_S = 0.5
_CONFLICT = 409


class Rank:
    """One rank. epoch: of its way. left: it has left the job."""

    def __init__(
        self, world: "World", number: int, engine: Clocked, inputs: list[NDArray[np.float32]]
    ) -> None:
        self._world, self.number, self._engine = world, number, engine
        self.sums = [array.copy() for array in inputs]
        self.epoch = world.control.job.placement.epoch
        self.left = False
        self._port, self._broken = 5000, False
        self._attends = 1  # the start of the controller to which its presence is connected
        self._steps: Generator[Ask, Any, None] | None = None
        self._submitted = 0

    # --- the program

    def submit(self) -> None:
        """Begin the next sum, and plan the one after it; then leave."""
        world = self._world
        if self._submitted < len(self.sums):
            self._engine.submit(self.sums[self._submitted], now=world.network.now)
            self._submitted += 1
            world.later(self.number, world.draws.uniform(0, world.scenario.lateness), self.submit)
        elif len(world.network.completed[self.number]) < len(self.sums):
            world.later(self.number, 0.05, self.submit)
        else:
            world.later(self.number, world.draws.uniform(0, 0.5), self.leave)

    def leave(self) -> None:
        """As Session.leave."""
        leave = partial(self._world.control.leave, self.number)
        self._world.ask(self, leave, self._gone, self._kept, repeat=True)

    def _gone(self, _: object) -> None:
        if not self.left:
            self.left = True
            self._world.tell(f"rank {self.number} has left")

    def _kept(self, _: object) -> None:
        self.beat(once=True)
        self._world.later(self.number, 0.05, self.leave)

    # --- heartbeats

    def beat(self, *, once: bool = False) -> None:
        """Report what is wrong, and learn what is."""
        world = self._world
        if self.left:
            return
        if self._steps is None and (why := self._complaint()):
            world.ask(self, lambda now: self._report(why, now))
        world.ask(self, self._heartbeat, self._heard)
        if not once:
            world.later(self.number, world.draws.uniform(0.9, 1.1) * _BEAT_S, self.beat)

    def _complaint(self) -> str:
        if self._broken and self.epoch in self._world.ways.served:
            return f"rank {self.number}: the server in its process has ended"
        return "no answer" if self._engine.stats["silent_chunk"] is not None else ""

    def _report(self, why: str, now: float) -> None:
        control = self._world.control
        job = control.table.member_of(control.job.id, self.number)
        control.table.changing.report_loss(job, self.epoch, why, now)

    def _heartbeat(self, now: float) -> tuple[str, str | None, int | None]:
        control = self._world.control
        if self._attends != control.instance:
            control.table.attend(control.job.id, self.number, now)
            self._attends = control.instance
        serves = self._world.ways.serves(self.number, self.epoch)
        report = Report(0, summed=Summed() if serves else None)
        job = control.table.heartbeat(control.job.id, self.number, now, report)
        return job.state, job.reason, None if job.change is None else job.change.lost

    def _heard(self, answer: tuple[str, str | None, int | None]) -> None:
        state, reason, lost = answer
        if state == "failed":
            self._world.job_failed(reason)
        elif lost is not None and self._steps is None and lost >= self.epoch and not self.left:
            self._steps = self._change(lost)
            self._advance(None)

    # --- a change of way, as `inagg.membership.change`

    def suspect(self) -> None:
        """It takes its way for dead, which it may not be."""
        self._world.ask(self, lambda now: self._report("a suspicion", now))

    def break_server(self) -> None:
        """The server in its process ends."""
        self._broken = True
        self._world.ways.end_server(self.number)

    def _change(self, lost: int) -> Generator[Ask, Any, None]:
        world = self._world
        meeting = Meeting(self, self.number, lost, self._offer, self._serve)
        way = yield from meeting.find_way()
        servers = len(way.servers)
        self._engine.go_on(
            world.shape(way.epoch),
            rank=self.number,
            ways=servers or 1,
            ways_apart=servers > 0,
            now=world.network.now,
        )
        self.epoch = way.epoch
        where = f"{servers} servers" if servers else "the switch"
        world.seen.update({where: 1, "filled": meeting.filled})
        world.tell(f"rank {self.number} goes on, on {where}, epoch {way.epoch}")
        world.network.flush(self.number)
        yield from meeting.resumed(way)

    def _offer(self) -> tuple[int, None]:
        """Its server is replaced if it has ended."""
        if self._broken:
            self._port, self._broken = self._port + 1, False
        return self._port, None

    def freeze(self) -> list[int]:
        """As a transport."""
        self._engine.freeze()
        return list(self._engine.next_chunks())

    def kept(self, chunk: int) -> bytes:
        """As a transport."""
        return bytes(self._engine.kept(chunk))

    def fill(self, result: bytes) -> bool:
        """As a transport."""
        return self._engine.fill(result, self._world.network.now)

    def _serve(self, way: Any) -> bool:
        index = index_of(way, self.number)
        if index is None:
            return False
        if self._broken:
            raise CannotServeError(f"the server in the process of rank {self.number} has ended")
        world = self._world
        world.ways.serve(world.shape(way.epoch), index, len(way.servers), way.epoch)
        return True

    def _advance(self, answer: object, refused: ControllerRefusedError | None = None) -> None:
        assert self._steps is not None
        try:
            ask = self._steps.send(answer) if refused is None else self._steps.throw(refused)
        except StopIteration:
            self._steps = None
            return
        except OverError as over:
            self._steps = None
            self._world.job_failed(str(over))
            return
        except JobError as error:
            self._world.fail(f"rank {self.number}: {error}")
            return
        request = getattr(self._world.control, ask.request)
        wait = self._world.draws.uniform(0, 0.05) if ask.hold_s else 0.0
        self._world.later(
            self.number,
            wait,
            lambda: self._world.ask(
                self,
                lambda now: request(self.number, now, *ask.arguments),
                self._advance,
                lambda error: self._advance(None, error),
                repeat=True,
            ),
        )
