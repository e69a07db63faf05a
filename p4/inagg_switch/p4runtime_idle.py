"""Idle timeouts: entries that no packet has hit for as long as their controller allows (specification, "Idle-timeout").

Time is that of the program: what process() is told, in seconds.
"""

from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime_entries import EntryTuple, Key, entry_key, write_key
from inagg_switch.p4runtime_errors import invalid
from inagg_switch.p4runtime_names import Table
from inagg_switch.p4runtime_target import Opaque, Target

SCAN_S = 0.1  # timeouts are as exact as this


@dataclass
class Timer:
    """Of one entry: `since` is when it was written, or last notified."""

    timeout_ns: int
    written: float
    since: float


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


def start(target: Target, table: Table, key: Key, message: p4runtime_pb2.TableEntry) -> None:
    """Notes that an entry was written."""
    if table.has_idle_timeout:
        now = target.now()
        target.timers[table.id, key] = Timer(message.idle_timeout_ns, now, now)


def elapsed_ns(target: Target, table: Table, entry: EntryTuple) -> int:
    """Since a packet last hit the entry, or since it was written."""
    timer = target.timers.get((table.id, entry_key(entry)))
    last = max(entry[9] * 1e-6, timer.written if timer is not None else 0.0)
    return max(0, int((target.now() - last) * 1e9))


def expired(target: Target) -> list[p4runtime_pb2.TableEntry]:
    """Entries whose timeout has passed; each of them starts anew."""
    found = []
    now = target.now()
    ids = {table_id for (table_id, _), timer in target.timers.items() if timer.timeout_ns}
    for table in (target.names.tables[table_id] for table_id in sorted(ids)):
        for entry in target.control.table_entries(table.id, table.field_bytes):
            key = entry_key(entry)
            timer = target.timers.get((table.id, key))
            if timer is None or not timer.timeout_ns:
                continue
            if now - max(timer.since, entry[9] * 1e-6) >= timer.timeout_ns * 1e-9:
                timer.since = now
                found.append(_notification(target, table, key, timer))
    return found


def _notification(target: Target, table: Table, key: Key, timer: Timer) -> p4runtime_pb2.TableEntry:
    message = p4runtime_pb2.TableEntry(idle_timeout_ns=timer.timeout_ns)
    write_key(message, table, key)
    opaque = target.opaque.get((table.id, key), Opaque())
    message.metadata, message.controller_metadata = opaque.metadata, opaque.controller_metadata
    return message
