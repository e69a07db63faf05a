# SPDX-License-Identifier: Apache-2.0
"""What the operator sets for all jobs: timers, and limits on the use of switches and servers."""

from dataclasses import dataclass

from inagg_contract.documents import MOST_WORKERS
from inagg_controller.fabric.tree import MOST_ROOTS
from inagg_controller.jobs.classes import JobClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Timers, in seconds. The first six are passed to the workers (docs/protocol.md, 6.1).

    join_timeout_s: how long a job waits for its ranks. keep_s: how long an ended job is remembered. return_after_s: how
    long the first way of a job must be there again before the job returns.
    """

    rto_initial_s: float = 0.1
    rto_min_s: float = 0.001
    rto_max_s: float = 1.0
    give_up_s: float = 120.0
    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 8.0
    join_timeout_s: float = 300.0
    keep_s: float = 600.0
    return_after_s: float = 10.0


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
