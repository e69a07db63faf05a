# SPDX-License-Identifier: Apache-2.0
"""The values that the job table works on: a job, its policy and limits, and effects on the switches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inagg_contract.addresses import format_ip
from inagg_contract.documents import DEFAULT_JOB_CLASS, MOST_WORKERS, Aggregation
from inagg_contract.ranks import name_job, name_ranks, place
from inagg_controller.fabric.tree import MOST_ROOTS, Tree
from inagg_controller.jobs.calls import Comparison, Mismatch, Wait
from inagg_controller.jobs.classes import JobClass
from inagg_controller.jobs.leases import Lease
from inagg_controller.jobs.servers import JobKey, ServerShare, Summed, Worker
from inagg_controller.switch.entries import JobEntries, Member, MulticastGroup
from inagg_controller.tokens import new_secret

LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Timers, in seconds. The first six are passed to the workers (docs/protocol.md, 6.1).

    join_timeout_s: how long a job waits for its ranks. keep_s: how long an ended job is remembered.
    """

    rto_initial_s: float = 0.1
    rto_min_s: float = 0.001
    rto_max_s: float = 1.0
    give_up_s: float = 120.0
    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 8.0
    join_timeout_s: float = 300.0
    keep_s: float = 600.0


# Some RTTs of a loaded link: a sum that still waits then has lost a worker's packet, and the servers get that one
# alone. A sum that is cut off too early costs the servers more packets.
DEFAULT_SHARED_EXPIRY_US = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resources of each switch, and limits on the use of switches and servers.

    shared_slots: those of the slot versions that are not leased but shared, the last ones: a power of two, or 0.
    shared_expiry_us: the age from which any job may take a shared slot. job_members: members that a switch can sum for
    in one job. max_members, max_above: members, and switches and servers above, of all jobs that fit into a switch's
    tables. max_shared_jobs: jobs on shared slots that do. max_slots, max_roots: maximum numbers for a job.
    max_server_jobs, max_server_ranks: maximum numbers of jobs with servers and of their ranks. max_ended,
    max_ended_ranks: the same of ended jobs that are remembered. host_share: the share of a switch's slots and table
    entries, of a server's memory, and of these numbers, that the jobs of one host may have together. job_share: the
    share of the free slots that a job gets at most if it asks for many. classes: with quotas for the jobs of each.
    """

    slot_versions: int
    shared_slots: int = 0
    shared_expiry_us: int = DEFAULT_SHARED_EXPIRY_US
    max_workers: int = MOST_WORKERS
    job_members: int = 64
    max_members: int = 4096
    max_above: int = 4096
    max_shared_jobs: int = 4096
    max_slots: int = 1024
    max_roots: int = MOST_ROOTS
    max_server_jobs: int = 4096
    max_server_ranks: int = 65536
    max_ended: int = 1000
    max_ended_ranks: int = 65536
    host_share: float = 0.75
    job_share: float = 0.25
    classes: tuple[JobClass, ...] = ()

    def __post_init__(self) -> None:
        """Check the shared slots. Raises ValueError."""
        if (
            self.shared_slots & (self.shared_slots - 1)
            or not 0 <= 2 * self.shared_slots <= self.slot_versions
        ):
            raise ValueError(
                f"shared_slots is {self.shared_slots}; it must be 0 or a power of two, at most half of "
                f"{self.slot_versions} slot versions"
            )

    @property
    def leasable(self) -> int:
        """The slot versions that can be leased."""
        return self.slot_versions - self.shared_slots


@dataclass(frozen=True, slots=True)
class Install:
    """Insert a job's entries into its switches, by name, in this order."""

    job: int
    entries: Mapping[str, JobEntries]
    generation: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a job's entries from its switches, in reverse order; entries may be missing."""

    job: int
    entries: Mapping[str, JobEntries]
    generation: int


@dataclass(frozen=True, slots=True)
class Regroup:
    """Change the copies that the switches make of a job's results."""

    job: int
    groups: Mapping[str, MulticastGroup]
    generation: int


Effect = Install | Remove | Regroup

# A worker that has registered, in a job on switches or on servers alone.
Registered = Member | Worker


@dataclass(slots=True, kw_only=True)
class Job:
    """One job.

    tree, leases, group: its switches, the slots that each of them leases to it, and its multicast group there.
    servers: what it has of servers. A job on servers alone has no switches and no group; one on shared slots has
    switches, but no leases. priority: of its packets, for shared slots. job_class: the name of its class.
    generation: how often it has lost a switch: the outcome of an effect of an earlier generation is void.
    entries: its entries, by switch, that are in the switches or are being inserted or removed; None if there are none.
    installed: whether all of them are in the switches, and no change of them is under way.
    results_ip: the multicast address of its results; None: each worker gets them at its own.
    heard_at: when anything was last heard of any of its ranks. heard_since: since when, without a long pause.
    unsteady: ranks whose beats pause while their program is busy.
    attended: rank -> presence connections of its process. vanished: rank -> when the last of them ended.
    secret: permits requests about the job. creator: the host that created the job, None for the operator.
    """

    id: int
    name: str
    workers: int
    slots: int
    epoch: int
    group: int | None
    results_ip: int | None
    tree: Tree
    leases: Mapping[str, Lease]
    created_at: float
    comparison: Comparison
    servers: ServerShare | None = None
    priority: int = 0
    job_class: str = DEFAULT_JOB_CLASS
    waits: dict[int, Wait] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    state: str = "joining"
    reason: str | None = None
    members: dict[int, Registered] = field(default_factory=dict)
    last_seen: dict[int, float] = field(default_factory=dict)
    beating: set[int] = field(default_factory=set)
    heard_at: float = 0.0
    heard_since: float = 0.0
    unsteady: set[int] = field(default_factory=set)
    attended: dict[int, int] = field(default_factory=dict)
    vanished: dict[int, float] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    entries: Mapping[str, JobEntries] | None = None
    installed: bool = False
    generation: int = 0
    removing: bool = False
    retry_at: float | None = None
    ended_at: float | None = None
    holds_resources: bool = True
    creator: str | None = None
    secret: str = field(default_factory=new_secret, repr=False)

    @property
    def title(self) -> str:
        """Its number and name, for messages."""
        return name_job(self.id, self.name)

    def titles(self, ranks: Sequence[int]) -> str:
        """Ranks with their hosts and addresses, as far as they have registered, for messages."""
        there = {rank: self.members[rank] for rank in ranks if rank in self.members}
        places = {rank: place(member.host, format_ip(member.ip)) for rank, member in there.items()}
        return name_ranks(ranks, places)

    @property
    def ended(self) -> bool:
        """True if the job is failed or finished, which are final states."""
        return self.state in ("failed", "finished")

    @property
    def key(self) -> JobKey:
        """Its name at servers."""
        return JobKey(self.id, self.epoch)

    @property
    def aggregation(self) -> Aggregation:
        """What sums for it, as the documents name it."""
        if self.servers is None:
            return "leased"
        return "shared" if self.tree.switches else "server"

    @property
    def summed(self) -> Summed | None:
        """What its servers have summed; None without servers."""
        return None if self.servers is None else self.servers.summed

    @property
    def complete(self) -> bool:
        """True if all ranks have registered."""
        return len(self.members) == self.workers

    @property
    def placed(self) -> bool:
        """True if its switches or servers may have it: a rank that leaves now cannot be replaced."""
        return self.entries is not None or (self.servers is not None and bool(self.servers.seats))

    @property
    def ready(self) -> bool:
        """True if its switches have its entries, and its servers serve it."""
        switches = self.installed or not self.tree.switches
        return switches and (self.servers is None or self.servers.complete)

    @property
    def gone(self) -> dict[int, str]:
        """Rank -> why it is gone, for the workers that remain; ranks that have left included."""
        if self.state == "finished":
            return {}
        return {**dict.fromkeys(sorted(self.left), LEFT), **self.lost}
