# SPDX-License-Identifier: Apache-2.0
"""Runs one case on a testbed of its own, and judges it."""

import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from inagg_testbed.errors import LauncherError
from inagg_testbed.network.fabric import CONTROL_PORT, SwitchPort
from inagg_testbed.network.lifecycle import tagged_processes
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.processes import describe_exit
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event, WorkerGroup
from tests.chaos.cases import CUT_S, RANKS, STOP_S, Case, promise
from tests.forks import OF_COMMANDS, OF_RANKS, forked_processes, interpreter

SLACK_S = 8.0  # for a busy machine
_JOIN_S, _END_S = 120.0, 150.0
# After "here" the ranks are in the phase, but for those that have still to submit their sums.
_INTO_S = {"exponents": 0.3, "data": 0.3, "leave": 0.1}


@dataclass
class Outcome:
    """One row of the table.

    ended: "went on", "failed", or "some failed". seconds: from the beginning of the fault until all other ranks had
    ended; if they went on, for how long they waited for a sum, at most. noticed_s: until the first rank has learned
    that its way is lost; None if none was. to: the ways after that. sums: those that were compared. errors: what ranks
    said. broken: what should not have been.
    """

    case: Case
    ended: str = ""
    seconds: float = 0.0
    noticed_s: float | None = None
    to: list[str] = field(default_factory=list)
    sums: int = 0
    errors: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    logs: str = ""


class Job:
    """The ranks of a case, seen from the launcher."""

    def __init__(self, testbed: Testbed, when: str, environment: Mapping[str, str]) -> None:
        self._folder = testbed.results
        command = [sys.executable, "-m", "tests.chaos.worker", "{events}", str(self._folder), when]
        self.group: WorkerGroup = testbed.launch(
            command, name="chaos", workers=RANKS, environment=environment
        )
        self.events: list[list[Event]] = [[] for _ in range(RANKS)]
        self.ended_at: dict[int, float] = {}

    def look(self) -> None:
        """Read events; note which ranks have ended, and when."""
        for worker, events in zip(self.group.workers, self.events, strict=True):
            if worker.rank not in self.ended_at and worker.process.poll() is not None:
                self.ended_at[worker.rank] = time.time()
            events.extend(worker.events.read())

    def wait(self, condition: Callable[[], bool], what: str, most_s: float) -> None:
        """Look until `condition()`. Raises TimeoutError."""
        deadline = time.monotonic() + most_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {most_s:g} s: {what}")
            time.sleep(0.01)
            self.look()

    def watch(self, seconds: float) -> None:
        """Look for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.01)
            self.look()

    def is_here(self) -> bool:
        """Whether all ranks have said that the phase has come. Raises TimeoutError if one has ended."""
        if self.ended_at:
            raise TimeoutError(f"ranks {sorted(self.ended_at)} ended before the phase: {self.errors()}")
        return all(any(event["event"] == "here" for event in events) for events in self.events)

    def go(self) -> None:
        """Let ranks go on that wait in the phase."""
        (self._folder / "go").touch()

    def sums(self, rank: int) -> dict[int, Event]:
        """A rank's events by sum."""
        return {event["number"]: event for event in self.events[rank] if event["event"] == "sum"}

    def errors(self) -> list[str]:
        """What the ranks have reported, each once."""
        found = [worker.process.reported_error() for worker in self.group.workers]
        return list(dict.fromkeys(filter(None, found)))


def outcomes(
    chosen: Sequence[Case], folder: Path, right: Mapping[int, str], at_once: int
) -> Iterator[Outcome]:
    """The cases, some at the same time, each on its own testbed."""
    pool = ProcessPoolExecutor(at_once, mp_context=get_context("spawn"))
    try:
        for done in as_completed([pool.submit(_run_forked, case, folder, right) for case in chosen]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _run_forked(case: Case, folder: Path, right: Mapping[int, str]) -> Outcome:
    # Without the warnings about counters of a switch that was killed.
    logging.getLogger("inagg_testbed").setLevel(logging.ERROR)
    with forked_processes(interpreter(OF_RANKS), interpreter(OF_COMMANDS)):
        try:
            return run(case, folder, right)
        except LauncherError as error:
            return Outcome(case, broken=[f"it could not be tried: {error}"])


def run(case: Case, folder: Path, right: Mapping[int, str]) -> Outcome:
    """Run a case. right: the digest after each sum of an undisturbed run."""
    outcome = Outcome(case)
    with open_testbed(
        fabric=case.fabric,
        servers=case.servers,
        link=LinkSpec.parse("100mbit"),
        management=case.managed,
        results_root=folder,
    ) as testbed:
        outcome.logs = str(testbed.results)
        job = Job(testbed, case.when, case.environment)
        others = [
            rank for rank in range(RANKS) if (case.victim, case.fault, rank) != ("worker", "kill", RANKS - 1)
        ]
        try:
            _reach(case, testbed, job)
            struck_at = time.time()
            with _struck(case, testbed, job):
                job.go()
            job.wait(lambda: set(others) <= job.ended_at.keys(), "all others end", _END_S)
            _judge(case, job, others, struck_at, outcome)
        except TimeoutError as error:
            outcome.broken.append(str(error))
        outcome.errors = job.errors()
        outcome.broken += _wrong_sums(job, right, outcome)
        run_id = testbed.run.id
    outcome.broken += [f"left behind: process {each.pid}" for each in tagged_processes(run_id, besides=0)]
    return outcome


def undisturbed(folder: Path) -> dict[int, str]:
    """The digest after each sum when nothing happens."""
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("100mbit"), results_root=folder) as testbed:
        job = Job(testbed, "never", {})
        job.wait(lambda: len(job.ended_at) == RANKS, "all ranks end", _END_S)
        (digests,) = {tuple(event["digest"] for event in job.sums(rank).values()) for rank in range(RANKS)}
    return dict(enumerate(digests, 1))


def _reach(case: Case, testbed: Testbed, job: Job) -> None:
    """Wait until the job is in the phase. Raises TimeoutError."""
    job.wait(job.is_here, f"the phase: {case.when}", _JOIN_S)
    if case.when == "join":
        controller = testbed.controller
        assert controller is not None
        job.go()  # the job is made once all ranks are there
        job.wait(lambda: controller.jobs() != [], "the job is there", _JOIN_S)
    time.sleep(_INTO_S.get(case.when, 0.0))


@contextlib.contextmanager
def _struck(case: Case, testbed: Testbed, job: Job) -> Iterator[None]:
    """The fault begins before the block, and ends after it."""
    if case.fault == "kill":
        testbed.kill(case.part)
        yield
    elif case.fault == "restart":
        testbed.restart(case.part)
        yield
    elif case.fault == "stop":
        testbed.signal(case.part, signal.SIGSTOP)
        yield
        job.watch(STOP_S)
        testbed.signal(case.part, signal.SIGCONT)
    else:
        ports = _ports(case, testbed)
        for port in ports:
            testbed.set_link(port, "down")
        yield
        job.watch(CUT_S)
        for port in ports:
            testbed.set_link(port, "up")


def _ports(case: Case, testbed: Testbed) -> list[SwitchPort]:
    """Where the links of the victim are: of a leaf those to the spines."""
    fabric = testbed.network.fabric
    control = SwitchPort(fabric.control_switch, CONTROL_PORT)
    of_hosts = {"worker": RANKS, "server": len(fabric.host_ports)}
    if case.victim in of_hosts:
        return [fabric.host_ports[of_hosts[case.victim] - 1]]
    if case.victim == "controller":
        return [control]
    if case.victim == "switch":
        return [*fabric.host_ports, control]
    return [trunk.lower for trunk in fabric.trunks if case.part in (trunk.lower.switch, trunk.upper.switch)]


def _judge(case: Case, job: Job, others: list[int], struck_at: float, outcome: Outcome) -> None:
    statuses = {rank: job.group.workers[rank].process.poll() for rank in others}
    failed = [rank for rank, status in statuses.items() if status != 0]
    outcome.ended = "went on" if not failed else "failed" if len(failed) == len(others) else "some failed"
    for rank in failed:
        if statuses[rank] != 1:
            outcome.broken.append(f"rank {rank} ended with {describe_exit(statuses[rank] or 0)}")
    outcome.seconds = max(job.ended_at[rank] for rank in others) - struck_at
    if not failed:
        outcome.seconds = _longest_wait([job.sums(rank) for rank in others], struck_at) or outcome.seconds
    last = [event for rank in others for event in job.events[rank] if event["event"] == "end"]
    changes = [change for event in last for change in event["changes"]]
    if changes:
        outcome.noticed_s = min(change["at"] for change in changes) - struck_at
        outcome.to = list(dict.fromkeys(change["to"] for change in changes))
    ended, most_s = promise(case)
    wrong = {"goes on": outcome.ended != "went on", "fails": outcome.ended != "failed", "either": False}
    if wrong[ended]:
        outcome.broken.append(f"{outcome.ended}, but a job {ended} then")
    if outcome.seconds > most_s + SLACK_S:
        outcome.broken.append(f"{outcome.seconds:.1f} s, not {most_s:g}")


def _longest_wait(sums: list[dict[int, Event]], since: float) -> float:
    """For how long the ranks have waited for one sum, at most, after a time; 0 if all sums ended before."""
    done = [max(each[number]["at"] for each in sums) for number in sorted(sums[0])]
    after = [since, *(at for at in done if at > since)]
    return max((later - earlier for earlier, later in pairwise(after)), default=0.0)


def _wrong_sums(job: Job, right: Mapping[int, str], outcome: Outcome) -> list[str]:
    """Compare the digest after each sum of each rank."""
    broken = []
    for rank in range(RANKS):
        sums = job.sums(rank)
        outcome.sums += len(sums)
        wrong = [number for number, event in sums.items() if event["digest"] != right[number]]
        if wrong:
            broken.append(f"rank {rank}: sum {min(wrong)} is wrong")
    return broken
