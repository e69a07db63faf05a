# SPDX-License-Identifier: Apache-2.0
"""The figures of `inagg bench jobs`, computed from what the jobs have measured.

A run is all jobs once under one policy; a round is a run of every policy with the same schedules. Figures:
- time of a phase: from its first all-reduce on the first rank to its last result on the last rank, lateness included.
  Pauses do not count.
- slowdown of a phase: its time divided by that of the same all-reduces of an undisturbed job.
- completion of a job: from the start of all jobs to its last result on the last rank. waited: from the start until it
  had slots; 0 unless it is queued.
- goodput of a job: bytes of the tensors that it has summed, divided by the time that it waited and that of all its
  phases.
- Jain index: (sum of goodputs)^2 / (jobs x sum of their squares): 1 if all jobs have the same, 1/jobs if one has
  everything (Jain, Chiu, Hawe: A Quantitative Measure of Fairness, 1984).
- sums_by: what did the job's sums: switch, server or gloo. slots: those that the controller has granted to the job, in
  the switch or in servers; None with gloo. in_switch: the share of its chunks that the switch has
  summed wholly (docs/protocol.md, 5.7): 1 with leased slots, 0 with servers alone or gloo.
All are medians over the rounds, but times and slowdowns of phases are percentiles over the phases of all rounds. Of a
policy: goodput is the sum of its jobs', "ratios" the medians of the per-round ratios of this to that of each policy,
"completion" the mean of its jobs' and the last, in_switch the mean of its jobs'.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from inagg_contract.aggregation import LEASED
from inagg_testbed.bench.jobs.plan import QUEUED

_FLOAT32_BYTES = 4
_NAMES = {"inner": "gloo"}  # other values of inagg.stats()["path"] are names already


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """A phase that is done. began_s: since the start of the run."""

    sums: int
    began_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """What a job did in a run. path: inagg.stats()["path"]. sum_s: the time of its all-reduce if it is undisturbed."""

    job: int
    path: str
    slots: int | None
    sum_s: float
    waited_s: float
    in_switch: float
    phases: tuple[PhaseTime, ...]

    @property
    def sums_by(self) -> str:
        """What did its sums."""
        return _NAMES.get(self.path, self.path)

    @property
    def slowdowns(self) -> list[float]:
        """By phase."""
        return [phase.seconds / (phase.sums * self.sum_s) for phase in self.phases]

    def goodput(self, elements: int) -> float:
        """Bytes a second."""
        sums = sum(phase.sums for phase in self.phases)
        return (
            sums * elements * _FLOAT32_BYTES / (self.waited_s + sum(phase.seconds for phase in self.phases))
        )

    @property
    def completion_s(self) -> float:
        """Since the start of the run."""
        return max(phase.began_s + phase.seconds for phase in self.phases)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What all jobs did in a run."""

    round: int
    policy: str
    jobs: tuple[JobOutcome, ...]

    def goodputs(self, elements: int) -> list[float]:
        """By job, in bytes a second."""
        return [job.goodput(elements) for job in self.jobs]

    def document(self, elements: int) -> dict[str, Any]:
        """For the JSON file."""
        jobs = [
            {
                "job": job.job,
                "sums_by": job.sums_by,
                "slots": job.slots,
                "goodput_MBps": job.goodput(elements) / 1e6,
                "waited_s": job.waited_s,
                "completion_s": job.completion_s,
                "in_switch": job.in_switch,
                "phases": [
                    {**asdict(phase), "slowdown": slowdown}
                    for phase, slowdown in zip(job.phases, job.slowdowns, strict=True)
                ],
            }
            for job in self.jobs
        ]
        jain = jain_index(self.goodputs(elements))
        return {"round": self.round, "policy": self.policy, "jain": jain, "jobs": jobs}


def jain_index(values: Sequence[float]) -> float:
    """The fairness of shares: 1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def make_rows(runs: Sequence[RunOutcome], elements: int) -> list[dict[str, Any]]:
    """A row for each policy, in the order of the runs; the module docstring defines the fields."""
    by_policy: dict[str, list[RunOutcome]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    totals = {policy: [sum(run.goodputs(elements)) for run in own] for policy, own in by_policy.items()}
    return [_row(policy, own, totals, elements) for policy, own in by_policy.items()]


def _row(
    policy: str, own: Sequence[RunOutcome], totals: Mapping[str, Sequence[float]], elements: int
) -> dict[str, Any]:
    completions = [[job.completion_s for job in run.jobs] for run in own]
    return {
        "policy": policy,
        "rounds": len(own),
        "goodput_MBps": statistics.median(totals[policy]) / 1e6,
        "ratios": {other: _median_ratio(totals[policy], theirs) for other, theirs in totals.items()},
        "jain": statistics.median(jain_index(run.goodputs(elements)) for run in own),
        "completion_s": {
            "mean": statistics.median(map(statistics.mean, completions)),
            "last": statistics.median(map(max, completions)),
        },
        "in_switch": statistics.median(statistics.mean(job.in_switch for job in run.jobs) for run in own),
        **_times([job for run in own for job in run.jobs]),
        "jobs": [_job_row(each, elements) for each in zip(*(run.jobs for run in own), strict=True)],
    }


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _job_row(rounds: Sequence[JobOutcome], elements: int) -> dict[str, Any]:
    """The figures of one job; sums_by and slots by round."""
    return {
        "job": rounds[0].job,
        "sums_by": [one.sums_by for one in rounds],
        "slots": [one.slots for one in rounds],
        "goodput_MBps": statistics.median(one.goodput(elements) for one in rounds) / 1e6,
        "waited_s": statistics.median(one.waited_s for one in rounds),
        "completion_s": statistics.median(one.completion_s for one in rounds),
        "in_switch": statistics.median(one.in_switch for one in rounds),
        **_times(rounds),
    }


def _times(jobs: Sequence[JobOutcome]) -> dict[str, dict[str, float]]:
    return {
        "phase_s": _percentiles([phase.seconds for job in jobs for phase in job.phases]),
        "slowdown": _percentiles([slowdown for job in jobs for slowdown in job.slowdowns]),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {"p50": statistics.median(values), "p95": float(np.percentile(values, 95))}


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table by policy. Each is compared with those that lease slots; without them, the first."""
    policies = [row["policy"] for row in rows]
    references = [policy for policy in policies if policy in (LEASED, QUEUED)] or policies[:1]
    compared = [f"vs {policy}" for policy in references]
    header = ["policy", "MB/s", *compared, "Jain", "in switch", "mean s", "last s", *_SLOWDOWNS]
    body = [
        [
            row["policy"],
            f"{row['goodput_MBps']:.4g}",
            *(f"{row['ratios'][policy]:.2f}x" for policy in references),
            f"{row['jain']:.3f}",
            f"{row['in_switch']:.0%}",
            *(f"{seconds:.1f}" for seconds in row["completion_s"].values()),
            *_slowdowns_of(row),
        ]
        for row in rows
    ]
    return header, body


def jobs_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table by policy and job."""
    header = ["policy, job", "sums by", "slots", "MB/s", "in switch", "waited s", "done s", *_SLOWDOWNS]
    body = [
        [
            f"{row['policy']}, {job['job']}",
            _each(job["sums_by"]),
            _each(job["slots"]),
            f"{job['goodput_MBps']:.4g}",
            f"{job['in_switch']:.0%}",
            f"{job['waited_s']:.1f}",
            f"{job['completion_s']:.1f}",
            *_slowdowns_of(job),
        ]
        for row in rows
        for job in row["jobs"]
    ]
    return header, body


_SLOWDOWNS = ("slow p50", "slow p95")


def _slowdowns_of(row: dict[str, Any]) -> list[str]:
    return [f"{slowdown:.2f}x" for slowdown in row["slowdown"].values()]


def _each(by_round: Sequence[Any]) -> str:
    """The values of the rounds, each once."""
    return "/".join("-" if value is None else str(value) for value in dict.fromkeys(by_round))


def title(figures: dict[str, Any]) -> str:
    """Title of the tables."""
    bench = figures["settings"]
    late = (
        f"; a rank of job {bench['jobs'] - 1} is {bench['skew']:g} all-reduces late" if bench["skew"] else ""
    )
    pool = "all slots" if bench["pool"] is None else f"{bench['pool']} slots"
    return (
        f"{bench['jobs']} jobs of {bench['workers']} workers, all-reduces of {bench['elements']:,} float32"
        f" ({_FLOAT32_BYTES * bench['elements']:,} bytes), {bench['active']:.0%} of the time{late}\n"
        f"{pool} to lease, {bench['slots']} asked for by each job; an all-reduce of a job alone takes"
        f" {figures['alone_ms']:.1f} ms; rounds: {bench['rounds']}"
    )
