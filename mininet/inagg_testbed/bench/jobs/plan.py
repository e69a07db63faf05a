# SPDX-License-Identifier: Apache-2.0
"""What `inagg bench jobs` measures, and what its workers do. Without torch, as the launcher is."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inagg_contract.aggregation import COLOCATED, LEASED, SERVER, SHARED
from inagg_contract.documents import DEFAULT_JOB_CLASS
from inagg_testbed.bench.jobs.schedule import Phase
from inagg_testbed.bench.plan import check_slots
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import MAX_HOSTS

# Policies that are not kinds of aggregation.
QUEUED, PRIORITY = "queued", "priority"
# The options of the jobs' groups (docs/options.md), by policy. A job that gets no slots sums with gloo if leased, and
# waits until another ends if queued. With priority the first job takes slots from the others.
POLICIES: Mapping[str, Mapping[str, str]] = {
    LEASED: {"INAGG_AGGREGATION": LEASED, "INAGG_FALLBACK": "inner"},
    QUEUED: {
        "INAGG_AGGREGATION": LEASED,
        "INAGG_WAIT_S": "1e6",
    },  # the launcher ends a run that takes too long
    SHARED: {"INAGG_AGGREGATION": SHARED, "INAGG_SERVERS": COLOCATED},
    PRIORITY: {"INAGG_AGGREGATION": SHARED, "INAGG_SERVERS": COLOCATED},
    SERVER: {"INAGG_AGGREGATION": SERVER, "INAGG_SERVERS": COLOCATED},
}
# Those of all policies, whatever the user's environment says.
_OWN_OPTIONS = {
    "INAGG_LANE_BITS": "32",
    "INAGG_FALLBACK": "error",
    "INAGG_WAIT_S": "0",
    "INAGG_PRIORITY": "0",
    "INAGG_JOB_CLASS": DEFAULT_JOB_CLASS,
}


@dataclass(frozen=True, kw_only=True)
class JobsBench:
    """What to measure.

    workers: of each job. active: the part of the time in which an undisturbed job sums. seconds: how long an
    undisturbed job takes. skew: how late the last rank of the last job is for each all-reduce, in times of an
    all-reduce. pool: slots that the jobs may lease; None: all of the program's. slots: that each job asks for; None:
    the number that the links need.
    """

    jobs: int
    workers: int
    elements: int
    policies: tuple[str, ...] = tuple(POLICIES)
    active: float = 0.5
    seconds: float = 20.0
    skew: float = 0.0
    rounds: int = 1
    seed: int = 0
    pool: int | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.jobs < 1 or self.workers < 2:
            raise ConfigurationError(
                f"{self.jobs} jobs of {self.workers} workers: want 1 job or more, of 2 workers or more"
            )
        if self.hosts > MAX_HOSTS:
            raise ConfigurationError(
                f"{self.jobs} jobs of {self.workers} workers need {self.hosts} hosts; a testbed has at most {MAX_HOSTS}"
            )
        unknown = [policy for policy in self.policies if policy not in POLICIES]
        if unknown or not self.policies:
            raise ConfigurationError(f"policy {', '.join(unknown)!r}: want {' or '.join(POLICIES)}")
        if len(set(self.policies)) < len(self.policies):
            raise ConfigurationError(f"policies {', '.join(self.policies)}: a policy is given twice")
        if not 0 < self.active <= 1:
            raise ConfigurationError(
                f"jobs that sum {self.active:g} of the time: want more than 0, at most 1"
            )
        if not 0 < self.seconds < math.inf:
            raise ConfigurationError(f"a run of {self.seconds:g} s: want more than 0")
        if not 0 <= self.skew < math.inf:
            raise ConfigurationError(f"a skew of {self.skew:g}: want 0 or more")
        check_slots(self.slots)

    @property
    def hosts(self) -> int:
        """Number of hosts that the testbed needs."""
        return self.jobs * self.workers

    def hosts_of(self, job: int) -> range:
        """The numbers of a job's hosts."""
        first = 1 + job * self.workers
        return range(first, first + self.workers)

    @staticmethod
    def environment(policy: str, job: int) -> dict[str, str]:
        """The options of a job's group, as variables."""
        first = {"INAGG_PRIORITY": "1"} if policy == PRIORITY and job == 0 else {}
        return {**_OWN_OPTIONS, **POLICIES[policy], **first}

    def lateness(self, job: int) -> float:
        """How late the job's last rank is for each all-reduce, in times of an all-reduce."""
        return self.skew if job == self.jobs - 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker of a job does.

    late_s: how long its last rank sleeps before each all-reduce. turn, start: files; the job joins when the first
    exists, and begins its first phase when the second does.
    """

    elements: int
    phases: tuple[Phase, ...]
    late_s: float
    turn: str
    start: str

    def to_json(self) -> str:
        """JSON for a worker's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """The inverse of to_json."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "phases": tuple(Phase(**phase) for phase in values["phases"])})
