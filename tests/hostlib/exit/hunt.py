# SPDX-License-Identifier: Apache-2.0
"""Ends programs in every state of a group and in every way, many at once: python -m tests.hostlib.exit.hunt --help.

Prints for each case how many ranks ended wrongly, keeps their logs, and exits with 1 if there are any. A rank that
fails because another one has ended is not counted. Ranks are forked from an interpreter that has imported torch
(forks.py): they end as many threads as a new interpreter, and start faster.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from inagg_testbed.network.control import CONTROLLER_URL
from inagg_testbed.network.lifecycle import Interrupted, signals_raise
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import host_address
from inagg_testbed.network.workers import worker_environment
from tests.forks import Fork, Forks
from tests.hostlib.exit.cases import ENDINGS, PROGRAM, RANKS, SIGNALS, Case, cases

_FIRST_PORT, _PORTS = 10_000, 20_000  # ports of the ranks' stores, below the ephemeral ports
_SLOTS = 8
# An interpreter that ends frees all modules. That takes a fifth less time if malloc does not merge freed memory.
_FREE_FAST = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=65000"}
_MODULES = ("torch", "inagg.process_group", "httpcore")  # few, because each run frees them
_LONGEST_S = 100.0  # limit for one run
_GRACE_S = 40.0  # limit for the other rank after one has ended
_LINE_EVERY = 100  # runs, if there is no progress bar


@dataclass
class _Run:
    """One run of a case: its ranks and their logs."""

    name: str
    case: Case
    ranks: list[Fork]
    logs: list[Path]
    late: list[Fork] = field(default_factory=list)  # had to be killed
    deadline: float = field(default_factory=lambda: time.monotonic() + _LONGEST_S)

    @property
    def statuses(self) -> list[int | None]:
        """The exit statuses of the ranks, once all have ended; None for a rank that had to be killed."""
        return [None if rank in self.late else rank.returncode for rank in self.ranks]

    def look(self) -> bool:
        """Whether all ranks have ended. Kills those that are late."""
        running = [rank for rank in self.ranks if rank.poll() is None]
        if len(running) < len(self.ranks):
            self.deadline = min(self.deadline, time.monotonic() + _GRACE_S)
        if running and time.monotonic() >= self.deadline:
            self._kill(running)
        return not running

    def _kill(self, running: list[Fork]) -> None:
        """Kill ranks and their children: first with SIGABRT, which writes their threads' stacks to the logs."""
        number = signal.SIGKILL if self.late else signal.SIGABRT
        self.late = self.late or running
        self.deadline = time.monotonic() + 5
        for rank in running:
            os.killpg(rank.pid, number)


class Hunt:
    """Runs the cases until each has `endings` endings."""

    def __init__(self, testbed: Testbed, forks: Forks, chosen: Sequence[Case], endings: int) -> None:
        self._testbed = testbed
        self._forks = forks
        self._chosen = chosen
        self._endings = endings
        self.runs = 0
        self._expected: Counter[Case] = Counter()  # endings, including those of runs under way
        self.begun: list[_Run] = []
        self.ended: Counter[Case] = Counter()
        self.wrong: Counter[Case] = Counter()

    def begin(self) -> bool:
        """Begin a run of the case with the fewest endings. Returns False if all cases have enough."""
        case = min(self._chosen, key=lambda one: self._expected[one])
        if self._expected[case] >= self._endings:
            return False
        self._expected[case] += case.most
        self.runs += 1
        name = f"{case.name}-{self.runs}"
        logs = [self._testbed.results / f"{name}-rank{rank}.log" for rank in range(RANKS)]
        ranks = [self._start(case, rank, log) for rank, log in enumerate(logs)]
        self.begun.append(_Run(name, case, ranks, logs))
        return True

    def _start(self, case: Case, rank: int, log: Path) -> Fork:
        network = self._testbed.network
        own = worker_environment(
            rank=rank,
            world=RANKS,
            interface=network.gloo_interface(rank + 1),
            master_address=host_address(1),
            master_port=_FIRST_PORT + self.runs % _PORTS,
            run=self._testbed.run.id,
        )
        inagg = {"INAGG_CONTROLLER": CONTROLLER_URL, "INAGG_SLOTS": str(_SLOTS)}
        return self._forks.start(
            [sys.executable, str(PROGRAM), *case.arguments],
            environment={**os.environ, **own, **inagg, **case.environment},
            node=network.host(rank + 1).pid,
            log=log,
        )

    def end(self) -> str | None:
        """Wait for the end of a run. Returns what was wrong with it; None if nothing was."""
        while not (ended := [run for run in self.begun if run.look()]):
            self._forks.read(1)
        for service in self._testbed.services:
            service.check()
        run = ended[0]
        self.begun.remove(run)
        count, wrong = run.case.ended(run.statuses), run.case.wrong(run.statuses)
        self._expected[run.case] += count - run.case.most
        self.ended[run.case] += count
        self.wrong[run.case] += wrong
        if wrong:
            return f"{run.name}: {run.statuses}"
        for log in run.logs:
            log.unlink()
        return None

    @property
    def done(self) -> int:
        """The number of endings so far, at most `endings` for each case."""
        return sum(min(self.ended[case], self._endings) for case in self._chosen)

    def table(self) -> Table:
        """A table with the number of wrong endings of each case."""
        table = Table("state", *ENDINGS, *SIGNALS, title="Wrong endings / all endings")
        for row in dict.fromkeys(case.state_name for case in cases()):
            found = {case.ending: case for case in cases() if case.state_name == row}
            table.add_row(
                row,
                *(
                    f"{self.wrong[found[ending]]}/{self.ended[found[ending]]}" if ending in found else ""
                    for ending in (*ENDINGS, *SIGNALS)
                ),
            )
        return table


def main(endings: int, at_once: int, chosen: Sequence[Case]) -> int:
    """Run the hunt. Returns the exit status."""
    console = Console(width=None if sys.stdout.isatty() else 140, soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="inagg-exit-"))
    with (
        open_testbed(hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=folder) as testbed,
        closing(Forks(_MODULES, _FREE_FAST)) as forks,
        Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as progress,
    ):
        hunt = Hunt(testbed, forks, chosen, endings)
        task = progress.add_task("endings", total=endings * len(chosen))
        try:
            while True:
                while len(hunt.begun) < at_once and hunt.begin():
                    pass
                if not hunt.begun:
                    break
                if (wrong := hunt.end()) is not None:
                    console.print(wrong)
                progress.update(task, completed=hunt.done)
                if not console.is_terminal and hunt.runs % _LINE_EVERY == 0:
                    console.print(f"{hunt.runs} runs, {hunt.done} of {endings * len(chosen)} endings")
        finally:
            console.print(hunt.table())
    console.print(f"{hunt.wrong.total()} of {hunt.ended.total()} wrong")
    if not hunt.wrong.total():
        shutil.rmtree(folder)
        return 0
    console.print(f"Their logs are in {folder}")
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endings", type=int, help="number of endings of each case")
    parser.add_argument(
        "--at-once", type=int, default=16, help="number of runs at the same time, which load the machine"
    )
    parser.add_argument("--only", default="", help="cases whose names contain this")
    given = parser.parse_args()
    try:
        with signals_raise():
            chosen = [case for case in cases() if given.only in case.name]
            sys.exit(main(given.endings, given.at_once, chosen))
    except Interrupted as interruption:
        sys.exit(128 + interruption.number)
