# SPDX-License-Identifier: Apache-2.0
"""The state machine of jobs. It decides and does no I/O.

Every method takes the time, in seconds of any monotonic clock, and changes the table of jobs. Changes to switches are
appended to `effects`; a driver carries them out in order and reports each with `done`. Servers ask for their `orders`.
A request that is refused raises a RequestError and changes nothing.

    joining ──last rank registers, entries installed and all servers serve──> running ──last rank leaves──> finished
       └────── a rank is lost, the job is ended, a switch, link or server of it is lost ──────> failed

A job keeps its leases, number and multicast group until its entries are removed from its switches, and its servers no
longer serve it; only then may another job have them. The slots' contents then belong to another epoch
(docs/protocol.md, 5.2 and 7).
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from inagg_contract.addresses import format_ip
from inagg_contract.documents import DEFAULT_JOB_CLASS, OUTAGE_TIMEOUTS, Aggregation
from inagg_controller.errors import (
    ConflictError,
    InvalidRequestError,
    NotOfferedError,
    UnavailableError,
    UnknownJobError,
)
from inagg_controller.fabric.topology import Link, Topology
from inagg_controller.fabric.tree import NO_TREE, Tree
from inagg_controller.jobs.calls import Comparison, Report
from inagg_controller.jobs.classes import Held, JobClass, known_classes
from inagg_controller.jobs.installation import entries_of, unicast_groups_of
from inagg_controller.jobs.job import (
    LEFT,
    Effect,
    Install,
    Job,
    Limits,
    Policy,
    Registered,
    Regroup,
    Remove,
)
from inagg_controller.jobs.leases import FEWEST_SLOTS, Lease, LeasePool, Numbers
from inagg_controller.jobs.registration import check_endpoints, relevant
from inagg_controller.jobs.resources import Resources, leased_slots
from inagg_controller.jobs.servers import (
    MOST_RANKS,
    POWERS_OF_TWO,
    TIMEOUT_S,
    JobKey,
    Server,
    Servers,
    ServerShare,
    Summed,
    give_back,
    lease,
)
from inagg_controller.switch.entries import JobEntries

SWITCH_LOST = "switch {} was lost: the sums in its slots are gone"
NO_SWITCH = "this controller has no switch; aggregation = server needs none"
SWITCH_TAKEN = "another controller has taken switch {} over: its tables and slots are no longer this job's"

_LAST_JOB = 2**16 - 1
_LAST_EPOCH = 2**32 - 1
_FIRST_GROUP, _LAST_GROUP = 2, 2**16 - 1

# Seconds after which a removal that the switch refused is tried again.
_RETRY_S = 1.0

# If more time than this passes between two ticks, the controller itself was not running. The heartbeats of that time
# wait unread, so no more than this counts as silence of the workers and servers.
_STALL_S = 0.75


class JobTable:
    """All jobs. Not thread-safe.

    first_epoch: greater than every epoch that any living worker may have. multicast: the first of 2^16 multicast
    addresses, one for the results of each job, by its number; None: results go to each worker's own address. words:
    256-byte words in a DATA packet. classes: by name. `version` changes with every change of a job's state, of the
    servers and of what they serve.
    """

    def __init__(
        self,
        topology: Topology,
        limits: Limits,
        policy: Policy,
        *,
        first_epoch: int,
        now: float,
        words: int,
        multicast: int | None = None,
    ) -> None:
        self.topology = topology
        self.limits = limits
        self.policy = policy
        self.classes = known_classes(limits.classes)
        self.jobs: dict[int, Job] = {}
        self.effects: deque[Effect] = deque()
        self._ended: list[Job] = []
        self.version = 0
        self._resources = Resources(topology, limits)
        self._servers = Servers(words=words, max_slots=limits.max_slots, host_share=limits.host_share)
        self._numbers = Numbers(1, _LAST_JOB)
        self._groups = Numbers(_FIRST_GROUP, _LAST_GROUP)
        self._next_epoch = first_epoch
        self._multicast = multicast
        self._last_tick = now

    @property
    def pools(self) -> Mapping[str, LeasePool]:
        """The slots of each switch."""
        return self._resources.pools

    @property
    def servers(self) -> Mapping[str, Server]:
        """The registered servers by name."""
        return self._servers.by_name

    def job(self, number: int) -> Job:
        """The job with this number. Raises UnknownJobError."""
        try:
            return self.jobs[number]
        except KeyError:
            raise UnknownJobError(
                f"there is no job {number}: it never existed, it ended a while ago, or the controller has restarted"
            ) from None

    def create(
        self,
        workers: int,
        slots: int,
        name: str,
        now: float,
        creator: str | None = None,
        at: Sequence[str] | None = None,
        *,
        job_class: str = DEFAULT_JOB_CLASS,
    ) -> Job:
        """Create a job, plan its tree and lease its slots: the requested number, or fewer if slots are scarce.

        creator: the host that asks; its jobs together are limited to a share. at: the switch of each rank's host; None:
        the only switch. job_class: its jobs together are limited to their quotas. Raises InvalidRequestError,
        UnavailableError.
        """
        self._check_shape(workers, slots, "switches", self.limits.max_workers)
        admitting = self._admitting(job_class, "leased")
        at = self._switches_of(workers, at)
        share = self._resources.take(at, slots, creator, admitting, self._holders)
        return self._add(
            name,
            now,
            creator,
            job_class,
            workers=workers,
            slots=share.slots,
            tree=share.tree,
            leases=share.leases,
        )

    def create_shared(
        self,
        workers: int,
        slots: int,
        name: str,
        now: float,
        creator: str | None = None,
        at: Sequence[str] | None = None,
        *,
        colocated: bool,
        priority: int = 0,
        job_class: str = DEFAULT_JOB_CLASS,
    ) -> Job:
        """Create a job with servers, for which switches combine what they can in slots that jobs share.

        at, job_class: as in `create`. colocated: as in `create_on_servers`. priority: the job evicts what jobs of a
        lower one have in a slot. Raises InvalidRequestError, UnavailableError.
        """
        self._check_shape(workers, slots, "shared slots", min(self.limits.max_workers, MOST_RANKS))
        admitting = self._admitting(job_class, "shared", priority)
        self._check_server_jobs(creator, workers)
        tree = self._resources.share(self._switches_of(workers, at))
        if colocated:
            share = self._servers.colocated(workers, slots, POWERS_OF_TWO)
        else:
            share = self._servers.choose(
                slots,
                creator,
                admitting,
                POWERS_OF_TWO,
                lambda server: self.topology.reaches(tree.by_name, server.ip),
            )
        self._resources.check_tables(tree, share.count, creator, self._holders)
        return self._add(
            name,
            now,
            creator,
            job_class,
            workers=workers,
            slots=share.slots,
            tree=tree,
            leases={},
            servers=share,
            priority=priority,
        )

    def create_on_servers(
        self,
        workers: int,
        slots: int,
        name: str,
        now: float,
        creator: str | None = None,
        *,
        colocated: bool,
        job_class: str = DEFAULT_JOB_CLASS,
    ) -> Job:
        """Create a job whose first ranks run its servers, or one that leases memory of registered servers.

        job_class: as in `create`. Raises InvalidRequestError, UnavailableError.
        """
        self._check_shape(workers, slots, "servers", MOST_RANKS)
        admitting = self._admitting(job_class, "server")
        self._check_server_jobs(creator, workers)
        if colocated:
            share = self._servers.colocated(workers, slots)
        else:
            share = self._servers.choose(slots, creator, admitting)
        return self._add(
            name,
            now,
            creator,
            job_class,
            workers=workers,
            slots=share.slots,
            tree=NO_TREE,
            leases={},
            servers=share,
        )

    def _switches_of(self, workers: int, at: Sequence[str] | None) -> Sequence[str]:
        """The switch of each rank's host: `at`, or the only switch. Raises NotOfferedError."""
        if not self.topology.switches:
            raise NotOfferedError(NO_SWITCH)
        return at or [self.topology.switches[0].name] * workers

    def _add(
        self,
        name: str,
        now: float,
        creator: str | None,
        job_class: str,
        *,
        workers: int,
        slots: int,
        tree: Tree,
        leases: Mapping[str, Lease],
        servers: ServerShare | None = None,
        priority: int = 0,
    ) -> Job:
        number = self._numbers.take()
        # There are more numbers than jobs that fit into the tables, jobs on servers and ended jobs together.
        assert number is not None
        group = self._groups.take() if tree.switches else None
        assert group is not None or not tree.switches  # there are more than jobs that fit into the tables
        job = Job(
            id=number,
            name=name,
            workers=workers,
            slots=slots,
            epoch=self._next_epoch,
            group=group,
            results_ip=self._results_ip(number, workers, tree),
            tree=tree,
            leases=leases,
            servers=servers,
            priority=priority,
            job_class=job_class,
            created_at=now,
            comparison=Comparison(workers),
            creator=creator,
        )
        self._next_epoch += 1
        self.jobs[number] = job
        self.version += 1
        if servers is not None:
            lease(servers, job.key, creator, job_class)
        return job

    def _results_ip(self, number: int, workers: int, tree: Tree) -> int | None:
        """The multicast address of a job's results, if switches send them to several workers."""
        if self._multicast is None or workers == 1 or not tree.switches:
            return None
        return self._multicast + number

    @property
    def frees_slots(self) -> bool:
        """Whether slots of an ended job are about to become free."""
        return any(
            job.ended and job.servers is None and not self._resources.away(job.tree) for job in self._holders
        )

    @property
    def frees_memory(self) -> bool:
        """Whether memory of registered servers is about to become free."""
        return any(
            job.ended and job.servers is not None and job.servers.holds(job.key) for job in self._holders
        )

    def frees_place(self, job_class: str) -> bool:
        """Whether a class that has all jobs of its quota is about to have fewer."""
        known = self.classes.get(job_class)
        if known is None or known.jobs is None:
            return False
        held = self._of_class(job_class)
        leaving = sum(job.ended and not self._resources.away(job.tree) for job in held)
        return len(held) - leaving < known.jobs <= len(held)

    def held_by(self, job_class: str) -> Held:
        """What the jobs of a class hold now."""
        jobs = self._of_class(job_class)
        slots = {name: leased_slots(name, jobs) for name in self.pools}
        return Held(len(jobs), slots, self._servers.held(job_class))

    def register(self, number: int, member: Registered, now: float) -> Job:
        """Register a worker, a Worker for a job on servers; the last one starts the installation.

        Repeating it changes nothing. Raises UnknownJobError, InvalidRequestError, ConflictError.
        """
        job = self.job(number)
        self._check_rank(job, member.rank)
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
        job.last_seen[member.rank] = now
        self.version += 1
        if job.servers is not None and job.complete:
            job.servers.assign(job.members)
        self._install_if_complete(job)
        return job

    def serve(self, number: int, rank: int, now: float) -> Job:
        """Record that the server in a rank's process serves the job.

        Raises UnknownJobError, InvalidRequestError, ConflictError.
        """
        job = self.job(number)
        self._check_rank(job, rank)
        share = self._share_of_server(job, rank)
        if job.ended:
            return job
        if not share.seats:
            missing = sorted(set(range(job.workers)) - set(job.members))
            raise ConflictError(f"ranks {missing} of job {number} have not registered yet")
        self._count_in(job, share, rank, now)
        return job

    def register_server(self, name: str, ip: int, udp_port: int, memory: int, now: float) -> Server:
        """Register a start of a server. An earlier one at its address is gone with its sums.

        Raises ConflictError if a server at another address has this name.
        """
        rivals = self._servers.rivals(name, ip, udp_port)
        for rival in rivals:
            if (rival.ip, rival.udp_port) != (ip, udp_port):
                raise ConflictError(
                    f"a server at {format_ip(rival.ip)}:{rival.udp_port} has the name {name}: give this one another"
                )
        for rival in rivals:
            self._drop(rival, f"server {rival.name} was started again: the sums in its memory are gone", now)
        self.version += 1
        return self._servers.add(name, ip, udp_port, memory, now)

    def server_heartbeat(
        self,
        name: str,
        instance: int,
        now: float,
        serving: Iterable[JobKey] = (),
        refused: Mapping[JobKey, str] | None = None,
        counted: Mapping[JobKey, Summed] | None = None,
        unknown: int = 0,
    ) -> None:
        """Record that a server lives, and which jobs it serves. refused: those that it cannot serve, and why. counted:
        what it has summed for jobs, also for those that it no longer serves. unknown: see ServerBeat.

        Raises UnknownServerError.
        """
        server = self._servers.find(name, instance)
        server.last_seen, server.unknown = now, unknown
        listed = frozenset(serving)
        if listed != server.serving:
            server.serving = listed
            self.version += 1
        for job in self._leased_from(server):
            reason = (refused or {}).get(job.key)
            if reason is not None and job.servers is not None and job.servers.seats and not job.ended:
                self._end(job, "failed", f"server {name}: {reason}", now)
            if counted is not None and job.key in counted and job.servers is not None:
                job.servers.hear(job.servers.registered.index(server), counted[job.key])
            self._compare(job, server, now)

    def orders(self, name: str, instance: int) -> list[Job]:
        """The jobs that a server is to serve. Raises UnknownServerError."""
        server = self._servers.find(name, instance)
        return [job for job in self._leased_from(server) if job.placed and not job.ended]

    def stop_server(self, name: str, instance: int, now: float) -> None:
        """Forget a server that stops; its jobs fail. Raises UnknownServerError."""
        self._drop(self._servers.find(name, instance), f"server {name} was stopped", now)

    def heartbeat(self, number: int, rank: int, now: float, report: Report | None = None) -> Job:
        """Record that a rank lives. Fail the job if the report proves that ranks call different collectives.

        Raises UnknownJobError, InvalidRequestError, ConflictError.
        """
        job = self.job(number)
        self._check_rank(job, rank)
        if rank not in job.members:
            raise ConflictError(f"rank {rank} is not registered in job {number}")
        if rank in job.left:
            raise ConflictError(f"rank {rank} has left job {number}")
        if report is not None and report.summed is not None:
            self._share_of_server(job, rank).hear(rank, report.summed)
        if now - job.heard_at >= self.policy.heartbeat_timeout_s / 2:
            job.heard_since = now
        job.heard_at = job.last_seen[rank] = now
        job.beating.add(rank)
        if report is not None and not job.ended:
            job.waits[rank] = report.wait
            job.mismatch = job.comparison.hear(rank, report)
            if job.mismatch is not None:
                calls = job.mismatch.described(job.titles)
                self._end(job, "failed", f"the ranks call different collectives: {calls}", now)
        return job

    def unicast(self, number: int) -> Job:
        """From now on send the job's results to each worker's own address. Repeating it changes nothing.

        Raises UnknownJobError.
        """
        job = self.job(number)
        if job.results_ip is None or job.ended:
            return job
        job.results_ip = None
        self.version += 1
        if job.entries is not None and not job.removing:
            job.installed = False
            self.effects.append(Regroup(job.id, unicast_groups_of(job, self.topology), job.generation))
        return job

    def attend(self, number: int, rank: int, now: float, *, steady: bool = True) -> Registered:
        """Record a presence connection of a rank: its first, or a replacement. Raises as heartbeat() does.

        steady: it goes on while the rank's program is busy.
        """
        job = self.heartbeat(number, rank, now)
        if not steady:
            job.unsteady.add(rank)
        job.attended[rank] = job.attended.get(rank, 0) + 1
        job.vanished.pop(rank, None)
        return job.members[rank]

    def hear(self, number: int, member: Registered, now: float) -> bool:
        """Record a sign of life on a presence connection. False if the job is no more, whoever has its number now.

        Raises ConflictError if the rank has left.
        """
        job = self.jobs.get(number)
        if job is None or job.members.get(member.rank) is not member:
            return False
        self.heartbeat(number, member.rank, now)
        return True

    def vanish(self, number: int, member: Registered, now: float) -> None:
        """Record the end of a presence connection: the process has died or left, or the network broke the connection.

        After the last one the rank is lost a heartbeat interval later. A process that ends without leaving has often
        completed all its sums, and the others may still be fetching the last results.
        """
        job = self.jobs.get(number)
        if job is None or job.members.get(member.rank) is not member:
            return
        job.attended[member.rank] = left = max(0, job.attended.get(member.rank, 0) - 1)
        if left == 0:
            job.vanished[member.rank] = now

    def leave(self, number: int, rank: int, now: float, error: str | None = None) -> Job:
        """Record that a rank leaves. Its entries stay while others run, which may need a result retransmitted.

        error: why the rank cannot go on; it fails the job. Raises UnknownJobError, InvalidRequestError.
        """
        job = self.job(number)
        self._check_rank(job, rank)
        if job.ended or rank in job.left or rank not in job.members:
            return job
        self.version += 1
        if error is not None:
            self._fail(job, {rank: error}, now)
        elif job.state == "running":
            job.left.add(rank)
            if len(job.left) == job.workers:
                self._end(job, "finished", None, now)
        elif job.placed:
            self._fail(job, {rank: LEFT}, now)
        else:
            del job.members[rank], job.last_seen[rank]
            job.beating.discard(rank)
            job.attended.pop(rank, None)
            job.vanished.pop(rank, None)
        return job

    def end(self, number: int, now: float) -> Job:
        """End a job now; an ended job does not change. Raises UnknownJobError."""
        job = self.job(number)
        if not job.ended:
            self._end(job, "failed", "ended on request", now)
        return job

    def tick(self, now: float) -> None:
        """Let time pass: lose silent servers and ranks, end late jobs, repeat removals, forget ended jobs."""
        stall = now - self._last_tick - _STALL_S
        self._last_tick = now
        for server in self._servers.silent(now, stall):
            place = f"{format_ip(server.ip)}:{server.udp_port}"
            self._drop(
                server, f"server {server.name} at {place} was lost: no heartbeat for {TIMEOUT_S:g} s", now
            )
        for job in list(self.jobs.values()):
            if stall > 0:
                job.last_seen = {rank: seen + stall for rank, seen in job.last_seen.items()}
            self._lose_silent(job, now)
            if job.state == "joining" and now - job.created_at >= self.policy.join_timeout_s:
                self._end(job, "failed", self._why_not_joined(job), now)
            if job.retry_at is not None and now >= job.retry_at:
                job.retry_at = None
                self._remove(job)
        self._forget(now)

    def done(self, effect: Effect, now: float, error: str | None = None) -> None:
        """Record that the driver has carried out an effect; error: the switch's message if it refused."""
        job = self.jobs.get(effect.job)
        if job is None or effect.generation != job.generation:
            return
        self.version += 1
        if isinstance(effect, Remove):
            if error is not None:
                job.retry_at = now + _RETRY_S
            else:
                self._forget_entries(job)
                if job.ended:
                    self._release(job)
                else:  # a switch was lost while it joined
                    self._install_if_complete(job)
        elif isinstance(effect, Regroup):
            if error is None and job.entries is not None:
                job.entries = {
                    name: replace(entries, group=effect.groups[name]) for name, entries in job.entries.items()
                }
                if not job.removing:
                    job.installed = True
                    self._begin_if_ready(job, now)
            elif error is not None and not job.ended:  # its sums would need a retransmission for every result
                self._end(job, "failed", f"the switch refused to copy results to each worker: {error}", now)
        elif not job.removing:
            if error is not None:
                self._end(job, "failed", f"the switch refused the job's entries: {error}", now)
            # Else a rank would get results at an address at which another has said that it does not.
            elif not any(isinstance(later, Regroup) and later.job == job.id for later in self.effects):
                job.installed = True
                self._begin_if_ready(job, now)

    def switch_connected(self, name: str) -> None:
        """Record that a switch has a fresh pipeline: install complete jobs that waited for it."""
        self._resources.connected.add(name)
        self.version += 1
        for job in self.jobs.values():
            self._install_if_complete(job)

    def switch_lost(self, name: str, now: float, reason: str = SWITCH_LOST) -> None:
        """Record that a switch, its entries and its sums are lost: running jobs on it fail; joining jobs go on.

        reason: with {} for the switch's name.
        """
        self._resources.connected.discard(name)
        self.version += 1
        for job in list(self.jobs.values()):
            if not job.holds_resources or name not in job.tree.by_name:
                continue
            job.generation += 1
            job.removing = False
            job.retry_at = None
            self.effects = deque(effect for effect in self.effects if effect.job != job.id)
            if job.entries is not None:
                job.entries = {other: entries for other, entries in job.entries.items() if other != name}
            if job.state == "running":
                self._end(job, "failed", reason.format(name), now)
            elif job.entries is not None:
                self._remove(job)

    def link_down(self, link: Link, now: float, reason: str) -> None:
        """Record that a link passes no packets: jobs whose tree uses it fail, and later ones avoid it."""
        self._resources.down.add(link)
        self.version += 1
        for job in list(self.jobs.values()):
            if not job.ended and link in job.tree.links.values():
                self._end(job, "failed", f"the link {link} is down: {reason}", now)

    def link_up(self, link: Link) -> None:
        """Record that a link passes packets (again)."""
        self._resources.down.discard(link)
        self.version += 1

    def installed(self) -> Mapping[int, Mapping[str, JobEntries]]:
        """Entries that are in the switches after every effect has been carried out, by job and switch."""
        return {
            job.id: job.entries for job in self.jobs.values() if job.entries is not None and not job.removing
        }

    def _check_shape(self, workers: int, slots: int, place: str, most_workers: int) -> None:
        if self._next_epoch > _LAST_EPOCH:
            raise UnavailableError("every epoch has been used; restart the controller")
        if not 1 <= workers <= most_workers:
            raise InvalidRequestError(f"workers is {workers}; a job on {place} has 1 to {most_workers}")
        if slots < FEWEST_SLOTS or slots & (slots - 1):
            raise InvalidRequestError(f"slots is {slots}; it must be a power of two, at least {FEWEST_SLOTS}")

    def _admitting(self, job_class: str, way: Aggregation, priority: int = 0) -> JobClass:
        """The class of a job that is to be created. Raises InvalidRequestError, UnavailableError."""
        known = self.classes.get(job_class)
        if known is None:
            raise InvalidRequestError(
                f"job_class is {job_class}; the classes of this controller are {', '.join(self.classes)} (--job-class)"
            )
        known.check(way, priority, len(self._of_class(job_class)))
        return known

    def _check_server_jobs(self, creator: str | None, workers: int) -> None:
        """Check that there may be one more job with servers, with so many ranks. Raises UnavailableError."""
        jobs = [job for job in self._holders if job.servers is not None]
        own = [job for job in jobs if job.creator == creator]
        for what, most, held, held_by_host, more in (
            ("jobs", self.limits.max_server_jobs, len(jobs), len(own), 1),
            ("ranks", self.limits.max_server_ranks, _ranks(jobs), _ranks(own), workers),
        ):
            share = int(self.limits.host_share * most)
            if held + more > most:
                raise UnavailableError(
                    f"there are {held} {what} on servers, the limit is {most}; wait until a job ends"
                )
            if creator is not None and held_by_host + more > share:
                raise UnavailableError(
                    f"the host {creator} has {held_by_host} {what} on servers, the limit for one host is {share}; wait "
                    "until a job ends"
                )

    @staticmethod
    def _check_rank(job: Job, rank: int) -> None:
        if not 0 <= rank < job.workers:
            raise InvalidRequestError(f"rank is {rank}; the ranks of job {job.id} are 0 to {job.workers - 1}")

    @staticmethod
    def _share_of_server(job: Job, rank: int) -> ServerShare:
        """The job's share of servers, of which one is in a rank's process. Raises ConflictError."""
        if job.servers is None or not job.servers.serves(rank):
            raise ConflictError(f"rank {rank} of job {job.id} runs no server of it")
        return job.servers

    @property
    def _holders(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.holds_resources]

    def _of_class(self, job_class: str) -> list[Job]:
        """The jobs of a class that hold resources."""
        return [job for job in self._holders if job.job_class == job_class]

    def _install_if_complete(self, job: Job) -> None:
        reached = not self._resources.away(job.tree)
        waits = job.state == "joining" and job.complete and job.entries is None
        if job.tree.switches and reached and waits:
            job.entries = entries_of(job, self.topology, self.limits)
            self.effects.append(Install(job.id, job.entries, job.generation))

    def _leased_from(self, server: Server) -> list[Job]:
        return [self.jobs[key.id] for key in server.leases]

    def _drop(self, server: Server, reason: str, now: float) -> None:
        """Forget a server; its jobs fail."""
        del self._servers.by_name[server.name]
        self.version += 1
        jobs = self._leased_from(server)
        server.leases.clear()
        for job in jobs:
            if job.ended:
                self._release(job)
            else:
                self._end(job, "failed", reason, now)

    def _compare(self, job: Job, server: Server, now: float) -> None:
        """Compare a job with what a server's heartbeat says."""
        assert job.servers is not None
        index = job.servers.registered.index(server)
        serves = job.key in server.serving
        if serves and job.placed and not job.ended:
            self._count_in(job, job.servers, index, now)
        elif not serves:
            job.servers.serving.discard(index)
            if job.state == "running":
                self._end(job, "failed", f"server {server.name} no longer serves it", now)
            if job.ended:
                give_back([server], job.key)
                self._release(job)

    def _count_in(self, job: Job, share: ServerShare, index: int, now: float) -> None:
        """Record that a server serves a job, which runs when all do."""
        if index in share.serving:
            return
        share.serving.add(index)
        self.version += 1
        self._begin_if_ready(job, now)

    def _lose_silent(self, job: Job, now: float) -> None:
        """Fail the job if a rank is silent.

        Every rank of a running job must send heartbeats; before that, each rank that has sent one. If none of the job
        is heard, the controller may be the one that is cut off: that silence does not count until it is very long.
        """
        if job.ended:
            return
        due = set(job.members) - job.left if job.state == "running" else job.beating
        limit, grace = self.policy.heartbeat_timeout_s, self.policy.heartbeat_interval_s
        hears_others = now - job.heard_at < limit / 2
        lost = {}
        for rank in sorted(due):
            if rank in job.vanished and now - job.vanished[rank] >= grace:
                lost[rank] = "its process has ended without leaving the job"
            elif (
                hears_others
                and rank not in job.unsteady
                and now - max(job.last_seen[rank], job.heard_since) >= limit
            ):
                lost[rank] = _silence(limit, "its process is stopped")
            elif now - job.last_seen[rank] >= OUTAGE_TIMEOUTS * limit:
                what = "its process is stopped"
                what += " or holds the GIL" if rank in job.unsteady else ""
                lost[rank] = _silence(OUTAGE_TIMEOUTS * limit, what)
        if lost:
            self._fail(job, lost, now)

    def _why_not_joined(self, job: Job) -> str:
        missing = sorted(set(range(job.workers)) - set(job.members))
        reasons = [f"ranks {missing} did not join in time"] if missing else []
        reasons += [f"switch {name} is not connected" for name in self._resources.away(job.tree)]
        if job.servers is not None:
            reasons += [f"server {name} does not serve it" for name in job.servers.missing]
        return "; ".join(reasons) or "its entries were not in the switches in time"

    def _fail(self, job: Job, lost: Mapping[int, str], now: float) -> None:
        job.lost.update(lost)
        self._end(job, "failed", "; ".join(f"{job.titles([rank])}: {why}" for rank, why in lost.items()), now)

    def take_ended(self) -> list[Job]:
        """The jobs that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _end(self, job: Job, state: str, reason: str | None, now: float) -> None:
        job.state = state
        job.reason = reason
        job.ended_at = now
        self._ended.append(job)
        job.comparison.close()
        self.version += 1
        if job.entries is None:
            self._release(job)
        elif not job.removing:
            self._remove(job)

    def _remove(self, job: Job) -> None:
        assert job.entries is not None
        if job.entries:
            job.removing = True
            job.installed = False
            self.effects.append(Remove(job.id, job.entries, job.generation))
            return
        self._forget_entries(job)
        if job.ended:
            self._release(job)

    @staticmethod
    def _begin_if_ready(job: Job, now: float) -> None:
        if job.state == "joining" and job.ready:
            job.state = "running"
            job.last_seen = dict.fromkeys(job.members, now)

    @staticmethod
    def _forget_entries(job: Job) -> None:
        job.entries = None
        job.removing = job.installed = False

    def _release(self, job: Job) -> None:
        """Free what an ended job has, once it is neither in its switches nor served by a server."""
        if job.entries is not None or not job.holds_resources:
            return
        if job.servers is not None and not job.placed:  # no server has had orders about it
            give_back(job.servers.registered, job.key)
        if job.servers is not None and job.servers.holds(job.key):
            return
        job.holds_resources = False
        self.version += 1
        self._resources.give_back(job.leases)
        if job.group is not None:
            self._groups.give_back(job.group)

    def _forget(self, now: float) -> None:
        """Forget ended jobs: after a time, and the oldest of a host and of all that have too many jobs or ranks."""
        kept: Counter[str | None] = Counter()
        ranks: Counter[str | None] = Counter()
        share = self.limits.host_share
        for ended_at, number in sorted(_forgettable(self.jobs.values()), reverse=True):
            job = self.jobs[number]
            kept[job.creator] += 1
            ranks[job.creator] += job.workers
            part = 1 if job.creator is None else share
            if (
                now - ended_at >= self.policy.keep_s
                or kept.total() > self.limits.max_ended
                or ranks.total() > self.limits.max_ended_ranks
                or kept[job.creator] > part * self.limits.max_ended
                or ranks[job.creator] > part * self.limits.max_ended_ranks
            ):
                kept[job.creator] -= 1
                ranks[job.creator] -= job.workers
                del self.jobs[number]
                self._numbers.give_back(number)
                self.version += 1


def _forgettable(jobs: Iterable[Job]) -> Iterable[tuple[float, int]]:
    for job in jobs:
        if job.ended_at is not None and not job.holds_resources:
            yield job.ended_at, job.id


def _silence(seconds: float, what: str) -> str:
    """Why a rank that has been silent for so long is lost. what: is the matter with its process, perhaps."""
    return f"no heartbeat for {seconds:g} s: {what}, or its host is down or cut off"


def _ranks(jobs: Iterable[Job]) -> int:
    return sum(job.workers for job in jobs)


def _ending(job: Job) -> str:
    return "finished" if job.state == "finished" else f"failed ({job.reason})"
