# SPDX-License-Identifier: Apache-2.0
"""The figures of `inagg bench jobs`, computed from what the jobs have measured.

A run is all jobs once under one policy; a round is a run of every policy with the same schedules. Figures:
- time of a phase: from its first all-reduce on the first rank to its last result on the last rank, lateness included.
  Pauses do not count.
- slowdown of a phase: its time divided by that of the same all-reduces of an undisturbed job.
- goodput of a job: bytes of the tensors that it has summed, divided by the time of all its phases.
- Jain index: (sum of goodputs)^2 / (jobs x sum of their squares): 1 if all jobs have the same, 1/jobs if one has
  everything (Jain, Chiu, Hawe: A Quantitative Measure of Fairness, 1984).
- sums_by: what did the job's sums: switch, server or gloo. slots: those that the controller has granted to the job, in
  the switch or in servers; None with gloo.
Goodputs and Jain indices are medians over the rounds. Times and slowdowns are percentiles over the phases of all
rounds. "ratio" is the median of the per-round ratios of the sum of goodputs to that of the first policy.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
        return sums * elements * _FLOAT32_BYTES / sum(phase.seconds for phase in self.phases)


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
                "phases": [
                    {**asdict(phase), "slowdown": slowdown}
                    for phase, slowdown in zip(job.phases, job.slowdowns, strict=True)
                ],
            }
            for job in self.jobs
        ]
        return {"round": self.round, "policy": self.policy, "jobs": jobs}


def jain_index(values: Sequence[float]) -> float:
    """The fairness of shares: 1 if all are equal, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def make_rows(runs: Sequence[RunOutcome], elements: int) -> list[dict[str, Any]]:
    """A row for each policy, in the order of the runs; the module docstring defines the fields."""
    by_policy: dict[str, list[RunOutcome]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    first = next(iter(by_policy.values()))
    return [_row(policy, own, first, elements) for policy, own in by_policy.items()]


def _row(
    policy: str, own: Sequence[RunOutcome], first: Sequence[RunOutcome], elements: int
) -> dict[str, Any]:
    totals = [sum(run.goodputs(elements)) for run in own]
    reference = [sum(run.goodputs(elements)) for run in first]
    return {
        "policy": policy,
        "rounds": len(own),
        "goodput_MBps": statistics.median(totals) / 1e6,
        "ratio": statistics.median(ours / theirs for ours, theirs in zip(totals, reference, strict=True)),
        "jain": statistics.median(jain_index(run.goodputs(elements)) for run in own),
        **_times([job for run in own for job in run.jobs]),
        "jobs": [_job_row(each, elements) for each in zip(*(run.jobs for run in own), strict=True)],
    }


def _job_row(rounds: Sequence[JobOutcome], elements: int) -> dict[str, Any]:
    """The figures of one job; sums_by and slots by round."""
    return {
        "job": rounds[0].job,
        "sums_by": [one.sums_by for one in rounds],
        "slots": [one.slots for one in rounds],
        "goodput_MBps": statistics.median(one.goodput(elements) for one in rounds) / 1e6,
        **_times(rounds),
    }


def _times(jobs: Sequence[JobOutcome]) -> dict[str, dict[str, float]]:
    return {
        "phase_s": _percentiles([phase.seconds for job in jobs for phase in job.phases]),
        "slowdown": _percentiles([slowdown for job in jobs for slowdown in job.slowdowns]),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {"p50": statistics.median(values), "p95": float(np.percentile(values, 95))}


_TIMES = ("phase p50 s", "phase p95 s", "slowdown p50", "slowdown p95")


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table by policy."""
    header = ["policy", "goodputs MB/s", f"vs {rows[0]['policy']}", "Jain index", *_TIMES]
    body = [
        [
            row["policy"],
            f"{row['goodput_MBps']:.4g}",
            f"{row['ratio']:.2f}x",
            f"{row['jain']:.3f}",
            *_times_of(row),
        ]
        for row in rows
    ]
    return header, body


def jobs_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table by policy and job."""
    header = ["policy, job", "sums by", "slots", "goodput MB/s", *_TIMES]
    body = [
        [
            f"{row['policy']}, {job['job']}",
            _each(job["sums_by"]),
            _each(job["slots"]),
            f"{job['goodput_MBps']:.4g}",
            *_times_of(job),
        ]
        for row in rows
        for job in row["jobs"]
    ]
    return header, body


def _times_of(row: dict[str, Any]) -> list[str]:
    seconds, slowdown = row["phase_s"], row["slowdown"]
    return [*(f"{seconds[name]:.2f}" for name in seconds), *(f"{slowdown[name]:.2f}x" for name in slowdown)]


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
