# SPDX-License-Identifier: Apache-2.0
"""The states of all jobs, and what each change of a state entails.

    joining ──last rank registers, entries installed and all servers serve──> running ──last rank leaves──> finished
       │                        a switch, link or server of it is lost │  ^
       │                                                               v  │ all ranks have gone on elsewhere
       │                                                              changing
       └────── a rank is lost, the job is ended, nothing can sum for it ──────> failed

A job keeps its number, leases and multicast group until its entries are removed from its switches, and its servers no
longer serve it; only then may another job have them. The slots' contents then belong to another epoch
(docs/protocol.md, 5.2 and 7).
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inagg_contract.aggregation import SERVER, changes_way
from inagg_contract.documents import LONGEST_CHANGE_S
from inagg_controller.errors import UnavailableError, UnknownJobError
from inagg_controller.fabric.tree import Tree
from inagg_controller.jobs.calls import Comparison
from inagg_controller.jobs.change import BACK, FAIL, SERVERS, Change, without_switches
from inagg_controller.jobs.effects import Effect
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.installation import entries_of
from inagg_controller.jobs.job import Job, Way
from inagg_controller.jobs.leases import Numbers
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.placement import Placement, State
from inagg_controller.jobs.planning import JobRequest, Plan, Supplies
from inagg_controller.jobs.servers import give_back, lease

_LAST_JOB = 2**16 - 1
_FIRST_GROUP, _LAST_GROUP = 2, 2**16 - 1
# A way that is lost so soon after the job has gone on there was perhaps no better than the one before.
_SHORT_S = 60.0


class JobStates:
    """The jobs by number. epochs, multicast: as in `JobTable`.

    version: changes with every change of a job's state, of the servers and of what they serve. changed,
    changed_members: the numbers of jobs, and the numbers and ranks of members, that have changed, until somebody clears
    them. numbers, groups, epochs: for the next job. effects: that no driver has taken yet. notices: lines for the
    log.
    """

    def __init__(self, supplies: Supplies, policy: Policy, epochs: Epochs, multicast: int | None) -> None:
        self.jobs: dict[int, Job] = {}
        self.version = 0
        self.changed: set[int] = set()
        self.changed_members: set[tuple[int, int]] = set()
        self.effects: deque[Effect] = deque()
        self.notices: list[str] = []
        self._supplies = supplies
        self._policy = policy
        self._ended: list[Job] = []
        self.numbers = Numbers(1, _LAST_JOB)
        self.groups = Numbers(_FIRST_GROUP, _LAST_GROUP)
        self.epochs = epochs
        self._multicast = multicast

    @property
    def holders(self) -> list[Job]:
        """The jobs that hold resources."""
        return [job for job in self.jobs.values() if job.holds_resources]

    def note_change(self, job: Job | None = None) -> None:
        """Let `version` say that something has changed, and `changed` which job."""
        self.version += 1
        if job is not None:
            self.changed.add(job.id)

    def find(self, number: int) -> Job:
        """The job with this number. Raises UnknownJobError."""
        try:
            return self.jobs[number]
        except KeyError:
            raise UnknownJobError(
                f"there is no job {number}: it never existed, it ended a while ago, or the controller was started "
                "again without it"
            ) from None

    def placement(self, number: int, epoch: int) -> tuple[Job, Placement] | None:
        """A job and that of its placements with this epoch; None if it has none."""
        job = self.jobs.get(number)
        found = [] if job is None else [each for each in job.placements if each.epoch == epoch]
        return (job, found[0]) if job is not None and found else None

    def take_ended(self) -> list[Job]:
        """The jobs that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def check_epoch(self) -> None:
        """Raise UnavailableError if there is no epoch for another placement."""
        if self.epochs.exhausted:
            raise UnavailableError(
                "every epoch has been used; start the controller with another file of --state"
            )

    def add(self, request: JobRequest, plan: Plan, now: float) -> Job:
        """Add a job that has been planned."""
        number = self.numbers.take()
        # There are more numbers than jobs that fit into the tables, jobs on servers and ended jobs together.
        assert number is not None
        job = Job(
            id=number,
            name=request.name,
            workers=request.workers,
            slots=plan.slots,
            created_at=now,
            owner=request.owner,
            placements=[self._place(number, request, plan)],
            comparison=Comparison(request.workers),
            on_path_loss=request.on_path_loss,
            key=request.key,
        )
        self.jobs[number] = job
        self.note_change(job)
        return job

    def replace(self, job: Job, request: JobRequest, plan: Plan) -> None:
        """Give a job another placement. The old one is removed, and the new one then installed.

        Raises UnavailableError if the plan has not the slots of the job: chunk numbers say in which slot they are.
        """
        if plan.slots != job.slots:
            self._supplies.resources.give_back(plan.leases)
            raise UnavailableError(f"job {job.id} has {job.slots} slots, and {plan.slots} are free elsewhere")
        old = job.placement
        new = self._place(job.id, request, plan)
        if old.results_ip is None:  # some rank gets nothing that is sent to a group address
            new.results_ip = None
        job.placements.append(new)
        self.note_change(job)
        if old.freed:
            job.placements.remove(old)
        else:
            self._withdraw(job, old)
        self.place_if_complete(job)

    def _place(self, number: int, request: JobRequest, plan: Plan) -> Placement:
        group = self.groups.take() if plan.tree.switches else None
        # There are more groups than jobs that fit into the tables.
        assert group is not None or not plan.tree.switches
        epoch = self.epochs.take()
        placement = Placement(
            job=number,
            epoch=epoch,
            first_chunk=self.epochs.first_chunk(epoch, plan.slots),
            slots=plan.slots,
            owner=request.owner,
            tree=plan.tree,
            leases=plan.leases,
            group=group,
            results_ip=self._results_ip(number, request.workers, plan.tree),
            servers=plan.servers,
            priority=request.priority,
        )
        if plan.servers is not None:
            lease(plan.servers, placement.key, request.owner)
        return placement

    def _results_ip(self, number: int, workers: int, tree: Tree) -> int | None:
        """The multicast address of a job's results, if switches send them to several workers."""
        if self._multicast is None or workers == 1 or not tree.switches:
            return None
        return self._multicast + number

    def place_if_complete(self, job: Job) -> None:
        """Have a job served, and its entries inserted, once all its ranks have registered and its switches are there.

        A switch has entries of one placement of a job at a time.
        """
        *older, placement = job.placements
        if not job.uses(placement) or not job.complete or placement.state is not State.PLANNED:
            return
        self.changed.add(job.id)
        if placement.servers is not None and not placement.servers.seats:
            if job.change is None:
                placement.servers.assign(job.members)
            elif not job.change.frozen:  # then the ports of the servers in all processes are known
                return
            elif placement.aggregation == SERVER and job.change.goes_beside:
                placement.servers.beside = dict(job.change.beside)
                placement.servers.assign(placement.servers.beside)
            else:
                ports = job.change.server_ports
                placement.servers.assign(
                    {
                        rank: replace(member, server_udp_port=ports[rank])
                        for rank, member in job.members.items()
                    }
                )
        reached = not self._supplies.resources.away(placement.tree)
        if reached and not any(old.entries.keys() & placement.tree.by_name.keys() for old in older):
            effect = placement.install(entries_of(job, self._supplies.topology, self._supplies.limits))
            if effect is not None:
                self.effects.append(effect)

    def begin_if_ready(self, job: Job, now: float) -> None:
        """Let a job run once its placement is ready."""
        if job.state == "joining" and job.placement.ready:
            job.state = "running"
            job.ways.append(Way(now, job.placement.title, job.placement.aggregation))
            job.liveness.begin(job.members, now)

    def lose_way(self, job: Job, reason: str, now: float, *, move_on: bool = False) -> None:
        """What sums for a job is lost. The job changes its way if it may, else it has failed.

        move_on: trying the same again would not help. So only the options are left after the one that led here, if that
        was not long ago.
        """
        placement = job.placement
        if not job.active or not changes_way(job.on_path_loss) or job.left:
            self.fail(job, reason, now)
            return
        before = job.change
        options, last = [*job.on_path_loss], ""
        if before is not None:
            last, first = before.found_by, before.reason
        elif job.changes > 0 and now - job.resumed_at < _SHORT_S:
            last, first = job.found_by, job.lost_why
        else:
            job.second_round = False
        was_beside = placement.servers is not None and bool(placement.servers.beside)
        not_beside = False
        if move_on and last == BACK:  # which only jobs do that have one of these
            options = without_switches(options, job.workers)
            reason = f"it went back to its first way; then {reason}"
        elif move_on and last in options:
            not_beside = was_beside and last == SERVERS  # they may still be where they have registered
            options = options[options.index(last) + (0 if not_beside else 1) :]
            if options[:1] in ([], [FAIL]) and not job.second_round:
                options, job.second_round = [*job.on_path_loss], True  # what was dead may be there by now
            reason = f"{first}; then {reason}"
        if job.first is None:
            job.first = placement.kind
        job.way_back.way_lost(now)
        self.notices.append(f"{job.title} has lost its way, and looks for another: {reason}")
        self._change(
            job,
            reason,
            now,
            options,
            was_beside=was_beside or (before is not None and before.was_beside),
            not_beside=not_beside,
        )

    def go_back(self, job: Job, request: JobRequest, plan: Plan, now: float) -> None:
        """Take a running job back to its first way, or a part of it. Its ranks freeze as if it had lost the present
        one."""
        job.way_back.went_back(now)
        self.notices.append(f"{job.title} goes back to its first way")
        self._change(job, "the first way is there again", now, [*job.on_path_loss], found_by=BACK)
        self.replace(job, request, plan)

    def _change(
        self,
        job: Job,
        reason: str,
        now: float,
        options: list[str],
        *,
        was_beside: bool = False,
        not_beside: bool = False,
        found_by: str = "",
    ) -> None:
        """Begin a change of way, and give the present way back. The arguments are fields of Change."""
        before, placement = job.change, job.placement
        if found_by == BACK:  # nothing is lost: the time begins when all ranks have frozen
            deadline = math.inf
        elif before is None or before.found_by == BACK:
            deadline = now + LONGEST_CHANGE_S
        else:
            deadline = before.deadline
        job.change = Change(
            lost=placement.epoch,
            reason=reason,
            began=now,
            began_unbroken=now if before is None else before.began_unbroken,
            deadline=deadline,
            since=now,
            options=options,
            workers=job.workers,
            slots=job.slots,
            was_beside=was_beside,
            not_beside=not_beside,
            found_by=found_by,
        )
        job.state = "changing"
        self.note_change(job)
        self._withdraw(job, placement)

    def resume(self, job: Job, now: float) -> None:
        """All ranks of a job have gone on."""
        assert job.change is not None
        taken_s = now - job.change.began
        self.notices.append(f"{job.title} goes on, on {job.placement.title}, after {taken_s:.1f} s")
        way = Way(now, job.placement.title, job.placement.aggregation, job.change.reason, taken_s)
        job.ways.append(way)
        job.changes += 1
        job.resumed_at, job.found_by, job.lost_why = now, job.change.found_by, job.change.reason
        job.change = None
        job.state = "running"
        self.note_change(job)

    def fail(self, job: Job, reason: str, now: float) -> None:
        """End a job that cannot go on."""
        self._end(job, "failed", reason, now)

    def finish(self, job: Job, now: float) -> None:
        """End a job that all ranks have left."""
        self._end(job, "finished", None, now)

    def lose_ranks(self, job: Job, lost: Mapping[int, str], now: float) -> None:
        """End a job because ranks are lost. lost: rank -> why."""
        job.lost.update(lost)
        self.fail(job, "; ".join(f"{job.titles([rank])}: {why}" for rank, why in lost.items()), now)

    def _end(self, job: Job, state: str, reason: str | None, now: float) -> None:
        job.state = state
        job.reason = reason
        job.ended_at = now
        job.change = None
        self._ended.append(job)
        job.comparison.close()
        self.note_change(job)
        self._withdraw(job, job.placement)

    def _withdraw(self, job: Job, placement: Placement) -> None:
        """Give back a placement that is of no more use: first have its entries removed, unless that is under way."""
        if placement.state is State.PLANNED:
            self.release(job, placement)
        elif not placement.freed and placement.state is not State.REMOVING:
            self.remove(job, placement)

    def remove(self, job: Job, placement: Placement) -> None:
        """Have the entries of a placement removed, also a second time."""
        effect = placement.remove()
        if effect is None:
            self.release(job, placement)
        else:
            self.effects.append(effect)

    def release(self, job: Job, placement: Placement) -> None:
        """Free what a placement has, once the job has no use for it, no switch has entries and no server serves it."""
        if job.uses(placement) or placement.state is not State.PLANNED:
            return
        if placement.servers is not None and not placement.in_use:  # no server has had orders about it
            give_back(placement.servers.registered, placement.key)
        if placement.servers is not None and placement.servers.holds(placement.key):
            return
        placement.release()
        self.note_change(job)
        self._supplies.resources.give_back(placement.leases)
        if placement.group is not None:
            self.groups.give_back(placement.group)
        if placement is not job.placement:
            job.placements.remove(placement)

    def forget_ended(self, now: float) -> None:
        """Forget ended jobs: after a time, and the oldest of a host and of all that have too many jobs or ranks."""
        for number in _overdue(list(self.jobs.values()), self._policy.keep_s, self._supplies.limits, now):
            self.note_change(self.jobs.pop(number))
            self.numbers.give_back(number)


def _overdue(jobs: Sequence[Job], keep_s: float, limits: Limits, now: float) -> list[int]:
    """The numbers of the ended jobs that are not to be remembered any longer."""
    kept: Counter[str | None] = Counter()
    ranks: Counter[str | None] = Counter()
    overdue = []
    ended = [(job.ended_at, job) for job in jobs if job.ended_at is not None and not job.holds_resources]
    for ended_at, job in sorted(ended, key=lambda each: (each[0], each[1].id), reverse=True):
        kept[job.owner.creator] += 1
        ranks[job.owner.creator] += job.workers
        part = 1 if job.owner.creator is None else limits.host_share
        if (
            now - ended_at >= keep_s
            or kept.total() > limits.max_ended
            or ranks.total() > limits.max_ended_ranks
            or kept[job.owner.creator] > part * limits.max_ended
            or ranks[job.owner.creator] > part * limits.max_ended_ranks
        ):
            kept[job.owner.creator] -= 1
            ranks[job.owner.creator] -= job.workers
            overdue.append(job.id)
    return overdue
