# SPDX-License-Identifier: Apache-2.0
"""The ranks under attack, seen from the launcher."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.workers import Event, Worker

POLL_S = 0.01


class BrokenPromiseError(Exception):
    """The system did not do what docs/ promise."""


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll until `condition()` is true. Raises BrokenPromiseError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BrokenPromiseError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


@dataclass(frozen=True)
class Sums:
    """How many sums ranks have checked, how many were wrong, and how many corrupt datagrams they received."""

    checked: int = 0
    wrong: int = 0
    corrupt: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.checked + other.checked, self.wrong + other.wrong, self.corrupt + other.corrupt)


class Ranks:
    """`count` ranks on the first hosts of a testbed. timeout_s: the group's timeout."""

    def __init__(
        self, testbed: Testbed, count: int, *, fallback: str = "error", timeout_s: float = 300.0
    ) -> None:
        self.name = f"ranks{len(testbed.groups)}"
        self._stop = testbed.results / f"{self.name}.stop"
        command = [sys.executable, "-m", "tests.attack.worker", "{events}", str(self._stop), str(timeout_s)]
        group = testbed.launch(
            command, name=self.name, workers=count, environment={"INAGG_FALLBACK": fallback}
        )
        self.workers: list[Worker] = group.workers
        self._events: list[dict[str, Event]] = [{} for _ in self.workers]
        self._ended: dict[int, float] = {}
        self._testbed = testbed

    def look(self) -> None:
        """Read events; note which ranks have ended, and when."""
        for worker, events in zip(self.workers, self._events, strict=True):
            for event in worker.events.read():
                events[event["event"]] = event
            if worker.rank not in self._ended and worker.process.poll() is not None:
                self._ended[worker.rank] = time.time()

    def has(self, rank: int, event: str) -> bool:
        """Whether a rank has written `event`."""
        self.look()
        return event in self._events[rank]

    def at(self, rank: int, event: str) -> float:
        """When a rank wrote `event` (time.time); 0 if it has not."""
        self.look()
        return float(self._events[rank].get(event, {}).get("at", 0))

    def wait_for(self, event: str, *, timeout_s: float = 120.0) -> None:
        """Wait until all ranks have written `event`. Raises BrokenPromiseError, also if a rank ends without it."""

        def all_have() -> bool:
            if all(self.has(rank, event) for rank in range(len(self.workers))):
                return True
            if self._ended:
                raise BrokenPromiseError(
                    f"ranks {sorted(self._ended)} ended before {event!r}: {self.errors()}"
                )
            return False

        wait_until(all_have, f"{event!r} of all ranks", timeout_s)

    def sums(self, rank: int) -> Sums:
        """What one rank has checked so far."""
        self.look()
        event = self._events[rank].get("sums", {})
        return Sums(event.get("checked", 0), event.get("wrong", 0), event.get("corrupt", 0))

    def total(self) -> Sums:
        """What all ranks have checked so far."""
        return sum((self.sums(rank) for rank in range(len(self.workers))), Sums())

    def go_on(self, more: int = 20, *, timeout_s: float = 60.0) -> None:
        """Wait until each rank has checked `more` further sums. Raises BrokenPromiseError."""
        before = [self.sums(rank).checked for rank in range(len(self.workers))]

        def progressed() -> bool:
            if self._ended:
                raise BrokenPromiseError(f"ranks {sorted(self._ended)} ended: {self.errors()}")
            return all(self.sums(rank).checked >= had + more for rank, had in enumerate(before))

        wait_until(progressed, f"{more} more sums of each rank", timeout_s)

    def finish(self) -> None:
        """Ask the ranks to leave after their next sum."""
        self._stop.touch()

    def wait_ended(self, *, timeout_s: float, besides: int | None = None) -> float:
        """Wait until all ranks except `besides` have ended; returns the latest end (time.time).

        Raises BrokenPromiseError.
        """
        others = [rank for rank in range(len(self.workers)) if rank != besides]

        def ended() -> bool:
            self.look()
            return all(rank in self._ended for rank in others)

        wait_until(ended, f"the end of the ranks {others}", timeout_s)
        return max(self._ended[rank] for rank in others)

    def statuses(self) -> list[int | None]:
        """Each rank's exit status; None while it runs."""
        return [worker.process.poll() for worker in self.workers]

    def errors(self) -> list[str | None]:
        """The last error that each rank has printed, or None."""
        return [worker.process.reported_error() for worker in self.workers]

    def stop(self) -> None:
        """End the ranks that still run."""
        for worker in self.workers:
            worker.process.stop()
