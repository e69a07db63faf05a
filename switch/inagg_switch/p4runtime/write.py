# SPDX-License-Identifier: Apache-2.0
"""Write: applies one update to a program. An update that raises RequestError has changed nothing."""

from collections.abc import Callable
from typing import Any

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities import idle, meters, profiles
from inagg_switch.p4runtime.entities.entries import Key, find_entry, parse_action, parse_key
from inagg_switch.p4runtime.entities.names import Table, index_range
from inagg_switch.p4runtime.entities.replication import write_replication
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.entities.value_sets import write_value_set
from inagg_switch.p4runtime.entities.values import full_width, parse_value
from inagg_switch.p4runtime.errors import Code, RequestError, from_errno, invalid

INSERT = p4runtime_pb2.Update.INSERT
MODIFY = p4runtime_pb2.Update.MODIFY
DELETE = p4runtime_pb2.Update.DELETE


def apply_update(target: Target, update: p4runtime_pb2.Update) -> None:
    """Apply an update. Raises RequestError."""
    if update.type not in (INSERT, MODIFY, DELETE):
        raise invalid("the update has no type: INSERT, MODIFY or DELETE")
    kind = update.entity.WhichOneof("entity")
    if kind is None:
        raise invalid("the update has no entity")
    writer = _WRITERS.get(kind)
    if writer is None:
        raise RequestError(Code.UNIMPLEMENTED, f"{kind} cannot be written: this switch does not support it")
    writer(target, update.type, getattr(update.entity, kind))


def _write_table_entry(target: Target, kind: int, message: p4runtime_pb2.TableEntry) -> None:
    table = target.names.table(message.table_id)
    if message.is_const:
        raise invalid(f"table {table.name}: is_const cannot be written")
    if message.is_default_action:
        _write_default_entry(target, kind, table, message)
    elif kind == DELETE:
        _delete_entry(target, table, message)
    else:
        _check_resources(table, message)
        if kind == INSERT:
            _insert_entry(target, table, message)
        else:
            _modify_entry(target, table, message)


def _check_resources(table: Table, message: p4runtime_pb2.TableEntry) -> None:
    if message.HasField("counter_data"):
        if not table.has_direct_counter:
            raise invalid(f"table {table.name} has no direct counter")
        _check_count(message.counter_data, f"table {table.name}")
    if message.HasField("meter_config"):
        if not table.has_direct_meter:
            raise invalid(f"table {table.name} has no direct meter")
        meters.parse_config(message.meter_config, f"table {table.name}")
    if message.HasField("meter_counter_data"):
        raise invalid(f"table {table.name}: its meter does not count")
    idle.check_entry(table, message, write=True)


def _check_count(data: p4runtime_pb2.CounterData, subject: str) -> None:
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"{subject}: a counter cannot be negative")


def _insert_entry(target: Target, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    if table.is_const:
        raise RequestError(Code.PERMISSION_DENIED, f"table {table.name} has const entries")
    key = parse_key(table, message)
    if not table.fields:
        raise invalid(f"table {table.name} has no key: modify its default entry, which is its only entry")
    if not message.HasField("action"):
        raise invalid(f"table {table.name}: a new entry needs an action")
    if table.profile is not None:
        profiles.place(target, table, key, message.action, insert=True)
    else:
        action, params = parse_action(target.names, table, message.action, is_default=False)
        try:
            target.control.table_insert(table.id, key.match, key.priority, action, params)
        except OSError as error:
            raise from_errno(error, f"table {table.name}") from None
    _write_resources(target, table, key, message)


def _write_resources(target: Target, table: Table, key: Key, message: p4runtime_pb2.TableEntry) -> None:
    """Write the direct resources of an existing entry, after _check_resources()."""
    try:
        if message.HasField("counter_data"):
            data = message.counter_data
            target.control.direct_counter_write(
                table.id, key.match, key.priority, data.packet_count, data.byte_count
            )
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None
    if message.HasField("meter_config"):
        config = meters.parse_config(message.meter_config, f"table {table.name}")
        meters.set_direct_meter(target, table, key, config)
    target.remember(table.id, key, message)
    idle.start(target, table, key, message)


def _modify_entry(target: Target, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    key = parse_key(table, message)
    try:
        if message.HasField("action") and table.profile is not None:
            profiles.place(target, table, key, message.action, insert=False)
        elif message.HasField("action"):
            action, params = parse_action(target.names, table, message.action, is_default=False)
            target.control.table_modify(table.id, key.match, key.priority, action, params)
        else:
            find_entry(target.control, table, key)
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None
    _write_resources(target, table, key, message)


def _delete_entry(target: Target, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    if table.is_const:
        raise RequestError(Code.PERMISSION_DENIED, f"table {table.name} has const entries")
    key = parse_key(table, message)
    try:
        target.control.table_delete(table.id, key.match, key.priority)
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None
    profiles.let_go(target, table, target.one_shots.pop((table.id, key), None))
    target.forget(table.id, key)


def _write_default_entry(target: Target, kind: int, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    if kind != MODIFY:
        raise invalid(f"table {table.name}: the default entry can only be modified")
    if message.match or message.priority:
        raise invalid(f"table {table.name}: the default entry has no match and no priority")
    _check_resources(table, message)
    if message.HasField("counter_data"):
        raise RequestError(
            Code.UNIMPLEMENTED, f"table {table.name}: the default entry's counter cannot be written"
        )
    if message.HasField("meter_config"):
        raise RequestError(
            Code.UNIMPLEMENTED, f"table {table.name}: the default entry's meter cannot be configured"
        )
    if table.has_const_default:
        raise RequestError(Code.PERMISSION_DENIED, f"table {table.name}: its default action is const")
    action, params = 0, b""
    try:
        if message.HasField("action") and table.profile is not None:
            if message.action.WhichOneof("type") == "action_profile_action_set":
                raise invalid(f"table {table.name}: the default entry cannot be an action set")
            reference = profiles.refer(target, table, message.action)
            target.externs.set_default_indirect(table.id, reference.kind, reference.id)
        else:
            if message.HasField("action"):
                action, params = parse_action(target.names, table, message.action, is_default=True)
            target.control.table_set_default(table.id, action, params)
    except OSError as error:
        raise from_errno(error, f"table {table.name}, default entry") from None
    target.remember(table.id, None, message)


def _write_counter(target: Target, kind: int, message: p4runtime_pb2.CounterEntry) -> None:
    counter = target.names.counter(message.counter_id)
    if kind != MODIFY:
        raise invalid(f"counter {counter.name}: can only be modified")
    first, count = index_range(counter, message, "counter")
    if not message.HasField("data"):
        return
    _check_count(message.data, f"counter {counter.name}")
    try:
        target.control.counter_write(
            counter.id, first, count, message.data.packet_count, message.data.byte_count
        )
    except OSError as error:
        raise from_errno(error, f"counter {counter.name}") from None


def _write_direct_counter(target: Target, kind: int, message: p4runtime_pb2.DirectCounterEntry) -> None:
    entry = message.table_entry
    table = target.names.table(entry.table_id)
    if kind != MODIFY:
        raise invalid(f"table {table.name}: a direct counter can only be modified")
    if not table.has_direct_counter:
        raise invalid(f"table {table.name} has no direct counter")
    if entry.is_default_action:
        raise RequestError(
            Code.UNIMPLEMENTED, f"table {table.name}: the default entry's counter cannot be written"
        )
    key = parse_key(table, entry)
    if message.HasField("data"):
        _check_count(message.data, f"table {table.name}")
    try:
        data = message.data
        if message.HasField("data"):
            target.control.direct_counter_write(
                table.id, key.match, key.priority, data.packet_count, data.byte_count
            )
        else:
            target.control.direct_counter_read(table.id, key.match, key.priority)
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None


def _write_register(target: Target, kind: int, message: p4runtime_pb2.RegisterEntry) -> None:
    register = target.names.register(message.register_id)
    subject = f"register {register.name}"
    if kind != MODIFY:
        raise invalid(f"{subject}: can only be modified")
    first, count = index_range(register, message, "register")
    if message.data.WhichOneof("data") != "bitstring":
        raise invalid(f"{subject}: the value must be a bitstring")
    value = full_width(parse_value(message.data.bitstring, register.bit_width, subject), register.bit_width)
    try:
        target.control.register_write(register.id, first, count, value)
    except OSError as error:
        raise from_errno(error, subject) from None


def _write_digest(target: Target, kind: int, message: p4runtime_pb2.DigestEntry) -> None:
    target.digests.write(kind, message)


_WRITERS: dict[str, Callable[[Target, int, Any], None]] = {
    "table_entry": _write_table_entry,
    "counter_entry": _write_counter,
    "direct_counter_entry": _write_direct_counter,
    "packet_replication_engine_entry": write_replication,
    "register_entry": _write_register,
    "meter_entry": meters.write_meter,
    "direct_meter_entry": meters.write_direct_meter,
    "action_profile_member": profiles.write_member,
    "action_profile_group": profiles.write_group,
    "value_set_entry": write_value_set,
    "digest_entry": _write_digest,
}
