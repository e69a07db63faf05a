# SPDX-License-Identifier: Apache-2.0
"""The table of jobs: what clients and ranks ask of it, and time. It decides and does no I/O.

Every method takes the time, in seconds of any monotonic clock. What is to be done to switches is in `switches.effects`;
a driver carries it out in order and reports each with `switches.done`. Servers ask for their `servers.orders`. A
request that is refused raises a RequestError and changes nothing. `states` says what a job goes through.
"""

from collections.abc import Mapping

from inagg_controller.errors import ConflictError, InvalidRequestError
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.accounts import Account, Held
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.changing import ChangingJobs
from inagg_controller.jobs.classes import JobClass
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.job import LEFT, Job, Registered
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.planning import JobRequest, Planners, Supplies
from inagg_controller.jobs.record import Saved, record_of, record_of_member, record_of_server
from inagg_controller.jobs.registration import check_endpoints, relevant
from inagg_controller.jobs.resources import Resources
from inagg_controller.jobs.restoring import numbers_of, restore
from inagg_controller.jobs.returning import ReturningJobs
from inagg_controller.jobs.served import ServedJobs, share_of
from inagg_controller.jobs.servers import Servers, Summed
from inagg_controller.jobs.states import JobStates
from inagg_controller.jobs.switched import SwitchedJobs
from inagg_controller.jobs.tenants import Tenants

# If more time than this passes between two ticks, the controller itself was not running. The heartbeats of that time
# wait unread, so no more than this counts as silence of the workers and servers.
_STALL_S = 0.75


class JobTable:
    """All jobs. Not thread-safe.

    epochs: that no living worker may have; those of a restored state, if it has any. multicast: the first of 2^16
    multicast addresses, one for the results of each job, by its number; None: results go to each worker's own address.
    words: 256-byte words in a DATA packet. switches, servers: what happens to them. changing: jobs that have lost their
    way. tenants: who may create jobs; they may be replaced at any time.
    """

    def __init__(
        self,
        topology: Topology,
        limits: Limits,
        policy: Policy,
        *,
        epochs: Epochs,
        now: float,
        words: int,
        multicast: int | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.tenants = Tenants() if tenants is None else tenants
        self._topology = topology
        registered = Servers(words=words, max_slots=limits.max_slots, host_share=limits.host_share)
        self._supplies = supplies = Supplies(
            topology, limits, Resources(topology, limits), registered, self.tenants
        )
        self._states = JobStates(supplies, policy, epochs, multicast)
        self._planners = Planners(supplies)
        self.switches = SwitchedJobs(self._states, supplies.resources)
        self.servers = ServedJobs(self._states, registered)
        self.changing = ChangingJobs(self._states, supplies, self._planners)
        self._returning = ReturningJobs(self._states, supplies, self._planners, policy)
        self._last_tick = now

    @property
    def jobs(self) -> Mapping[int, Job]:
        """The jobs by number, those that ended recently too."""
        return self._states.jobs

    @property
    def version(self) -> int:
        """Changes with every change of a job's state, of the servers and of what they serve."""
        return self._states.version

    @property
    def classes(self) -> Mapping[str, JobClass]:
        """The job classes by name."""
        return self._planners.classes

    def restore(self, saved: Saved, now: float) -> None:
        """Restore what was kept while the controller did not run, in a new table. Raises RecordError."""
        restore(self._states, self._supplies, saved, now)

    def changes(self) -> Saved:
        """What there is to keep since the last call: the jobs and members that have changed, all servers and numbers.

        Nothing of a job is kept any more when it is gone, its members neither.
        """
        changed = {number: self.jobs.get(number) for number in self._states.changed}
        members = {
            (number, rank): None if job is None else job.members.get(rank)
            for number, rank in self._states.changed_members
            for job in (self.jobs.get(number),)
        }
        self._states.changed.clear()
        self._states.changed_members.clear()
        return Saved(
            members={
                at: b"" if member is None else record_of_member(member) for at, member in members.items()
            },
            jobs={number: b"" if job is None else record_of(job) for number, job in changed.items()},
            servers={name: record_of_server(server) for name, server in self.servers.by_name.items()},
            numbers=numbers_of(self._states, self._supplies.servers),
            epoch_key=self._states.epochs.key,
            ordinary=tuple(sorted(map(str, self.switches.ordinary.links))),
        )

    def job(self, number: int) -> Job:
        """The job with this number. Raises UnknownJobError."""
        return self._states.find(number)

    def take_ended(self) -> list[Job]:
        """The jobs that have ended since the last call."""
        return self._states.take_ended()

    def take_notices(self) -> list[str]:
        """Lines for the log, since the last call."""
        notices, self._states.notices = self._states.notices, []
        return notices

    def create(self, request: JobRequest, now: float) -> Job:
        """Create a job: plan what sums for it, and lease that. Raises InvalidRequestError, UnavailableError.

        If a job of the same tenant that has not ended was created with the same key, it is that one.
        """
        if (job := self.created_by(request.key, request.tenant)) is not None:
            if job.workers != request.workers:
                raise InvalidRequestError(f"{job.title} was created with this key, for {job.workers} workers")
            return job
        self._states.check_epoch()
        return self._states.add(request, self._planners.plan(request, self._states.holders), now)

    def created_by(self, key: str, tenant: str | None) -> Job | None:
        """The job that a tenant's request with this key has created, if it has not ended."""
        with_key = (job for job in self.jobs.values() if key and job.key == key and not job.ended)
        return next((job for job in with_key if job.owner.tenant == tenant), None)

    def frees_room(self, request: JobRequest) -> bool:
        """Whether what a job needs is about to become free."""
        return self._planners.frees_room(request, self._states.holders)

    def held_by(self, account: Account) -> Held:
        """What the jobs of a class or a tenant hold now."""
        return self._planners.held_by(account, self._states.holders)

    def register(self, number: int, member: Registered, now: float) -> Job:
        """Register a worker, a Worker for a job on servers; the last one starts the installation.

        Repeating it changes nothing. Raises UnknownJobError, InvalidRequestError, ConflictError.
        """
        job = self._find(number, member.rank)
        known = job.members.get(member.rank)
        if job.ended:
            raise ConflictError(f"job {number} has {_ending(job)}")
        if member.rank in job.left:
            raise ConflictError(f"rank {member.rank} has left job {number}")
        member = relevant(job, member)
        if known == member:
            return job
        if known is not None:
            raise ConflictError(
                f"rank {member.rank} of job {number} is already registered by a worker at another address"
            )
        check_endpoints(job, member)
        job.members[member.rank] = member
        self._states.changed_members.add((number, member.rank))
        job.liveness.begin([member.rank], now)
        self._states.note_change(job)
        self._states.place_if_complete(job)
        return job

    def serve(self, number: int, rank: int, now: float) -> Job:
        """Record that the server in a rank's process serves the job.

        Raises UnknownJobError, InvalidRequestError, ConflictError.
        """
        job = self._find(number, rank)
        self.servers.serve(job, rank, now)
        return job

    def heartbeat(self, number: int, rank: int, now: float, report: Report | None = None) -> Job:
        """Record that a rank lives. Fail the job if the report proves that ranks call different collectives.

        Raises UnknownJobError, InvalidRequestError, ConflictError.
        """
        job = self.member_of(number, rank)
        if report is not None and report.summed is not None and job.change is None:
            self._hear_sums(job, rank, report.summed)
        job.liveness.hear(rank, now, self.policy.heartbeat_timeout_s / 2)
        if report is not None and not job.ended:
            job.waits[rank] = report.wait
            if report.traffic is not None:
                job.traffic[rank] = report.traffic
            job.way_back.hear(rank, now, switch_silent=report.switch_silent)
            job.mismatch = job.comparison.hear(rank, report)
            if job.mismatch is not None:
                calls = job.mismatch.described(job.titles)
                self._states.fail(job, f"the ranks call different collectives: {calls}", now)
        return job

    def _hear_sums(self, job: Job, rank: int, summed: Summed) -> None:
        """Record what the server in a rank's process has summed. Raises ConflictError.

        In a job that has gone on elsewhere a heartbeat that was late may tell of a server that is none any more.
        """
        share = job.placement.servers
        if job.changes == 0 or (share is not None and share.serves(rank)):
            share_of(job, rank).hear(rank, summed)

    def unicast(self, number: int) -> Job:
        """From now on send the job's results to each worker's own address. Repeating it changes nothing.

        Raises UnknownJobError.
        """
        job = self.job(number)
        if job.placement.results_ip is not None and not job.ended:
            self.switches.unicast(job, self._topology)
        return job

    def attend(self, number: int, rank: int, now: float, *, steady: bool = True) -> Registered:
        """Record a presence connection of a rank: its first, or a replacement. Raises as heartbeat() does.

        steady: it goes on while the rank's program is busy.
        """
        job = self.heartbeat(number, rank, now)
        job.liveness.attend(rank, steady=steady)
        return job.members[rank]

    def hear(self, number: int, member: Registered, now: float) -> bool:
        """Record a sign of life on a presence connection. False if the job is no more, whoever has its number now.

        Raises ConflictError if the rank has left.
        """
        if self._attended(number, member) is None:
            return False
        self.heartbeat(number, member.rank, now)
        return True

    def vanish(self, number: int, member: Registered, now: float) -> None:
        """Record the end of a presence connection: the process has died or left, or the network broke the connection.

        After the last one the rank is lost a heartbeat interval later. A process that ends without leaving has often
        completed all its sums, and the others may still be fetching the last results.
        """
        job = self._attended(number, member)
        if job is not None:
            job.liveness.vanish(member.rank, now)

    def leave(self, number: int, rank: int, now: float, error: str | None = None) -> Job:
        """Record that a rank leaves. Its entries stay while others run, which may need a result retransmitted.

        error: why the rank cannot go on; it fails the job. Raises UnknownJobError, InvalidRequestError; ConflictError
        while the job changes its way: other ranks may lack results that this one has.
        """
        job = self._find(number, rank)
        if job.ended or rank in job.left or rank not in job.members:
            return job
        if error is None and job.state == "changing":
            raise ConflictError(f"job {number} changes its way: rank {rank} can leave when all have gone on")
        self._states.note_change(job)
        if error is not None:
            self._states.lose_ranks(job, {rank: error}, now)
        elif job.state == "running":
            job.left.add(rank)
            if len(job.left) == job.workers:
                self._states.finish(job, now)
        elif job.placement.in_use:
            self._states.lose_ranks(job, {rank: LEFT}, now)
        else:
            del job.members[rank]
            self._states.changed_members.add((number, rank))
            job.liveness.forget(rank)
        return job

    def end(self, number: int, now: float) -> Job:
        """End a job now; an ended job does not change. Raises UnknownJobError."""
        job = self.job(number)
        if not job.ended:
            self._states.fail(job, "ended on request", now)
        return job

    def tick(self, now: float) -> None:
        """Let time pass: lose silent servers and ranks, have ordinary traffic go around what is down, find ways for
        jobs that have lost theirs, take jobs back to their first way, end late jobs, repeat removals, forget ended
        jobs."""
        stall = now - self._last_tick - _STALL_S
        self._last_tick = now
        self.servers.tick(now, stall)
        self.switches.reroute()
        for job in list(self.jobs.values()):
            if stall > 0:
                job.liveness.skip(stall)
            if not job.ended:
                self._lose_silent(job, now)
            if job.state == "joining" and now - job.created_at >= self.policy.join_timeout_s:
                self._states.fail(job, self._why_not_joined(job), now)
            self.switches.retry(job, now)
            self.changing.advance(job, now)
        self._returning.look(now)
        self._states.forget_ended(now)

    def member_of(self, number: int, rank: int) -> Job:
        """A job of which this rank is a member. Raises UnknownJobError, InvalidRequestError, ConflictError."""
        job = self._find(number, rank)
        if rank not in job.members:
            raise ConflictError(f"rank {rank} is not registered in job {number}")
        if rank in job.left:
            raise ConflictError(f"rank {rank} has left job {number}")
        return job

    def _find(self, number: int, rank: int) -> Job:
        """A job that has this rank. Raises UnknownJobError, InvalidRequestError."""
        job = self.job(number)
        if not 0 <= rank < job.workers:
            raise InvalidRequestError(f"rank is {rank}; the ranks of job {number} are 0 to {job.workers - 1}")
        return job

    def _attended(self, number: int, member: Registered) -> Job | None:
        """The job of a presence connection; None if the job is no more."""
        job = self.jobs.get(number)
        return job if job is not None and job.members.get(member.rank) is member else None

    def _lose_silent(self, job: Job, now: float) -> None:
        """Fail the job if a rank is silent.

        Every rank of a job that has begun must send heartbeats; before that, each rank that has sent one.
        """
        due = set(job.members) - job.left if job.active else job.liveness.beating
        policy = self.policy
        lost = job.liveness.lost(due, now, policy.heartbeat_timeout_s, policy.heartbeat_interval_s)
        if lost:
            self._states.lose_ranks(job, lost, now)

    def _why_not_joined(self, job: Job) -> str:
        placement = job.placement
        reasons = [f"ranks {job.missing} did not join in time"] if job.missing else []
        reasons += [f"switch {name} is not connected" for name in self.switches.away(placement)]
        if placement.servers is not None:
            reasons += [f"server {name} does not serve it" for name in placement.servers.missing]
        return "; ".join(reasons) or "its entries were not in the switches in time"


def _ending(job: Job) -> str:
    return "finished" if job.state == "finished" else f"failed ({job.reason})"
