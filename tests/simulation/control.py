# SPDX-License-Identifier: Apache-2.0
"""The controller of a world: the job table, what outlasts it, and its driver of the switch."""

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from inagg_contract.aggregation import LEASED
from inagg_contract.documents import JobServer, RegisteredWorker, ResultDocument, WayChange
from inagg_controller.jobs.effects import Effect, Install, Remove
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.record import Saved
from inagg_controller.jobs.servers import Worker
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import Member
from tests.controller.serving import STAR
from tests.simulation.parts import SwitchBox
from tests.simulation.scenario import Scenario

NAME = "s1"
_EPOCH = 100
ON_PATH_LOSS = ("same", "other", "servers", "fail")


class Control:
    """The controller. instance: of its starts; 0: it is dead."""

    def __init__(self, scenario: Scenario, box: SwitchBox, tell: Callable[[str], None]) -> None:
        self._scenario, self._box, self._tell = scenario, box, tell
        self._saved = Saved()
        self._starts = 1
        self.instance = 1
        self.table = self._fresh(0.0)
        self.table.switches.connected(NAME)
        self.job = self._begin()

    def _fresh(self, now: float) -> JobTable:
        return JobTable(
            STAR,
            Limits(slot_versions=64),
            Policy(return_after_s=1.0),
            first_epoch=_EPOCH * self._starts,
            now=now,
            words=4,
        )

    def _begin(self) -> Job:
        """A job that runs."""
        scenario = self._scenario
        leased = scenario.kind == LEASED
        request = JobRequest(
            aggregation=scenario.kind,
            workers=scenario.workers,
            slots=scenario.slots,
            at=[NAME] * scenario.workers if leased else None,
            on_path_loss=ON_PATH_LOSS,
            exact=True,
        )
        job = self.table.create(request, 0.0)
        for rank in range(scenario.workers):
            ip, udp_port = 0x0A000001 + rank, 4000
            worker = Worker(rank=rank, ip=ip, udp_port=udp_port, server_udp_port=5000)
            switched = Member(rank=rank, ip=ip, mac=0x020000000001 + rank, udp_port=udp_port, port=rank + 1)
            self.table.register(job.id, switched if leased else worker, 0.0)
            self.table.attend(job.id, rank, 0.0)
        return job

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.instance > 0

    def die(self) -> None:
        """It ends at once. What it has saved stays."""
        self.instance = 0

    def start(self, now: float) -> None:
        """It starts again, and compares what it has saved with what the switch has."""
        self._starts += 1
        self.instance = self._starts
        self.table = self._fresh(now)
        self.table.restore(self._saved, now)
        self.job = self.table.job(self.job.id)
        expected = self.table.switches.installed().get(self.job.id, {})
        kept = self.job.placement.epoch if expected else None
        for epoch in [epoch for epoch in self._box.ways if epoch != kept]:
            self._box.remove(epoch)
        if not self._box.alive:
            self.table.switches.lost(NAME, now)
        else:
            if kept is not None and kept not in self._box.ways:
                self.table.switches.lose_entries(self.job.id, NAME, now)
            self.table.switches.connected(NAME)
        self.table.changing.begin_anew(now)
        self.save()

    def save(self) -> None:
        """Keep what a controller keeps, before anybody learns of it; see `StateFile`."""
        changes = self.table.changes()
        jobs = {**self._saved.jobs, **changes.jobs}
        members = {**self._saved.members, **changes.members}
        self._saved = replace(changes, jobs=jobs, members=members)
        for notice in self.table.take_notices():
            self._tell(f"controller: {notice}")

    # --- the switch

    def next_effect(self) -> Effect | None:
        """What is to be done to the switch next, if it can be."""
        effects = self.table.switches.effects
        return effects.popleft() if effects and self._box.alive and not self._box.still else None

    def carry_out(self, effect: Effect, now: float) -> None:
        """Do it."""
        if isinstance(effect, Install):
            self._box.install(effect.job, effect.epoch, self.job.workers, self.job.slots)
        elif isinstance(effect, Remove):
            self._box.remove(effect.epoch)
        self.table.switches.done(effect, now)

    def leave(self, rank: int, now: float) -> None:
        """See Service.leave."""
        self.table.leave(self.job.id, rank, now)

    # --- what ranks ask during a change of way, as `Service` and `http` have it

    def frozen(
        self, rank: int, now: float, lost: int, packed: bytes, port: int | None, _: object
    ) -> WayChange:
        """See Service.freeze."""
        job = self.table.member_of(self.job.id, rank)
        chunks = array("I", packed)
        chunks.byteswap()
        if job.change is not None and job.change.lost == lost:
            self.table.changing.publish(job, rank, lost, chunks, port, now)
        return self._answer(job, rank)

    def exchange(
        self, rank: int, now: float, lost: int, given: Sequence[tuple[int, bytes]], wanted: Collection[int]
    ) -> WayChange:
        """See Service.exchange."""
        job = self.table.member_of(self.job.id, rank)
        if job.change is not None and job.change.lost == lost and job.change.frozen:
            self.table.changing.give(job, rank, lost, dict(given))
        return self._answer(job, rank, wanted)

    def serving(self, rank: int, now: float) -> None:
        """See Service.serve."""
        self.table.serve(self.job.id, rank, now)

    def lost_way(self, rank: int, now: float, epoch: int, reason: str) -> None:
        """See Service.lose_way."""
        self.table.changing.report_loss(self.table.member_of(self.job.id, rank), epoch, reason, now)

    def resumed(self, rank: int, now: float, epoch: int) -> None:
        """See Service.resume."""
        self.table.changing.resume(self.table.member_of(self.job.id, rank), rank, epoch, now)

    def _answer(self, job: Job, rank: int, wanted: Collection[int] = ()) -> WayChange:
        change = job.change
        if change is None:
            return WayChange.model_construct(state=job.state, reason=job.reason)
        ready = self.table.changing.ready(job)
        asked = ready or not job.placement.served_by(rank)
        return WayChange.model_construct(
            state=job.state,
            reason=job.reason,
            lost=change.lost,
            frozen=change.frozen,
            lacks=tuple(change.lacks(rank)),
            gives=tuple(change.gives(rank)),
            results=tuple(
                ResultDocument.model_construct(chunk=chunk, datagram=change.results[chunk])
                for chunk in wanted
                if chunk in change.results
            ),
            way=way_of(job, rank) if asked else None,
            ready=ready,
        )


def way_of(job: Job, rank: int) -> Any:
    """What sums for a rank; None: not known yet. The fields that a rank of a world reads."""
    share = job.placement.servers
    if not job.uses(job.placement) or (share is not None and not share.seats):
        return None
    servers = () if share is None else share.seats
    return RegisteredWorker.model_construct(
        epoch=job.placement.epoch,
        rank=rank,
        servers=tuple(
            JobServer.model_construct(name=seat.name, ip="", udp_port=seat.udp_port, rank=seat.rank)
            for seat in servers
        ),
    )
