# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario: the job's ranks sum while faults hit the parts, and leave.

The engines, the P4 program, the servers, the ranks' meetings and the job table are the real ones; only the order and
the times of events are drawn. After each event no sum is wrong or delivered twice, and at the end the job has finished
and everything is free.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from inagg._core import Engine, JobShape, RetransmissionPolicy
from inagg.errors import ControllerRefusedError
from inagg_contract.aggregation import LEASED
from inagg_controller.errors import RequestError
from inagg_simulator import reference
from tests.conformance.examples import WORDS
from tests.conformance.jobs import P4Jobs
from tests.simulation.control import NAME, Control
from tests.simulation.parts import AllWays, Clocked, Links, SwitchBox, shape_of
from tests.simulation.ranks import Rank
from tests.simulation.scenario import Fault, Scenario

_Answer = TypeVar("_Answer")

# A request takes so long each way, at most, and is repeated after this time without an answer.
_TRIP_S, _PATIENCE_S = 0.02, 1.5
_TICK_S, _WRITE_S = 0.1, 0.005
# A way that is silent for so long is reported.
_SILENT_S = 2.0
_END_S = 120.0


class WorldError(AssertionError):
    """Something happened that must not. The message has the story."""


class World:
    """network: has the time, and the packets. control: the controller. story: what has happened, in lines. seen: how
    often ranks have gone on where, have filled results in, and jobs have done what else is rare."""

    def __init__(self, scenario: Scenario, p4: P4Jobs) -> None:
        self.scenario = scenario
        self.story: list[str] = []
        self.seen: Counter[str] = Counter()
        self.draws = random.Random(scenario.seed)
        self.box = SwitchBox(p4 if scenario.p4 else None)
        self.ways = AllWays(self.box, scenario.slots, scenario.workers)
        self.control = Control(scenario, self.box, self.tell)
        self._cut_off: set[int] = set()
        self._driving = False
        self._checked = [0] * scenario.workers
        draws = np.random.default_rng(scenario.seed)
        inputs = [
            draws.standard_normal((scenario.workers, size), dtype=np.float32) for size in scenario.sizes
        ]
        self._right = [reference.all_reduce_array(each, lane_bits=32, words=WORDS) for each in inputs]
        engines = [self._engine(rank) for rank in range(scenario.workers)]
        self.network = Links(engines, self.ways, scenario.impairment, self.draws)
        self._begin()
        self.ranks = [
            Rank(self, rank, engine, [each[rank] for each in inputs]) for rank, engine in enumerate(engines)
        ]

    def _engine(self, rank: int) -> Clocked:
        drift = self.scenario.drift * self.draws.uniform(-1, 1)
        engine = Engine(
            self.shape(self.control.job.placement.epoch),
            rank=rank,
            ways=1 if self.scenario.kind == LEASED else self.scenario_servers,
            ways_apart=self.scenario.kind != LEASED,
            policy=RetransmissionPolicy(silent_s=_SILENT_S),
            outlasts_silence=True,
        )
        return Clocked(engine, 1 + drift, self.draws.uniform(0, 1000) if drift else 0.0)

    @property
    def scenario_servers(self) -> int:
        """How many servers the first way has."""
        share = self.control.job.placement.servers
        return 1 if share is None else share.count

    def _begin(self) -> None:
        """Have the job run."""
        control, job = self.control, self.control.job
        while (effect := control.next_effect()) is not None:
            control.carry_out(effect, 0.0)
        if (share := job.placement.servers) is not None:
            for index, seat in enumerate(share.seats):
                self.ways.serve(self.shape(job.placement.epoch), index, share.count, job.placement.epoch)
                assert seat.rank is not None
                control.serving(seat.rank, 0.0)
        assert job.state == "running"
        control.save()

    def shape(self, epoch: int) -> JobShape:
        """The job on the way of an epoch."""
        return shape_of(self.control.job.id, epoch, self.scenario.slots, self.scenario.workers)

    # --- time

    def tell(self, line: str) -> None:
        """Go on with the story."""
        self.seen["goes back"] += "goes back" in line
        now = self.network.now if hasattr(self, "network") else 0.0
        self.story.append(f"{now:9.4f} {line}")

    def fail(self, what: str) -> None:
        """Raise WorldError."""
        self.tell(f"BROKEN: {what}")
        raise WorldError("\n".join([what, f"seed {self.scenario.seed}: {self.scenario}", *self.story]))

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something at a time, which no rank does."""
        self.network.plan(time, 0, lambda _: action())

    def later(self, rank: int, seconds: float, action: Callable[[], object]) -> None:
        """Do something after a time, in a rank's process; later if it stands still then."""

        def act(_: object) -> None:
            until = self.network.still.get(rank, 0.0)
            if self.network.now < until:
                self.network.plan(until, rank, act)
            else:
                action()

        self.network.plan(self.network.now + seconds, rank, act)

    def run(self) -> None:
        """Run to the end. Raises WorldError."""
        for rank in self.ranks:
            self.later(rank.number, self.draws.uniform(0, 0.1), rank.submit)
            self.later(rank.number, self.draws.uniform(0, 0.5), rank.beat)
        for fault in self.scenario.faults:
            self.at(fault.at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self.at(_TICK_S, self._tick)
        while not self._done():
            if not self.network.step():
                self.fail("nothing is left to happen")
            if self.network.now > _END_S:
                self.fail(f"not done after {_END_S} s; completed: {self.network.completed}")
            self._check()

    def _done(self) -> bool:
        job, table = self.control.job, self.control.table
        idle = self.control.alive and not job.holds_resources and not table.switches.effects
        return idle and (job.state == "finished" or (job.state == "failed" and self._may_fail()))

    def _may_fail(self) -> bool:
        """Whether the job cannot change its way: a rank has left it, perhaps with results that others lack."""
        return bool(self.control.job.left)

    def job_failed(self, reason: str | None) -> None:
        """A rank learns that the job has failed."""
        self.seen["failed"] += 1
        if not self._may_fail():
            self.fail(f"the job has failed: {reason}")

    def _check(self) -> None:
        """What must hold after each event."""
        for rank, done in self.network.completed.items():
            for ticket in done[self._checked[rank] :]:
                self._checked[rank] += 1
                self._check_sum(rank, ticket)
                if done.count(ticket) > 1:
                    self.fail(f"rank {rank}: sum {ticket} is done twice")
        if self.network.failure is not None:
            self.fail(str(self.network.failure))

    def _check_sum(self, rank: int, ticket: int) -> None:
        found, right = self.ranks[rank].sums[ticket - 1], self._right[ticket - 1]
        if not np.array_equal(found.view(np.uint32), right.view(np.uint32)):
            self.fail(f"rank {rank}: sum {ticket} is wrong")

    def _check_leases(self) -> None:
        pool = self.control.table.switches.pools[NAME]
        held = [
            each.leases[NAME]
            for job in self.control.table.jobs.values()
            for each in job.placements
            if not each.freed and NAME in each.leases
        ]
        if pool.leases != tuple(sorted(held, key=lambda lease: lease.base)):
            self.fail(f"the leases are {pool.leases}, and placements have {held}")

    # --- the controller

    def _tick(self) -> None:
        if self.control.alive:
            with self._deciding():
                self.control.table.tick(self.network.now)
        self.at(self.network.now + _TICK_S, self._tick)

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """The controller decides something in the block. It saves it, and then has it done."""
        yield
        self.control.save()
        self._check_leases()
        if not self._driving:
            self._driving = True
            self.at(self.network.now + _WRITE_S, self._drive)

    def _drive(self) -> None:
        self._driving = False
        if not self.control.alive or (effect := self.control.next_effect()) is None:
            return
        with self._deciding():
            self.control.carry_out(effect, self.network.now)

    def ask(
        self,
        rank: Rank,
        do: Callable[[float], _Answer],
        answered: Callable[[_Answer], None] = lambda _: None,
        refused: Callable[[ControllerRefusedError], None] = lambda _: None,
        *,
        repeat: bool = False,
    ) -> None:
        """Make a request to the controller. do: what it does then. repeat: until an answer comes."""

        def again() -> None:
            if repeat:
                self.later(rank.number, _PATIENCE_S, send)

        def passes() -> bool:
            return self.control.alive and rank.number not in self._cut_off

        def arrive() -> None:
            if not passes():
                again()
                return
            back: Callable[[], None]
            try:
                with self._deciding():
                    answer = do(self.network.now)
            except RequestError as error:
                problem = ControllerRefusedError(
                    url="", request="", status=error.status, title="", detail=str(error)
                )
                back = lambda: refused(problem)  # noqa: E731
            else:
                back = lambda: answered(answer)  # noqa: E731
            if passes():
                self.later(rank.number, self.draws.uniform(0, _TRIP_S), back)
            else:
                again()

        def send() -> None:
            self.at(self.network.now + self.draws.uniform(0, _TRIP_S), arrive)

        send()

    # --- faults

    def _strike(self, fault: Fault) -> None:
        self.tell(str(fault).partition(" s ")[2])
        end = self.network.now + fault.seconds
        rank = self.ranks[fault.rank]
        if fault.kind == "switch dies":
            self.box.die()
            self.at(self.network.now + 0.05, self._miss_switch)
            self.at(end, self._start_switch)
        elif fault.kind == "switch stops":
            self.box.still = True
            self.at(end, self._continue_switch)
        elif fault.kind == "controller dies":
            self.control.die()
            self.at(end, self._start_controller)
        elif fault.kind == "server ends":
            rank.break_server()
        elif fault.kind == "suspicion":
            rank.suspect()
        elif fault.kind == "rank stops":
            self.network.still[fault.rank] = end
        elif fault.kind == "link is cut":
            self.network.cut.add(fault.rank)
            self.at(end, lambda: self.network.cut.discard(fault.rank))
        else:
            self._cut_off.add(fault.rank)
            self.at(end, lambda: self._cut_off.discard(fault.rank))

    def _miss_switch(self) -> None:
        if self.control.alive and not self.box.alive:
            with self._deciding():
                self.control.table.switches.lost(NAME, self.network.now)

    def _start_switch(self) -> None:
        self.tell("the switch starts again")
        self._miss_switch()
        self.box.alive = True
        if self.control.alive:
            with self._deciding():
                self.control.table.switches.connected(NAME)
                self.control.table.changing.advance_all(self.network.now)

    def _continue_switch(self) -> None:
        self.box.still = False
        with self._deciding():
            pass

    def _start_controller(self) -> None:
        if self.control.alive:
            return
        self.tell("the controller starts again")
        with self._deciding():
            self.control.start(self.network.now)
