# SPDX-License-Identifier: Apache-2.0
"""Timers of entries, and when to look at which."""

import heapq
from dataclasses import dataclass, field

from inagg_switch.p4runtime.entities.entries import Key

_SPARE = 1000  # items of the agenda that may be out of date


@dataclass
class Timer:
    """Of one entry: `since` is when it was written, or last notified."""

    timeout_ns: int
    written: float
    since: float

    def after(self, last_hit: float) -> "Timer":
        """The same for a copy of the entry, which does not know when it was hit."""
        return Timer(self.timeout_ns, max(self.written, last_hit), max(self.since, last_hit))

    def due(self, last_hit: float) -> float:
        """When the timeout passes."""
        return max(self.since, last_hit) + self.timeout_ns * 1e-9


@dataclass
class Timers:
    """The timers of a program's entries, by table id and key, and when to look at which."""

    by_entry: dict[tuple[int, Key], Timer] = field(default_factory=dict)
    # Earliest first; of a timer that was replaced or removed, an item remains and is ignored.
    _agenda: list[tuple[float, int, tuple[int, Key], Timer]] = field(default_factory=list)
    _scheduled: int = 0

    def set(self, entry: tuple[int, Key], timer: Timer) -> None:
        """In place of the one that the entry had."""
        self.by_entry[entry] = timer
        if timer.timeout_ns:
            self.schedule(entry, timer, timer.due(0.0))

    def schedule(self, entry: tuple[int, Key], timer: Timer, at: float) -> None:
        """Looks at it then."""
        self._scheduled += 1  # the heap must not compare keys
        heapq.heappush(self._agenda, (at, self._scheduled, entry, timer))
        if len(self._agenda) > 2 * len(self.by_entry) + _SPARE:
            self._agenda = [item for item in self._agenda if self.by_entry.get(item[2]) is item[3]]
            heapq.heapify(self._agenda)

    def take(self, now: float) -> list[tuple[tuple[int, Key], Timer]]:
        """Those whose time may be up; schedule() brings them back."""
        taken = []
        while self._agenda and self._agenda[0][0] <= now:
            _, _, entry, timer = heapq.heappop(self._agenda)
            if self.by_entry.get(entry) is timer:
                taken.append((entry, timer))
        return taken
