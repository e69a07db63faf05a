# SPDX-License-Identifier: Apache-2.0
"""A job, what it may have, and what it asks of the switch: the values that table.py works on."""

from dataclasses import dataclass, field

from inagg_controller.jobs.calls import Comparison, Mismatch, Wait
from inagg_controller.jobs.leases import Lease
from inagg_controller.switch.entries import JobEntries, Member
from inagg_controller.tokens import new_secret

LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Timers, in seconds. The first six are handed to the workers (docs/protocol.md, 6.1).

    join_timeout_s: how long a job waits for its ranks. keep_s: how long an ended job is remembered.
    """

    rto_initial_s: float = 0.1
    rto_min_s: float = 0.01
    rto_max_s: float = 1.0
    give_up_s: float = 120.0
    heartbeat_interval_s: float = 0.5
    heartbeat_timeout_s: float = 30.0
    join_timeout_s: float = 300.0
    keep_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What there is to share out.

    max_members: workers that fit into the switch's tables. max_slots: most slots one job gets. max_ended: most
    ended jobs that are remembered. host_share: the part of slots and workers that one host's jobs may have together.
    """

    slot_versions: int
    max_workers: int = 64
    max_members: int = 4096
    max_slots: int = 1024
    max_ended: int = 1000
    host_share: float = 0.75


@dataclass(frozen=True, slots=True)
class Install:
    """Put a job's entries into the switch."""

    job: int
    entries: JobEntries
    generation: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a job's entries out of the switch; some or all of them may not be there."""

    job: int
    entries: JobEntries
    generation: int


Effect = Install | Remove


@dataclass(slots=True, kw_only=True)
class Job:
    """One job. `entries` is what the switch has, or is being told to have or to give up; None for nothing.

    attended: rank -> connections by which its process is seen to live. vanished: rank -> when the last one ended.
    secret: whoever has it may act for the job. creator: the host that asked for it, None for the operator.
    """

    id: int
    name: str
    workers: int
    slots: int
    epoch: int
    group: int
    lease: Lease
    created_at: float
    comparison: Comparison
    waits: dict[int, Wait] = field(default_factory=dict)
    mismatch: Mismatch | None = None
    state: str = "joining"
    reason: str | None = None
    members: dict[int, Member] = field(default_factory=dict)
    last_seen: dict[int, float] = field(default_factory=dict)
    beating: set[int] = field(default_factory=set)
    attended: dict[int, int] = field(default_factory=dict)
    vanished: dict[int, float] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    entries: JobEntries | None = None
    removing: bool = False
    retry_at: float | None = None
    ended_at: float | None = None
    holds_resources: bool = True
    creator: str | None = None
    secret: str = field(default_factory=new_secret, repr=False)

    @property
    def ended(self) -> bool:
        """True once the job is failed or finished; it never changes state again."""
        return self.state in ("failed", "finished")

    @property
    def gone(self) -> dict[int, str]:
        """What a worker still in the job must know: rank -> why it is gone, ranks that have left included."""
        if self.state == "finished":
            return {}
        return {**dict.fromkeys(sorted(self.left), LEFT), **self.lost}
