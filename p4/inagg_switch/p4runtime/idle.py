"""Idle timeouts: entries that no packet has hit for as long as their controller allows (specification, "Idle-timeout").

Time is that of the program: what process() is told, in seconds. Entries are looked at when their time may be up: a hit
since then is seen only at that moment, and puts it off.
"""

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entries import EntryTuple, Key, entry_key, find_entry, write_key
from inagg_switch.p4runtime.errors import invalid
from inagg_switch.p4runtime.names import Table

if TYPE_CHECKING:
    from inagg_switch.p4runtime.target import Target

SCAN_S = 0.1  # timeouts are as exact as this
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


def check_entry(table: Table, message: p4runtime_pb2.TableEntry, *, write: bool) -> None:
    """Refuses idle timeouts where there are none."""
    if write and message.HasField("time_since_last_hit"):
        raise invalid(f"table {table.name}: time_since_last_hit cannot be written")
    if message.idle_timeout_ns < 0:
        raise invalid(f"table {table.name}: the idle timeout is negative")
    if not (message.idle_timeout_ns or message.HasField("time_since_last_hit")):
        return
    if message.is_default_action:
        raise invalid(f"table {table.name}: the default entry has no idle timeout")
    if not table.has_idle_timeout:
        raise invalid(f"table {table.name} does not support idle timeouts")


def start(target: "Target", table: Table, key: Key, message: p4runtime_pb2.TableEntry) -> None:
    """Notes that an entry was written."""
    if table.has_idle_timeout:
        now = target.now()
        target.timers.set((table.id, key), Timer(message.idle_timeout_ns, now, now))


def elapsed_ns(target: "Target", table: Table, entry: EntryTuple) -> int:
    """Since a packet last hit the entry, or since it was written."""
    timer = target.timers.by_entry.get((table.id, entry_key(entry)))
    last = max(entry[9] * 1e-6, timer.written if timer is not None else 0.0)
    return max(0, int((target.now() - last) * 1e9))


def expired(target: "Target") -> list[p4runtime_pb2.TableEntry]:
    """Entries whose timeout has passed; each of them starts anew."""
    found = []
    now = target.now()
    for (table_id, key), timer in target.timers.take(now):
        table = target.names.tables[table_id]
        last_hit = find_entry(target.control, table, key)[9] * 1e-6
        if timer.due(last_hit) <= now:
            timer.since = now
            found.append(_notification(target, table, key, timer))
        target.timers.schedule((table_id, key), timer, timer.due(last_hit))
    return found


def _notification(target: "Target", table: Table, key: Key, timer: Timer) -> p4runtime_pb2.TableEntry:
    message = p4runtime_pb2.TableEntry(idle_timeout_ns=timer.timeout_ns)
    write_key(message, table, key)
    opaque = target.opaque_of(table.id, key)
    message.metadata, message.controller_metadata = opaque.metadata, opaque.controller_metadata
    return message
