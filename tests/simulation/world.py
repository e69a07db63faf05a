# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario: the ranks of jobs sum while faults hit the parts, and leave.

The engines, the P4 program with the controller's entries, the servers, the ranks' meetings and the job table are the
real ones; only the order and the times of events are drawn. After each event no sum is wrong or delivered twice, and at
the end the jobs have finished and everything is free.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import numpy as np

from inagg._core import Engine
from inagg.errors import ControllerRefusedError
from inagg_controller.errors import RequestError
from inagg_controller.jobs.job import Job, holding
from inagg_simulator import reference
from tests.conformance.examples import WORDS
from tests.simulation.control import Control
from tests.simulation.faults import strike
from tests.simulation.links import POLICY, Clocked, Links
from tests.simulation.ranks import Rank
from tests.simulation.registered import RegisteredServer
from tests.simulation.scenario import Scenario
from tests.simulation.switches import Programs
from tests.simulation.topology import topology_of
from tests.simulation.ways import Way, way_of_rank
from tests.simulation.wires import Wires

_Answer = TypeVar("_Answer")

# A request takes so long each way, at most, and is repeated after this time without an answer.
_TRIP_S, _PATIENCE_S = 0.02, 1.5
_TICK_S, _WRITE_S = 0.1, 0.005
_END_S = 120.0
# How a job fails that has lost a registered server when a rank had left it.
_SERVER_LOST = re.compile(
    r"server \S+ (was started again: the sums in its memory are gone|no longer serves it|"
    r"at \S+ was lost: no heartbeat for 5 s)"
)
# How a collective fails after a packet was damaged.
_DAMAGE = ("checksum", "kind_mismatch")


class WorldError(AssertionError):
    """Something happened that must not. The message has the story."""


class Process(Protocol):
    """What asks the controller. link: of its host."""

    @property
    def link(self) -> int: ...


class World:
    """network: has the time, and the packets. control: the controller. story: what has happened, in lines. seen: how
    often ranks have gone on where, have filled results in, and jobs have done what else is rare. cut_off: the links of
    hosts that do not reach the controller."""

    def __init__(self, scenario: Scenario, programs: Programs) -> None:
        self.scenario = scenario
        self.story: list[str] = []
        self.seen: Counter[str] = Counter()
        self.draws = random.Random(scenario.seed)
        self.cut_off: set[int] = set()
        self._driving = self._over = False
        self._checked = [0] * sum(scenario.workers)
        draws = np.random.default_rng(scenario.seed)
        inputs = [
            [draws.standard_normal((workers, size), dtype=np.float32) for size in scenario.sizes]
            for workers in scenario.workers
        ]
        self._right = [
            [reference.all_reduce_array(one, lane_bits=32, words=WORDS) for one in each] for each in inputs
        ]
        self.wires = Wires(topology_of(scenario), sum(scenario.workers), programs)
        self.control = Control(scenario, self.wires, self.tell)
        self.servers = [RegisteredServer(self, number) for number in range(scenario.servers)]
        self.control.create_jobs()
        ways = [
            (index, self._way(job, rank))
            for index, job in enumerate(self.control.jobs)
            for rank in range(job.workers)
        ]
        engines = [self._engine(way) for _, way in ways]
        self.network = Links(
            engines,
            self.wires,
            scenario.impairment,
            self.draws,
            lambda link, out: self.ranks[link].frame(out),
        )
        self.ranks = [
            Rank(self, index, way, link, engine, [each[way.rank] for each in inputs[index]])
            for link, ((index, way), engine) in enumerate(zip(ways, engines, strict=True))
        ]
        self._begin()

    def _way(self, job: Job, rank: int) -> Way:
        way = way_of_rank(job, rank, self.wires.topology)
        assert way is not None
        return way

    def _engine(self, way: Way) -> Clocked:
        drift = self.scenario.drift * self.draws.uniform(-1, 1)
        engine = Engine(way.shape, policy=POLICY, outlasts_silence=True, **way.engine())
        return Clocked(engine, 1 + drift, self.draws.uniform(0, 1000) if drift else 0.0)

    def _begin(self) -> None:
        """Have the jobs run."""
        control = self.control
        while (write := control.next_write()) is not None:
            control.write(*write, 0.0)
        for rank in self.ranks:
            share = rank.job.placement.servers
            if share is not None and share.serves(rank.number):
                rank.serve(self._way(rank.job, rank.number), rank.number)
                control.serving(rank.job.id, rank.number, 0.0)
        for server in self.servers:
            server.serve_at_once()
        assert all(job.state == "running" for job in control.jobs)
        control.save()

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
        """Do something at a time, which no process does."""
        self.network.plan(time, 0, lambda _: action())

    def later(self, process: Process, seconds: float, action: Callable[[], object]) -> None:
        """Do something after a time, in a process; later if it stands still then."""
        engine = process.link if process.link < len(self._checked) else 0

        def act(_: object) -> None:
            until = self.network.still.get(process.link, 0.0)
            if self.network.now < until:
                self.network.plan(until, engine, act)
            else:
                action()

        self.network.plan(self.network.now + seconds, engine, act)

    def run(self) -> None:
        """Run to the end. Raises WorldError."""
        try:
            self._run()
        finally:
            self.wires.close()

    def _run(self) -> None:
        for rank in self.ranks:
            self.later(rank, self.draws.uniform(0, 0.1), rank.submit)
            self.later(rank, self.draws.uniform(0, 0.5), rank.beat)
        for server in self.servers:
            self.later(server, self.draws.uniform(0, 0.5), server.beat)
        for fault in self.scenario.faults:
            self.at(fault.at, lambda fault=fault: strike(self, fault))  # type: ignore[misc]
        self.at(_TICK_S, self._tick)
        while not self._over:
            if not self.network.step():
                self.fail("nothing is left to happen")
            self.wires.now = self.network.now
            if self.network.now > _END_S:
                self.fail(f"not done after {_END_S} s; completed: {self.network.completed}")
            if self.network.news:
                self._check()
        self._check_end()

    # --- what must hold

    def _done(self) -> bool:
        control = self.control
        return (
            control.alive
            and all(job.ended and not job.holds_resources for job in control.jobs)
            and control.idle
        )

    def _may_fail(self, job: Job) -> bool:
        """Whether the protocol names the reason for which a job has failed: it has lost its way when a rank had left it
        (7.6), or a packet was damaged (9)."""
        reason = job.reason or ""
        lost = reason in self.control.losses or _SERVER_LOST.fullmatch(reason) is not None
        gave_up = [rank.gave_up for rank in self.ranks if rank.job is job and rank.gave_up]
        return (bool(job.left) and lost) or any(why in reason for why in gave_up)

    def job_failed(self, rank: Rank, reason: str | None) -> None:
        """A rank learns that its job has failed."""
        self.seen["failed"] += 1
        if not self._may_fail(rank.job):
            self.fail(f"{rank.title}: the job has failed: {reason}")

    def _check(self) -> None:
        """What must hold after each event."""
        for link in self.network.news:
            done = self.network.completed[link]
            for ticket in done[self._checked[link] :]:
                self._checked[link] += 1
                self._check_sum(link, ticket)
                if done.count(ticket) > 1:
                    self.fail(f"{self.ranks[link].title}: sum {ticket} is done twice")
            failure = self.network.failures.get(link)
            if failure is not None and not self.ranks[link].gave_up:
                if failure.code not in _DAMAGE or not self.network.damaged:
                    self.fail(f"{self.ranks[link].title}: {failure}")
                self.ranks[link].give_up(failure)
        self.network.news.clear()

    def _check_sum(self, link: int, ticket: int) -> None:
        rank = self.ranks[link]
        found, right = rank.sums[ticket - 1], self._right[rank.job_index][ticket - 1]
        if not np.array_equal(found.view(np.uint32), right.view(np.uint32)):
            self.fail(f"{rank.title}: sum {ticket} is wrong")

    def _check_leases(self) -> None:
        """In each switch what is leased, and what has entries, is a placement's that still holds it."""
        held = holding(self.control.table.jobs.values())
        for name, pool in self.control.table.switches.pools.items():
            leases = [each.leases[name] for each in held if name in each.leases]
            if pool.leases != tuple(sorted(leases, key=lambda lease: lease.base)):
                self.fail(f"{name}: the leases are {pool.leases}, and placements have {leases}")

    def _check_end(self) -> None:
        """Nothing of the jobs is left, and the sums of finished jobs are done."""
        for job in self.control.jobs:
            if job.state == "failed" and not self._may_fail(job):
                self.fail(f"{job.title} has failed: {job.reason}")
        for name, box in self.wires.boxes.items():
            if box.entities:
                self.fail(f"{name} still has {len(box.entities)} entries of jobs")
        for server in self.control.table.servers.by_name.values():
            if server.free != server.memory:
                self.fail(f"{server.name} has memory leased to {list(server.leases)}")
        for rank in self.ranks:
            done = self.network.completed[rank.link]
            if rank.job.state == "finished" and len(done) < len(rank.sums):
                self.fail(f"{rank.title} has done {done} when the job has finished")

    def reaches_switch(self, rank: Rank) -> bool:
        """Whether the switch of a rank's host answers its pings."""
        switch = self.wires.topology.hosts[rank.link].place.switch
        return self.wires.boxes[switch].works and rank.link not in self.network.cut

    # --- the controller

    def _tick(self) -> None:
        if self.control.alive:
            with self.deciding():
                self.control.watch_links(self.network.now)
                self.control.table.tick(self.network.now)
        self._over = self._done()
        self.at(self.network.now + _TICK_S, self._tick)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """The controller decides something in the block. It saves it, and then has it done."""
        yield
        self.control.save()
        self._check_leases()
        self.drive_soon()

    def drive_soon(self) -> None:
        """The controller writes to switches what is to be written."""
        if not self._driving:
            self._driving = True
            self.at(self.network.now + _WRITE_S, self._drive)

    def _drive(self) -> None:
        self._driving = False
        if self.control.alive and (write := self.control.next_write()) is not None:
            with self.deciding():
                self.control.write(*write, self.network.now)

    def ask(
        self,
        process: Process,
        do: Callable[[float], _Answer],
        answered: Callable[[_Answer], None] = lambda _: None,
        refused: Callable[[ControllerRefusedError], None] = lambda _: None,
        *,
        repeat: bool = False,
        lives: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make a request to the controller. do: what it does then. repeat: until an answer comes. lives: whether the
        process that asks does."""

        def again() -> None:
            if repeat and lives():
                self.later(process, _PATIENCE_S, send)

        def passes() -> bool:
            return self.control.alive and process.link not in self.cut_off

        def arrive() -> None:
            if not passes() or not lives():
                again()
                return
            back: Callable[[], None]
            try:
                with self.deciding():
                    answer = do(self.network.now)
            except RequestError as error:
                problem = ControllerRefusedError(
                    url="", request="", status=error.status, title="", detail=str(error)
                )
                back = lambda: refused(problem)  # noqa: E731
            else:
                back = lambda: answered(answer)  # noqa: E731
            if passes():
                self.later(process, self.draws.uniform(0, _TRIP_S), back)
            else:
                again()

        def send() -> None:
            self.at(self.network.now + self.draws.uniform(0, _TRIP_S), arrive)

        send()
