# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs of `inagg bench jobs`: all jobs at the same time, under one policy after another.

First, job 0 alone measures the time of an undisturbed all-reduce, from which the schedules are made.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inagg_contract.aggregation import LEASED
from inagg_contract.documents import JobStatus
from inagg_testbed.bench.jobs.figures import JobOutcome, PhaseTime, RunOutcome, make_rows
from inagg_testbed.bench.jobs.plan import QUEUED, JobsBench, Task
from inagg_testbed.bench.jobs.schedule import Phase, draw_schedule, undisturbed_s
from inagg_testbed.bench.settings import settings_of
from inagg_testbed.errors import WrongResultError
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.workers import Event, WorkerGroup, follow_together

_START_UP_S = 180.0
_SLOWEST = 20  # times the time of an undisturbed job
_WARM_UP, _MEASURED = 3, 10  # all-reduces of the job that is alone

Schedule = tuple[Phase, ...]
OnProgress = Callable[[str, int, int], Any]


def run_jobs(bench: JobsBench, testbed: Testbed, *, on_progress: OnProgress) -> dict[str, Any]:
    """Measure on a testbed that is up, which has `bench.hosts` hosts. Returns settings, rows and runs.

    on_progress gets what runs, and its phases: done and all. Raises LauncherError; WrongResultError for a wrong sum.
    """
    alone = Run(bench, testbed, "alone", LEASED, [(Phase(0.0, _WARM_UP), Phase(0.0, _MEASURED))])
    alone.do(on_progress, bench.seconds)
    sum_s = alone.times(0)[-1].seconds / _MEASURED
    sums_s = [sum_s * (1 + bench.lateness(job)) for job in range(bench.jobs)]
    runs = []
    for number in range(bench.rounds):
        schedules = [
            draw_schedule(
                f"{bench.seed}/{number}/{job}", seconds=bench.seconds, active=bench.active, sum_s=each
            )
            for job, each in enumerate(sums_s)
        ]
        expected_s = max(map(undisturbed_s, schedules, sums_s))
        for policy in bench.policies:
            run = Run(bench, testbed, f"round{number}-{policy}", policy, schedules, late_s=bench.skew * sum_s)
            run.do(on_progress, expected_s)
            runs.append(RunOutcome(round=number, policy=policy, jobs=run.outcomes(sums_s)))
    return {
        "settings": {**settings_of(testbed), **asdict(bench), "slots": testbed.slots(bench.slots)},
        "alone_ms": sum_s * 1e3,
        "rows": make_rows(runs, bench.elements),
        "runs": [run.document(bench.elements) for run in runs],
    }


@dataclass
class _Job:
    """What the ranks of a job have reported, by rank. status: of the job at the controller, None if gloo sums."""

    ready: dict[int, Event] = field(default_factory=dict)
    phases: dict[int, list[Event]] = field(default_factory=dict)
    status: JobStatus | None = None


class Run:
    """One run of as many jobs as there are schedules. late_s: how late a rank of the bench's last job is.

    Jobs join one after another, so that in every run the same jobs find free slots. Then all start at once. Queued jobs
    start when the first has slots; each of the others starts as soon as it has some, and then the next begins to wait.
    """

    def __init__(
        self,
        bench: JobsBench,
        testbed: Testbed,
        label: str,
        policy: str,
        schedules: Sequence[Schedule],
        late_s: float = 0.0,
    ) -> None:
        self._bench, self._testbed, self._label, self._policy = bench, testbed, label, policy
        self._schedules, self._late_s = schedules, late_s
        self._jobs = [_Job() for _ in schedules]
        self._signals = testbed.run.temporary_folder()  # empty files: a job's turn to join, and the start
        self._started = 0.0

    def do(self, on_progress: OnProgress, expected_s: float) -> None:
        """Run all jobs until their schedules are done. expected_s: the time of undisturbed jobs."""

        def on_event(job: int, rank: int, event: Event) -> None:
            self.note(job, rank, event)
            done = sum(len(each.phases.get(0, ())) for each in self._jobs)
            on_progress(self._label, done, sum(map(len, self._schedules)))

        groups = [self._launch(job) for job in range(len(self._jobs))]
        self._turn(0).touch()
        in_turn = len(self._jobs) if self._policy == QUEUED else 1
        timeout_s = _START_UP_S + _SLOWEST * expected_s * in_turn
        follow_together(groups, on_event, timeout_s=timeout_s, watch=self._testbed.services)
        self.look_at_ended_jobs()

    def note(self, job: int, rank: int, event: Event) -> None:
        """Record an event. If all ranks of a job are ready, it is the next job's turn."""
        if event["wrong"]:
            raise WrongResultError(
                f"{self._label}, job {job}, rank {rank}: {event['wrong']} sums are not the exact ones"
            )
        own = self._jobs[job]
        if event["event"] == "phase":
            self.look_at_ended_jobs()  # the controller forgets them after some minutes
            own.phases.setdefault(rank, []).append(event)
            return
        own.ready[rank] = event
        if len(own.ready) < self._bench.workers:
            return
        own.status = self._status(event["job"])
        if job == (0 if self._policy == QUEUED else len(self._jobs) - 1):
            self._started = time.monotonic()
            self._start.touch()
        if job + 1 < len(self._jobs):
            self._turn(job + 1).touch()

    def look_at_ended_jobs(self) -> None:
        """Ask the controller for what those jobs have done whose phases are over."""
        for job, phases in zip(self._jobs, self._schedules, strict=True):
            done = job.phases and all(len(events) == len(phases) for events in job.phases.values())
            if done and job.status is not None and job.status.state != "finished":
                job.status = self._status(job.status.id)

    def times(self, job: int) -> list[PhaseTime]:
        """The times of a job's phases."""
        found = []
        ranks = self._jobs[job].phases.values()
        for phase, events in zip(self._schedules[job], zip(*ranks, strict=True), strict=True):
            began = min(event["began"] for event in events)
            seconds = max(event["ended"] for event in events) - began
            found.append(PhaseTime(sums=phase.sums, began_s=began - self._started, seconds=seconds))
        return found

    def outcomes(self, sums_s: Sequence[float]) -> tuple[JobOutcome, ...]:
        """What the jobs did. sums_s: by job, the time of an all-reduce if the job is undisturbed."""
        return tuple(
            JobOutcome(
                job=number,
                path=job.ready[0]["path"],
                slots=None if job.status is None else job.status.slots,
                sum_s=sums_s[number],
                waited_s=max(0.0, *(event["at"] - self._started for event in job.ready.values())),
                in_switch=_in_switch(job.status),
                phases=tuple(self.times(number)),
            )
            for number, job in enumerate(self._jobs)
        )

    def _launch(self, job: int) -> WorkerGroup:
        task = Task(
            elements=self._bench.elements,
            phases=self._schedules[job],
            late_s=self._late_s if self._bench.lateness(job) else 0.0,
            turn=str(self._turn(job)),
            start=str(self._start),
        )
        command = [sys.executable, "-m", "inagg_testbed.bench.jobs.worker", task.to_json(), "{events}"]
        return self._testbed.launch(
            command,
            name=f"{self._label}-job{job}",
            hosts=self._bench.hosts_of(job),
            slots=self._bench.slots,
            environment=self._bench.environment(self._policy, job),
        )

    def _turn(self, job: int) -> Path:
        return self._signals / f"job{job}"

    @property
    def _start(self) -> Path:
        return self._signals / "start"

    def _status(self, number: int | None) -> JobStatus | None:
        """The job with the controller's number; None without one."""
        assert self._testbed.controller is not None
        return None if number is None else self._testbed.controller.job(number)


def _in_switch(status: JobStatus | None) -> float:
    """The share of an ended job's chunks that the switch has summed wholly. status: None for gloo."""
    if status is None:
        return 0.0
    if status.chunks is None:  # in leased slots
        return 1.0
    counts = status.chunks.model_dump()
    return float(counts["switches"] / sum(counts.values()))
