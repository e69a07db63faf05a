# SPDX-License-Identifier: Apache-2.0
"""Takes jobs back to the way that they began with, once it is there again. It decides and does no I/O.

A job may have gone on on servers, or on fewer roots. Whether its first way is there is found out by planning it. It has
to stay there for some time, and for longer each time that it did not last, so that a switch or link that comes and goes
costs less and less.
"""

from dataclasses import replace

from inagg_controller.errors import RequestError
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Policy
from inagg_controller.jobs.placement import Kind
from inagg_controller.jobs.planning import JobRequest, Plan, Planners, Supplies, request_again
from inagg_controller.jobs.states import JobStates

_LOOK_S = 1.0


class ReturningJobs:
    """Jobs that run, but not on their first way."""

    def __init__(self, states: JobStates, supplies: Supplies, planners: Planners, policy: Policy) -> None:
        self._states = states
        self._supplies = supplies
        self._planners = planners
        self._after_s = policy.return_after_s

    def look(self, job: Job, now: float) -> None:
        """Take a job back to its first way, if that has been there for long enough."""
        if job.first is None or job.state != "running" or not job.first.betters(job.placement.kind):
            return
        back = job.way_back
        if now < back.look_at:
            return
        back.look_at = now + _LOOK_S
        request = request_again(job, job.first)
        plan = None if job.left or back.silent_at else self._plan(job, request, job.first)
        if plan is None:
            back.since = None
            return
        back.since = now if back.since is None else back.since
        if now - back.since < back.factor * self._after_s:
            self._supplies.resources.give_back(plan.leases)
            return
        self._states.go_back(job, request, plan, now)

    def _plan(self, job: Job, request: JobRequest, first: Kind) -> Plan | None:
        """A plan for the first way of a job; None if it is not there, or no better than the present one."""
        try:
            self._states.check_epoch()
            plan = self._planners.plan(request, self._states.holders, moving=job)
        except RequestError:
            return None
        if plan.slots == job.slots and replace(first, roots=plan.tree.roots).betters(job.placement.kind):
            return plan
        self._supplies.resources.give_back(plan.leases)
        return None
