# SPDX-License-Identifier: Apache-2.0
"""ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC: all updates of a batch are applied, or none (P4Runtime specification, "Batch
Atomicity").

Other updates, which restore the earlier state, undo an update. With ROLLBACK_ON_ERROR packets may see intermediate
states.
"""

import logging
from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.batch import Attempt, WriteBatch
from inagg_switch.p4runtime.entities.entries import EntryTuple, find_entry, parse_key
from inagg_switch.p4runtime.entities.meters import write_config
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.read import read_entities, table_entity

logger = logging.getLogger(__name__)

MODIFY = p4runtime_pb2.Update.MODIFY
INSERT = p4runtime_pb2.Update.INSERT
DELETE = p4runtime_pb2.Update.DELETE

# Places in the batch, and the updates that undo them; None: the places are plain INSERTs.
_Done = tuple[range, list[p4runtime_pb2.Update] | None]


def write_all_or_none(
    target: Target, batch: WriteBatch, attempt: Attempt, undo: Attempt | None = None
) -> list[RequestError | None]:
    """Apply all updates with `attempt`; if one fails, undo the others with `undo` (by default `attempt`).

    Returns the error of each update; after a failure the other updates are ABORTED.
    """
    done: list[_Done] = []
    place = 0
    while (end := batch.write_entries(target, place, only_inserts=True)) < len(batch):
        done.append((range(place, end), None))
        update = batch.update(end)
        # Locked, so that no packet is counted between reading the state and changing it: an undo would lose its count.
        with target.program.locked():
            back = list(_undo(target, update))
            error = attempt(target, update)
        if error is not None:
            return _undone(target, batch, done, undo or attempt, end, error)
        done.append((range(end, end + 1), back))
        place = end + 1
    return [None] * len(batch)


def _undone(
    target: Target,
    batch: WriteBatch,
    done: list[_Done],
    attempt: Attempt,
    failed: int,
    error: RequestError,
) -> list[RequestError | None]:
    """Undo all updates, the last first.

    An undo fails only if something else writes to the program, or without memory.
    """
    aborted = RequestError(Code.ABORTED, "undone, or not tried: another update of the batch failed")
    stuck = RequestError(Code.INTERNAL, "done, and could not be undone: see the switch's log")
    errors: list[RequestError | None] = [aborted] * len(batch)
    errors[failed] = error
    for places, undo in reversed(done):
        if undo is None:
            left = len(places) - batch.take_back(target, places)
            refused = [RequestError(Code.INTERNAL, f"{left} entries are not there any more")] if left else []
        else:
            refused = [problem for back in undo if (problem := attempt(target, back)) is not None]
        for problem in refused:
            logger.error("updates %d to %d cannot be undone: %s", places[0], places[-1], problem)
            for place in places:
                errors[place] = stuck
    return errors


def _undo(target: Target, update: p4runtime_pb2.Update) -> Iterator[p4runtime_pb2.Update]:
    """The updates that undo an update, in this order; none for an update that will be refused."""
    if update.type == INSERT:
        yield p4runtime_pb2.Update(type=DELETE, entity=update.entity)
        return
    kind = update.entity.WhichOneof("entity")
    try:
        if kind == "table_entry" and not update.entity.table_entry.is_default_action:
            yield from _undo_entry(target, update)
        elif kind in ("direct_counter_entry", "direct_meter_entry"):
            yield from _undo_direct(target, update.entity)
        else:
            for entity in read_entities(target, update.entity):
                if kind == "table_entry":
                    _strip_default(target, entity.table_entry)
                yield p4runtime_pb2.Update(type=MODIFY if update.type == MODIFY else INSERT, entity=entity)
    except RequestError:
        return


def _undo_entry(target: Target, update: p4runtime_pb2.Update) -> Iterator[p4runtime_pb2.Update]:
    given = update.entity.table_entry
    table = target.names.table(given.table_id)
    found = find_entry(target.control, table, parse_key(table, given))
    is_gone = update.type == DELETE
    wanted = p4runtime_pb2.TableEntry()
    if is_gone or given.HasField("counter_data"):
        wanted.counter_data.SetInParent()
    if is_gone:
        wanted.meter_config.SetInParent()
    back = p4runtime_pb2.Update(
        type=INSERT if is_gone else MODIFY, entity=table_entity(target, table, wanted, found)
    )
    # Leave out what the update does not change.
    back.entity.table_entry.is_const = False
    if not (is_gone or given.HasField("action")):
        back.entity.table_entry.ClearField("action")
    yield back
    if not is_gone and given.HasField("meter_config"):
        yield _undo_meter(given, found)


def _undo_direct(target: Target, entity: p4runtime_pb2.Entity) -> Iterator[p4runtime_pb2.Update]:
    kind = entity.WhichOneof("entity")
    given = getattr(entity, kind).table_entry
    table = target.names.table(given.table_id)
    found = find_entry(target.control, table, parse_key(table, given))
    if kind == "direct_meter_entry":
        yield _undo_meter(given, found)
        return
    back = p4runtime_pb2.Update(type=MODIFY)
    out = back.entity.direct_counter_entry
    out.table_entry.CopyFrom(given)
    out.data.packet_count, out.data.byte_count = found[4], found[5]
    yield back


def _undo_meter(given: p4runtime_pb2.TableEntry, found: EntryTuple) -> p4runtime_pb2.Update:
    back = p4runtime_pb2.Update(type=MODIFY)
    out = back.entity.direct_meter_entry
    out.table_entry.table_id, out.table_entry.priority = given.table_id, given.priority
    out.table_entry.match.extend(given.match)
    if found[10] is not None:
        write_config(out.config, found[10])
    return back


def _strip_default(target: Target, entry: p4runtime_pb2.TableEntry) -> None:
    """Remove parts of a default entry that cannot be written, which no update has changed."""
    indirect = target.names.table(entry.table_id).profile is not None
    if entry.is_const or (indirect and entry.action.HasField("action")):
        entry.ClearField("action")
    entry.is_const = False
