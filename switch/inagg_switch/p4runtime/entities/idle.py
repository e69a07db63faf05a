# SPDX-License-Identifier: Apache-2.0
"""Idle timeouts: finds entries that no packet has hit for their timeout (specification, "Idle-timeout").

Times are the program's, in seconds, as passed to process(). An entry is checked when its timeout may have passed; if it
was hit meanwhile, the check is rescheduled.
"""

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.entries import EntryTuple, Key, entry_key, find_entry, write_key
from inagg_switch.p4runtime.entities.names import Table
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.entities.timers import Timer
from inagg_switch.p4runtime.errors import invalid

SCAN_S = 0.1  # precision of timeouts


def check_entry(table: Table, message: p4runtime_pb2.TableEntry, *, write: bool) -> None:
    """Raise RequestError if an entry has fields of idle timeouts that its table does not support.

    Two messages are PI's, word for word: p4-guide's PTF tests compare them.
    """
    if write and message.HasField("time_since_last_hit"):
        raise invalid("has_time_since_last_hit must not be set in WriteRequest")
    if message.idle_timeout_ns < 0:
        raise invalid(f"table {table.name}: the idle timeout is negative")
    if not (message.idle_timeout_ns or message.HasField("time_since_last_hit")):
        return
    if message.is_default_action:
        raise invalid(f"table {table.name}: the default entry has no idle timeout")
    if not table.has_idle_timeout:
        raise invalid("idle_timeout_ns must be set to 0 for tables which do not support idle timeout")


def start(target: Target, table: Table, key: Key, message: p4runtime_pb2.TableEntry) -> None:
    """Start the timer of an entry that was written."""
    if table.has_idle_timeout:
        now = target.now()
        target.timers.set((table.id, key), Timer(message.idle_timeout_ns, now, now))


def elapsed_ns(target: Target, table: Table, entry: EntryTuple) -> int:
    """Nanoseconds since a packet last hit the entry, or since it was written."""
    timer = target.timers.by_entry.get((table.id, entry_key(entry)))
    last = max(entry[9] * 1e-6, timer.written if timer is not None else 0.0)
    return max(0, int((target.now() - last) * 1e9))


def expired(target: Target) -> list[p4runtime_pb2.TableEntry]:
    """Entries whose timeout has passed; restarts their timers."""
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


def _notification(target: Target, table: Table, key: Key, timer: Timer) -> p4runtime_pb2.TableEntry:
    message = p4runtime_pb2.TableEntry(idle_timeout_ns=timer.timeout_ns)
    write_key(message, table, key)
    opaque = target.opaque_of(table.id, key)
    message.metadata, message.controller_metadata = opaque.metadata, opaque.controller_metadata
    return message
