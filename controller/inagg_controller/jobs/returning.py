# SPDX-License-Identifier: Apache-2.0
"""Takes jobs back to the way that they began with, once it is there again. It decides and does no I/O.

A job may have gone on on servers, over gloo, or on fewer roots. Whether its first way is there is found out by planning
it. It has to stay there for some time, and for longer each time that it did not last, so that a switch or link that
comes and goes costs less and less.
"""

from dataclasses import replace

from inagg_controller.errors import RequestError
from inagg_controller.jobs.change import without_switches
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Policy
from inagg_controller.jobs.placement import Kind
from inagg_controller.jobs.planning import JobRequest, Plan, Planners, Supplies, request_again
from inagg_controller.jobs.states import JobStates

# Between two looks at a job.
_LOOK_S = 1.0
# A rank that has not sent a heartbeat for so many intervals may not be able to freeze now.
_INTERVALS = 3


class ReturningJobs:
    """Jobs that run, but not on their first way."""

    def __init__(self, states: JobStates, supplies: Supplies, planners: Planners, policy: Policy) -> None:
        self._states = states
        self._supplies = supplies
        self._planners = planners
        self._after_s = policy.return_after_s
        self._silence_s = _INTERVALS * policy.heartbeat_interval_s

    def look(self, now: float) -> None:
        """Look at the job that has waited longest for it, and take it back if its first way has been there for long
        enough.

        At one only, because planning is not cheap, and jobs that go back together need their ranks' answers together.
        """
        jobs = (job for job in self._states.jobs.values() if job.first is not None and job.state == "running")
        due = (job for job in jobs if now >= job.way_back.look_at)
        for job in sorted(due, key=lambda job: job.way_back.look_at):
            job.way_back.look_at = now + _LOOK_S
            if self._look(job, now):
                return

    def _look(self, job: Job, now: float) -> bool:
        """Look at a job. Returns whether that has cost a plan."""
        first, back = job.first, job.way_back
        if first is None or not first.is_worth_leaving(job.placement.kind):
            return False
        if not self._may_go_back(job, first, now):
            back.since = None
            return False
        request = request_again(job, first)
        plan = self._plan(job, request, first)
        if plan is None:
            back.since = None
            return True
        back.since = now if back.since is None else back.since
        if now - back.since < back.factor * self._after_s:
            self._supplies.resources.give_back(plan.leases)
        else:
            self._states.go_back(job, request, plan, now)
        return True

    def _may_go_back(self, job: Job, first: Kind, now: float) -> bool:
        """Whether all ranks can freeze, reach the switches of their hosts, and sum themselves if that way dies."""
        back = job.way_back
        return (
            not job.left
            and not back.silent_at
            and all(now - back.heard.get(rank, -1e9) <= self._silence_s for rank in range(job.workers))
            and self._supplies.resources.connected.issuperset(first.at)
            and bool(without_switches(job.on_path_loss, job.workers))
        )

    def _plan(self, job: Job, request: JobRequest, first: Kind) -> Plan | None:
        """A plan for the first way of a job; None if it is not there, or no better than the present one."""
        try:
            self._states.check_epoch()
            plan = self._planners.plan(request, self._states.holders, moving=job)
        except RequestError:
            return None
        planned = replace(first, roots=plan.tree.roots)
        if plan.slots == job.slots and planned.is_worth_leaving(job.placement.kind):
            return plan
        self._supplies.resources.give_back(plan.leases)
        return None
