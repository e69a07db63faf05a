# SPDX-License-Identifier: Apache-2.0
"""Kills, stops or pauses each part in each phase of a job. Measures how long the other ranks take to end or to go on,
and reads the errors that they print."""

import itertools
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.testbed import Testbed
from tests.attack.outcome import Outcome
from tests.attack.ranks import BrokenPromiseError, Ranks, wait_until
from tests.attack.siege import besieged, judge_ranks

AT_ONCE = 3  # cases that run at the same time: they mostly wait
PAUSE_S = 5.0
TIMEOUT_S = 30.0  # the timeout of groups whose ranks do not all join; the others have 300 s
SLACK_S = 5.0  # for a busy machine
LAST_SUM_S = 60.0

Victim = Literal["rank", "rank 0", "switch", "controller"]
How = Literal["KILL", "TERM", "STOP", "pause"]
When = Literal["importing", "joining", "summing", "leaving"]
End = Literal["fail", "go on", "end"]
VICTIMS: tuple[Victim, ...] = ("rank", "rank 0", "switch", "controller")
WHENS: tuple[When, ...] = ("importing", "joining", "summing", "leaving")


@dataclass(frozen=True)
class Case:
    """One victim, hit once. The victim "rank" is the last rank."""

    victim: Victim
    how: How
    when: When
    ranks: int
    fallback: Literal["error", "inner"] = "error"

    def __str__(self) -> str:
        fallback = ", fallback=inner" if self.fallback == "inner" else ""
        return f"{self.how} {self.victim}, {self.when}, {self.ranks} ranks{fallback}"

    @property
    def rank(self) -> int | None:
        """The victim, if it is a rank."""
        return {"rank": self.ranks - 1, "rank 0": 0}.get(self.victim)

    @property
    def cause(self) -> re.Pattern[str]:
        """Matches an error that names the victim. Ranks that cannot reach rank 0's store, or the switch, know only an
        address."""
        if self.rank is not None:
            return re.compile(rf"\branks? (\[?\d+, )*\[?{self.rank}\b|10\.0\.0\.{self.rank + 1}\b")
        return re.compile(r"switch|controller|heartbeat|10\.0\.0\.\d")


def promise(case: Case) -> tuple[End, float]:
    """What docs/ promise about the other ranks: that they fail, go on, or end in either way ("end"), and within how
    many seconds.

    backend.md, "Work, timeouts, errors" and "While a group is made"; protocol.md, 6.3; deployment.md, "If the server
    stops".
    """
    if case.how == "pause":
        # While a group is being made, 4 s without network, or 5 s without an answer of the controller, end it.
        either = case.when == "leaving" or (
            case.victim in ("switch", "controller") and case.when == "joining"
        )
        return ("end" if either else "go on"), 60.0
    died = case.how in ("KILL", "TERM")
    if case.victim == "controller":
        if case.when == "leaving":
            return "end", 10.0
        if case.when == "summing":
            return "go on", 60.0
        return ("go on" if case.fallback == "inner" else "fail"), 60.0
    if case.victim == "switch":
        limits = {"importing": 2 * TIMEOUT_S, "joining": 10.0, "summing": 40.0, "leaving": 40.0}
    elif died:
        # If a store never comes, torch's client waits for up to three times its timeout, with any backend.
        importing = 3 * TIMEOUT_S if case.rank == 0 else TIMEOUT_S
        limits = {"importing": importing, "joining": 10.0, "summing": 2.0, "leaving": 10.0}
    else:
        limits = {"importing": TIMEOUT_S, "joining": 90.0, "summing": 35.0, "leaving": 35.0}
    return ("end" if case.when == "leaving" else "fail"), limits[case.when]


def cases(full: bool) -> list[Case]:
    """Each victim killed in each phase, with 2 ranks. If `full`, also with 4 ranks, terminated, stopped and paused with
    4 ranks, and killed with fallback="inner"."""
    found = [
        Case(victim, "KILL", when, ranks)
        for ranks in ((2, 4) if full else (2,))
        for victim, when in itertools.product(VICTIMS, WHENS)
    ]
    if full:
        whens: tuple[When, ...] = ("joining", "summing", "leaving")
        ways: tuple[How, ...] = ("TERM", "STOP", "pause")
        found += [Case(victim, how, when, 4) for how in ways for victim in VICTIMS for when in whens]
        for victim, when in itertools.product(VICTIMS, WHENS[:2]):
            found += [Case(victim, "KILL", when, ranks, "inner") for ranks in (2, 4)]
    return found


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """AT_ONCE cases at the same time, each on its own testbed."""
    pool = ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn"))
    try:
        for done in as_completed([pool.submit(hit, case, folder) for case in cases(full)]):
            yield done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def hit(case: Case, folder: Path) -> Outcome:
    """Runs one case."""
    outcome = Outcome(str(case))
    ended, limit_s = promise(case)
    with besieged(outcome, folder, hosts=case.ranks, victim=case.victim) as testbed:
        late = case.when in ("summing", "leaving")
        ranks = Ranks(testbed, case.ranks, fallback=case.fallback, timeout_s=300.0 if late else TIMEOUT_S)
        try:
            reach(case, testbed, ranks)
            began = strike(case, testbed, ranks)
            outcome.amount = f"{ended} within {limit_s:g} s"
            outcome.seconds = see(case, ended, ranks, began)
            if outcome.seconds > limit_s + SLACK_S:
                outcome.broken.append(f"{outcome.seconds:.1f} s, not {limit_s:g}")
        except BrokenPromiseError as error:
            outcome.broken.append(str(error))
        judge(case, ended, ranks, outcome)
        ranks.stop()
    return outcome


def reach(case: Case, testbed: Testbed, ranks: Ranks) -> None:
    """Wait until the job is in the phase of the case. Raises BrokenPromiseError."""
    controller = testbed.controller
    assert controller is not None
    if case.when == "joining":
        wait_until(lambda: controller.request("GET", "/jobs")["jobs"], "a job", 60)
    elif case.when == "importing":
        ranks.wait_for("importing")
    else:
        ranks.wait_for("joined")
        ranks.go_on(10)
    if case.when == "leaving":
        ranks.finish()
        rank = case.rank or 0
        wait_until(lambda: ranks.has(rank, "leaving"), f"rank {rank} leaves", LAST_SUM_S)


def strike(case: Case, testbed: Testbed, ranks: Ranks) -> float:
    """Hit the victim; returns when (time.time)."""
    process = target(case, testbed, ranks)
    if case.how != "pause":
        process.signal(signal.Signals[f"SIG{case.how}"])
        return time.time()
    process.signal(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    process.signal(signal.SIGCONT)
    return time.time()


def target(case: Case, testbed: Testbed, ranks: Ranks) -> NodeProcess:
    if case.rank is not None:
        return ranks.workers[case.rank].process
    return next(process for process in testbed.services if process.name == case.victim)


def see(case: Case, ended: End, ranks: Ranks, began: float) -> float:
    """Seconds until the other ranks have gone on, or ended. Raises BrokenPromiseError if they take far too long."""
    if ended == "go on":
        ranks.wait_for("joined")
        ranks.go_on(10)
        seconds = time.time() - began
        ranks.finish()
        ranks.wait_ended(timeout_s=LAST_SUM_S)
        return seconds
    if ended == "end":
        ranks.finish()  # those that go on
    besides = None if case.how == "pause" else case.rank
    end = ranks.wait_ended(timeout_s=200, besides=besides)
    if case.when == "importing":  # a rank notices nothing while it imports torch, which takes long
        began = max([began, *(ranks.at(rank, "joining") for rank in range(case.ranks))])
    return end - began


def judge(case: Case, ended: End, ranks: Ranks, outcome: Outcome) -> None:
    """Judge how the ranks ended and what they printed, except for the victim."""
    outcome.named = [None] * case.ranks
    judge_ranks(ranks, outcome, may_fail=ended != "go on", besides=case.rank if case.how != "pause" else None)
    for rank, (status, error) in enumerate(zip(outcome.statuses, outcome.errors, strict=True)):
        if rank == case.rank:
            continue
        if status == 1:
            outcome.named[rank] = case.cause.search(error or "") is not None
            if (
                not outcome.named[rank] and case.when != "importing"
            ):  # then it is torch's error about its store
                outcome.broken.append(f"rank {rank} does not name the cause: {error}")
        elif status == 0 and ended == "fail":
            outcome.broken.append(f"rank {rank} ended without an error")
