# SPDX-License-Identifier: Apache-2.0
"""Timers of entries, and a heap of the times when to check them."""

import heapq
from dataclasses import dataclass, field

from inagg_switch.p4runtime.entities.entries import Key

_SPARE = 1000  # outdated items that the agenda may have


@dataclass
class Timer:
    """The timer of one entry. since: when the entry was written, or the controller last notified."""

    timeout_ns: int
    written: float
    since: float

    def after(self, last_hit: float) -> "Timer":
        """The timer for a copy of the entry, whose hits are not copied."""
        return Timer(self.timeout_ns, max(self.written, last_hit), max(self.since, last_hit))

    def due(self, last_hit: float) -> float:
        """The time when the timeout passes."""
        return max(self.since, last_hit) + self.timeout_ns * 1e-9


@dataclass
class Timers:
    """The timers of a program's entries, by table id and key, and the agenda of checks."""

    by_entry: dict[tuple[int, Key], Timer] = field(default_factory=dict)
    # A heap by time. Items of replaced or removed timers remain and are ignored.
    _agenda: list[tuple[float, int, tuple[int, Key], Timer]] = field(default_factory=list)
    _scheduled: int = 0

    def set(self, entry: tuple[int, Key], timer: Timer) -> None:
        """Set or replace the timer of an entry."""
        self.by_entry[entry] = timer
        if timer.timeout_ns:
            self.schedule(entry, timer, timer.due(0.0))

    def schedule(self, entry: tuple[int, Key], timer: Timer, at: float) -> None:
        """Schedule a check of a timer."""
        self._scheduled += 1  # unique, so that the heap never compares keys
        heapq.heappush(self._agenda, (at, self._scheduled, entry, timer))
        if len(self._agenda) > 2 * len(self.by_entry) + _SPARE:
            self._agenda = [item for item in self._agenda if self.by_entry.get(item[2]) is item[3]]
            heapq.heapify(self._agenda)

    def take(self, now: float) -> list[tuple[tuple[int, Key], Timer]]:
        """Remove and return the timers to check; schedule() adds them again."""
        taken = []
        while self._agenda and self._agenda[0][0] <= now:
            _, _, entry, timer = heapq.heappop(self._agenda)
            if self.by_entry.get(entry) is timer:
                taken.append((entry, timer))
        return taken
