# SPDX-License-Identifier: Apache-2.0
"""The jobs that have lost their way: what is tried next, and what their ranks report. It decides and does no I/O.

`on_path_loss` of a job names what is tried, in order: `same`, the same kind once all that was lost is there again;
`other`, the kind of the first way, on what there is; `servers`, those in the ranks' processes; `inner`, the ranks
themselves, over gloo.
"""

from array import array
from collections.abc import Mapping
from dataclasses import replace

from inagg_contract import aggregation
from inagg_contract.documents import LONGEST_CHANGE_S
from inagg_controller.errors import (
    ConflictError,
    InvalidRequestError,
    NotOfferedError,
    RequestError,
    UnavailableError,
)
from inagg_controller.jobs.change import FAIL, INNER, OTHER, SAME, SERVERS, Change
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.planning import Planners, Supplies, request_again
from inagg_controller.jobs.servers import Worker
from inagg_controller.jobs.states import JobStates

# How long each is tried before the next. What the job had before may take a moment to be free. After the last one, all
# that may still come are tried together.
_PATIENCE_S: Mapping[str, float] = {SAME: 3.0, OTHER: 1.0, SERVERS: 3.0, INNER: 3.0, FAIL: 0.0}


def _may_come(refusal: RequestError) -> bool:
    """Whether what was refused may be there in a moment."""
    return isinstance(refusal, UnavailableError) and not isinstance(refusal, NotOfferedError)


class ChangingJobs:
    """Jobs between two ways."""

    def __init__(self, states: JobStates, supplies: Supplies, planners: Planners) -> None:
        self._states = states
        self._supplies = supplies
        self._planners = planners

    def report_loss(self, job: Job, epoch: int, reason: str, now: float) -> None:
        """A rank finds the way of this epoch dead. Another rank, or the controller, may have found that before."""
        if job.placement.epoch == epoch and job.uses(job.placement):
            move_on = job.change is None or job.placement.aggregation == aggregation.INNER
            self._states.lose_way(job, reason, now, move_on=move_on)
            self.advance(job, now)

    def publish(
        self,
        job: Job,
        rank: int,
        lost: int,
        chunks: "array[int]",
        server_port: int | None,
        now: float,
        beside: Worker | None = None,
    ) -> Change:
        """A rank has frozen: it has lost the way of the epoch `lost`, and publishes its next chunks.

        If the way found meanwhile needs a server of the rank that it does not have, the job loses this way too.

        Raises ConflictError if the job has lost another way, or none; or if the rank cannot serve there.
        """
        change = self._change(job, lost)
        known = len(change.published)
        share = job.placement.servers
        if server_port is None and change.found_by and share is not None and share.serves(rank):
            self.report_loss(job, job.placement.epoch, f"{job.titles([rank])} cannot serve", now)
            return change
        self._check_port(job, change, rank, server_port)
        try:
            change.publish(rank, chunks, server_port, beside)
        except ConflictError as error:
            self._states.fail(job, str(error), now)
            raise
        if len(change.published) != known:
            self._states.note_change()
            self._states.place_if_complete(job)
            if change.frozen:
                change.deadline = min(change.deadline, now + LONGEST_CHANGE_S)
        return change

    def give(self, job: Job, rank: int, lost: int, results: Mapping[int, bytes]) -> Change:
        """A rank gives results that others lack. Raises ConflictError."""
        change = self._change(job, lost)
        known = len(change.results)
        change.give(rank, results)
        if len(change.results) != known:
            self._states.note_change()
        return change

    def resume(self, job: Job, rank: int, epoch: int, now: float) -> None:
        """A rank has gone on, on the way of `epoch`. Raises ConflictError if ranks cannot go on there."""
        if job.state == "running" and job.placement.epoch == epoch:
            return
        change = job.change
        if change is None or job.placement.epoch != epoch or not self.ready(job):
            raise ConflictError(f"{job.title} does not go on on the way of epoch {epoch}")
        change.resumed.add(rank)
        if len(change.resumed) == job.workers:
            self._states.resume(job, now)

    def ready(self, job: Job) -> bool:
        """Whether ranks can go on: all have frozen, and the new way is there."""
        change = job.change
        return change is not None and change.frozen and job.uses(job.placement) and job.placement.ready

    def begin_anew(self, now: float) -> None:
        """The controller has started: ranks can reach it only from now on."""
        for job in self._states.jobs.values():
            if job.change is not None:
                job.change.began = job.change.began_unbroken = job.change.since = now
                job.change.deadline = now + LONGEST_CHANGE_S

    def advance_all(self, now: float) -> None:
        """See `advance`. To be called when something is there again, before new jobs can take it."""
        for job in list(self._states.jobs.values()):
            self.advance(job, now)

    def advance(self, job: Job, now: float) -> None:
        """Try to find another way for a job, or end it when nothing is left to try."""
        change = job.change
        if change is None:
            return
        if now >= change.deadline:
            self._states.fail(job, f"{change.reason}; {self._why_late(job, change)}", now)
            return
        if change.found_by:
            return
        while change.options and change.options[0] != FAIL:
            option = change.options[0]
            refusal = self._try(job, change, option)
            if refusal is None:
                return
            may_come = _may_come(refusal)
            if may_come and now - change.since < _PATIENCE_S[option]:
                return
            if may_come:
                change.later.append(option)
            del change.options[0]
            change.since = now
        for option in list(change.later):
            refusal = self._try(job, change, option)
            if refusal is None:
                return
            if not _may_come(refusal):
                change.later.remove(option)
        if not change.later:
            self._states.fail(job, change.reason + change.tried_text, now)

    def _try(self, job: Job, change: Change, option: str) -> RequestError | None:
        """Give a job another placement. Returns why it cannot have one by this option."""
        change.found_by = option
        try:
            self._replace(job, option)
        except RequestError as refused:
            change.found_by, change.tried[option] = "", str(refused)
            return refused
        return None

    def _replace(self, job: Job, option: str) -> None:
        """Give a job another placement. Raises a RequestError."""
        lost = job.placement
        if option == SAME:
            if away := self._supplies.resources.away(lost.tree):
                raise UnavailableError(f"switch {away[0]} is not connected")
            if down := self._supplies.resources.down.intersection(lost.tree.links.values()):
                raise UnavailableError(f"the link {min(map(str, down))} is down")
            registered = () if lost.servers is None else lost.servers.registered
            names = self._supplies.servers.by_name
            if gone := [server.name for server in registered if server.name not in names]:
                raise UnavailableError(f"server {gone[0]} is gone")
        if option == OTHER and job.first not in (None, lost.kind) and job.way_back.silent_at:
            raise UnavailableError(f"no switch answers {job.titles(sorted(job.way_back.silent_at))}")
        self._states.check_epoch()
        request = request_again(job, lost.kind if option == SAME or job.first is None else job.first)
        if option == SERVERS:
            self._check_reached(job)
            request = replace(request, aggregation=aggregation.SERVER, colocated=True, at=None)
        elif option == INNER:
            self._check_reached(job)
            request = replace(request, aggregation=aggregation.INNER, colocated=True, at=None, priority=0)
        plan = self._planners.plan(request, self._states.holders, moving=job)
        if plan.servers is not None and job.change is not None and not job.change.goes_beside:
            ports = job.change.server_ports.items()
            unable = [rank for rank, port in sorted(ports) if port is None and plan.servers.serves(rank)]
            if unable:
                raise InvalidRequestError(f"{job.titles(unable)} cannot serve")
        self._states.replace(job, request, plan)

    def _check_reached(self, job: Job) -> None:
        """Raise UnavailableError until all ranks have frozen."""
        change = job.change
        assert change is not None
        if not change.frozen:
            raise UnavailableError(f"{job.titles(change.waiting_for)} cannot be reached")

    def _check_port(self, job: Job, change: Change, rank: int, server_port: int | None) -> None:
        """Raise ConflictError if the port of a rank's server is another's."""
        if server_port is None:
            return
        ip = job.members[rank].ip
        ports = {member.udp_port for member in job.members.values() if member.ip == ip}
        ports |= {
            port
            for other, port in change.server_ports.items()
            if port is not None and other != rank and job.members[other].ip == ip
        }
        if server_port in ports:
            raise ConflictError(f"another endpoint of job {job.id} has the UDP port {server_port} there")

    def _change(self, job: Job, lost: int) -> Change:
        change = job.change
        if change is None or change.lost != lost:
            raise ConflictError(f"{job.title} has not just lost the way of epoch {lost}")
        return change

    def _why_late(self, job: Job, change: Change) -> str:
        """Why a job has not gone on for so long."""
        if not change.found_by:
            return f"nothing else sums for it within {LONGEST_CHANGE_S:g} s{change.tried_text}"
        if change.waiting_for:
            return f"{job.titles(change.waiting_for)} did not stop to change the way within {LONGEST_CHANGE_S:g} s"
        late = sorted(set(range(job.workers)) - change.resumed)
        return f"{job.titles(late)} did not go on within {LONGEST_CHANGE_S:g} s"
