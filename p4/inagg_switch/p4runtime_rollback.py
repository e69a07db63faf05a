"""ROLLBACK_ON_ERROR: all updates of a batch are applied, or none (P4Runtime specification, "Batch Atomicity").

An update is undone by others that write back what was there; packets may see what lies between.
"""

from collections.abc import Callable, Iterator, Sequence

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime_errors import Code, RequestError
from inagg_switch.p4runtime_read import read_entities
from inagg_switch.p4runtime_target import Target

MODIFY = p4runtime_pb2.Update.MODIFY
INSERT = p4runtime_pb2.Update.INSERT
DELETE = p4runtime_pb2.Update.DELETE


def write_all_or_none(
    target: Target,
    updates: Sequence[p4runtime_pb2.Update],
    attempt: Callable[[Target, p4runtime_pb2.Update], RequestError | None],
) -> list[RequestError | None]:
    """The error of each update, as `attempt` gives it for one; where one has failed, the others are ABORTED."""
    undo: list[p4runtime_pb2.Update] = []
    for place, update in enumerate(updates):
        before = list(_undo(target, update))
        error = attempt(target, update)
        if error is not None:
            for back in reversed(undo):
                refused = attempt(target, back)
                assert refused is None, refused
            aborted = RequestError(Code.ABORTED, "undone, or not tried: another update of the batch failed")
            return [error if other == place else aborted for other in range(len(updates))]
        undo += before
    return [None] * len(updates)


def _undo(target: Target, update: p4runtime_pb2.Update) -> Iterator[p4runtime_pb2.Update]:
    """What undoes an update, last first; nothing for one that will be refused."""
    if update.type == INSERT:
        yield p4runtime_pb2.Update(type=DELETE, entity=update.entity)
        return
    kind = MODIFY if update.type == MODIFY else INSERT
    try:
        found = list(read_entities(target, _identity(update.entity)))
    except RequestError:
        return
    for entity in found:
        if entity.HasField("table_entry"):
            entry = entity.table_entry
            # What cannot be written is not what the update has changed.
            indirect = target.names.table(entry.table_id).profile is not None
            if entry.is_const or (entry.is_default_action and indirect and entry.action.HasField("action")):
                entry.ClearField("action")
            entry.is_const = False
            if kind == MODIFY and update.entity.table_entry.HasField("meter_config"):
                # An entry without a meter_config would leave the new one.
                back = p4runtime_pb2.Update(type=MODIFY)
                back.entity.direct_meter_entry.table_entry.CopyFrom(entry)
                if entry.HasField("meter_config"):
                    back.entity.direct_meter_entry.config.CopyFrom(entry.meter_config)
                yield back
        yield p4runtime_pb2.Update(type=kind, entity=entity)


def _identity(entity: p4runtime_pb2.Entity) -> p4runtime_pb2.Entity:
    """A read of the whole entity. Reads select by more than the key where there is a table entry."""
    kind = entity.WhichOneof("entity")
    if kind not in ("table_entry", "direct_counter_entry", "direct_meter_entry"):
        return entity
    wanted = p4runtime_pb2.Entity()
    given = entity.table_entry if kind == "table_entry" else getattr(entity, kind).table_entry
    key = wanted.table_entry if kind == "table_entry" else getattr(wanted, kind).table_entry
    key.table_id, key.priority, key.is_default_action = (
        given.table_id,
        given.priority,
        given.is_default_action,
    )
    key.match.extend(given.match)
    if kind == "table_entry" and not given.is_default_action:
        key.counter_data.SetInParent()
        key.meter_config.SetInParent()
    return wanted
