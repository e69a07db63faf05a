# SPDX-License-Identifier: Apache-2.0
"""Plans what sums for a new job: one planner for each kind of aggregation. A plan has leased its slots."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inagg_contract.aggregation import INNER, LEASED, SERVER, SHARED, Summing, uses_servers
from inagg_contract.documents import DEFAULT_JOB_CLASS
from inagg_controller.errors import ForbiddenError, InvalidRequestError, NotOfferedError, UnavailableError
from inagg_controller.fabric.topology import Topology
from inagg_controller.fabric.tree import NO_TREE, Tree
from inagg_controller.jobs.accounts import Account, Held, Owner
from inagg_controller.jobs.classes import known_classes
from inagg_controller.jobs.job import Job, holding
from inagg_controller.jobs.leases import FEWEST_SLOTS, Lease
from inagg_controller.jobs.limits import Limits
from inagg_controller.jobs.placement import Kind, Placement
from inagg_controller.jobs.resources import Resources, leased_slots
from inagg_controller.jobs.servers import MOST_RANKS, POWERS_OF_TWO, Servers, ServerShare
from inagg_controller.jobs.tenants import Tenants

# Servers of ranks that share the slots which a job asks for. With more of them the job gets more slots.
_SERVERS_OF_SLOTS = 8
NO_SWITCH = "this controller has no switch; aggregation = server needs none"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job that is to be created.

    slots: at most. creator: the host that asks, None for the operator; the jobs of a host are limited to a share. at:
    the switch of each rank's host; None: the only switch. colocated: the first ranks run its servers, else it leases
    memory of registered ones. priority: on shared slots the job evicts what jobs of a lower one have in a slot.
    job_class, tenant: the jobs of a class, and those of a tenant, are limited to its quotas. on_path_loss, key: see
    `Job`. exact: no other number of slots is of use.
    """

    aggregation: Summing
    workers: int
    slots: int
    name: str = ""
    creator: str | None = None
    at: Sequence[str] | None = None
    colocated: bool = True
    priority: int = 0
    job_class: str = DEFAULT_JOB_CLASS
    tenant: str | None = None
    on_path_loss: Sequence[str] = ()
    key: str = ""
    exact: bool = False

    @property
    def owner(self) -> Owner:
        """Whose the job will be."""
        return Owner(self.creator, self.job_class, self.tenant)


def request_again(job: Job, kind: Kind) -> JobRequest:
    """The request for another placement of a job. kind: how that sums."""
    return JobRequest(
        aggregation=kind.aggregation,
        workers=job.workers,
        slots=job.slots,
        name=job.name,
        at=kind.at or None,
        colocated=kind.colocated,
        priority=kind.priority,
        exact=True,
        **job.owner._asdict(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job is to have. leases: in each switch of the tree; they are taken. servers: their memory is not."""

    slots: int
    tree: Tree = NO_TREE
    leases: Mapping[str, Lease] = field(default_factory=dict)
    servers: ServerShare | None = None


@dataclass(frozen=True, slots=True)
class Supplies:
    """What the controller has to give: switches, servers, and the limits on both. tenants: who may have it."""

    topology: Topology
    limits: Limits
    resources: Resources
    servers: Servers
    tenants: Tenants


class Planner(ABC):
    """Plans jobs of one kind. place: what such a job is on, for messages."""

    place: str

    def __init__(self, supplies: Supplies) -> None:
        self._topology = supplies.topology
        self._limits = supplies.limits
        self._resources = supplies.resources
        self._servers = supplies.servers

    @property
    @abstractmethod
    def most_workers(self) -> int:
        """The maximum number of a job's workers."""

    @abstractmethod
    def plan(self, request: JobRequest, accounts: Sequence[Account], holders: Sequence[Job]) -> Plan:
        """Plan a job: the requested number of slots, or fewer if they are scarce.

        accounts: in which it counts. holders: the jobs that hold resources. Raises InvalidRequestError,
        UnavailableError.
        """

    @abstractmethod
    def frees_room(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        """Whether what the job would take is about to become free."""

    def _switches_of(self, request: JobRequest) -> Sequence[str]:
        """The switch of each rank's host. Raises NotOfferedError."""
        if not self._topology.switches:
            raise NotOfferedError(NO_SWITCH)
        return request.at or [self._topology.switches[0].name] * request.workers

    def _frees_memory(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        return not request.colocated and any(
            placement.servers is not None and placement.servers.holds(placement.key)
            for placement in _of_ended(holders)
        )


class LeasedPlanner(Planner):
    """Plans a tree, and slots that the job leases in each of its switches."""

    place = "switches"

    @property
    def most_workers(self) -> int:
        return self._limits.max_workers

    def plan(self, request: JobRequest, accounts: Sequence[Account], holders: Sequence[Job]) -> Plan:
        at = self._switches_of(request)
        share = self._resources.take(
            at, request.slots, request.owner, accounts, holding(holders), exact=request.exact
        )
        return Plan(slots=share.slots, tree=share.tree, leases=share.leases)

    def frees_room(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        return any(
            placement.aggregation == LEASED and not self._resources.away(placement.tree)
            for placement in _of_ended(holders)
        )


class SharedPlanner(Planner):
    """Plans a tree whose switches combine what they can in slots that jobs share, and servers."""

    place = "shared slots"

    @property
    def most_workers(self) -> int:
        return min(self._limits.max_workers, MOST_RANKS)

    def plan(self, request: JobRequest, accounts: Sequence[Account], holders: Sequence[Job]) -> Plan:
        tree = self._resources.share(self._switches_of(request))
        if request.colocated:
            share = self._servers.colocated(request.workers, request.slots, POWERS_OF_TWO)
        else:
            share = self._servers.choose(
                request.slots,
                request.creator,
                accounts,
                POWERS_OF_TWO,
                lambda server: self._topology.reaches(tree.by_name, server.ip),
            )
        self._resources.check_tables(tree, share.count, request.creator, holding(holders))
        return Plan(slots=share.slots, tree=tree, servers=share)

    def frees_room(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        return self._frees_memory(request, holders)


class ServerPlanner(Planner):
    """Plans servers alone."""

    place = "servers"
    most_workers = MOST_RANKS

    def plan(self, request: JobRequest, accounts: Sequence[Account], holders: Sequence[Job]) -> Plan:
        if request.colocated:
            # Divided among more servers, the same slots would make shorter messages.
            servers = max(_SERVERS_OF_SLOTS, 1 << (request.workers - 1).bit_length())
            slots = request.slots if request.exact else request.slots * servers // _SERVERS_OF_SLOTS
            share = self._servers.colocated(request.workers, slots)
        else:
            share = self._servers.choose(request.slots, request.creator, accounts)
        return Plan(slots=share.slots, servers=share)

    def frees_room(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        return self._frees_memory(request, holders)


class InnerPlanner(Planner):
    """Plans jobs whose ranks sum themselves: they need nothing of the controller's."""

    place = "the inner group"

    @property
    def most_workers(self) -> int:
        return self._limits.max_workers

    def plan(self, request: JobRequest, accounts: Sequence[Account], holders: Sequence[Job]) -> Plan:
        return Plan(slots=request.slots)

    def frees_room(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        return False


class Planners:
    """The planners by what sums, and the limits and quotas that all of them observe.

    classes: by name.
    """

    def __init__(self, supplies: Supplies) -> None:
        self.classes = known_classes(supplies.limits.classes)
        self._supplies = supplies
        self._by_aggregation: Mapping[Summing, Planner] = {
            LEASED: LeasedPlanner(supplies),
            SHARED: SharedPlanner(supplies),
            SERVER: ServerPlanner(supplies),
            INNER: InnerPlanner(supplies),
        }

    def plan(self, request: JobRequest, holders: Sequence[Job], moving: Job | None = None) -> Plan:
        """Plan a job. Raises InvalidRequestError, UnavailableError.

        holders: the jobs that hold resources. moving: the job itself, if it is to have another place: its class and its
        tenant have admitted it already. What it holds counts until it is removed there.
        """
        planner = self._by_aggregation[request.aggregation]
        if not 1 <= request.workers <= planner.most_workers:
            raise InvalidRequestError(
                f"workers is {request.workers}; a job on {planner.place} has 1 to {planner.most_workers}"
            )
        if request.slots < FEWEST_SLOTS or request.slots & (request.slots - 1):
            raise InvalidRequestError(
                f"slots is {request.slots}; it must be a power of two, at least {FEWEST_SLOTS}"
            )
        if moving is None:
            self._check_owner(request.owner)
        accounts = self.accounts_of(request.owner)
        for account in accounts:
            if request.aggregation != INNER:  # which takes nothing that a quota is about
                account.check(request.aggregation, request.priority)
            if moving is None:
                account.check_number(len(_of(account, holders)))
        if uses_servers(request.aggregation):
            self._check_server_jobs(request, [job for job in holders if job is not moving])
        return planner.plan(request, accounts, holders)

    def frees_room(self, request: JobRequest, holders: Sequence[Job]) -> bool:
        """Whether what the job needs is about to become free."""
        return any(
            self._frees_place(account, holders) for account in self.accounts_of(request.owner)
        ) or self._by_aggregation[request.aggregation].frees_room(request, holders)

    def held_by(self, account: Account, holders: Sequence[Job]) -> Held:
        """What the jobs of an account hold."""
        jobs = _of(account, holders)
        slots = {name: leased_slots(name, holding(jobs)) for name in self._supplies.resources.pools}
        return Held(len(jobs), slots, self._supplies.servers.held(account))

    def accounts_of(self, owner: Owner) -> list[Account]:
        """The accounts in which a job counts. A class or a tenant that there is no more has none."""
        found = (self.classes.get(owner.job_class), self._supplies.tenants.by_name.get(owner.tenant or ""))
        return [account for account in found if account is not None]

    def _check_owner(self, owner: Owner) -> None:
        """Check that there may be a further job of an owner. Raises InvalidRequestError, ForbiddenError."""
        if owner.tenant is not None:
            tenant = self._supplies.tenants.by_name.get(owner.tenant)
            if tenant is None:
                raise ForbiddenError(f"{owner.tenant} is no longer a tenant of this controller (--tenants)")
            tenant.check_class(owner.job_class)
        if owner.job_class not in self.classes:
            raise InvalidRequestError(
                f"job_class is {owner.job_class}; the classes of this controller are {', '.join(self.classes)} "
                "(--job-class)"
            )

    def _check_server_jobs(self, request: JobRequest, holders: Sequence[Job]) -> None:
        """Check that there may be one more job with servers, with so many ranks. Raises UnavailableError."""
        limits, creator = self._supplies.limits, request.creator
        jobs = [job for job in holders if job.placement.servers is not None]
        own = [job for job in jobs if job.owner.creator == creator]
        for what, most, held, held_by_host, more in (
            ("jobs", limits.max_server_jobs, len(jobs), len(own), 1),
            ("ranks", limits.max_server_ranks, _ranks(jobs), _ranks(own), request.workers),
        ):
            share = int(limits.host_share * most)
            if held + more > most:
                raise UnavailableError(
                    f"there are {held} {what} on servers, the limit is {most}; wait until a job ends"
                )
            if creator is not None and held_by_host + more > share:
                raise UnavailableError(
                    f"the host {creator} has {held_by_host} {what} on servers, the limit for one host is {share}; wait "
                    "until a job ends"
                )

    def _frees_place(self, account: Account, holders: Sequence[Job]) -> bool:
        """Whether an account that has all jobs of its quota is about to have fewer."""
        if account.jobs is None:
            return False
        held = _of(account, holders)
        leaving = sum(job.ended and not self._supplies.resources.away(job.placement.tree) for job in held)
        return len(held) - leaving < account.jobs <= len(held)


def _of(account: Account, jobs: Iterable[Job]) -> list[Job]:
    return [job for job in jobs if account.owns(job.owner)]


def _of_ended(holders: Sequence[Job]) -> Iterable[Placement]:
    return holding(job for job in holders if job.ended)


def _ranks(jobs: Iterable[Job]) -> int:
    return sum(job.workers for job in jobs)
