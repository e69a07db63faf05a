"""Write: applies one update to a program. Raises RequestError, and has then changed nothing."""

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime_entries import entry_key, parse_action, parse_key
from inagg_switch.p4runtime_errors import Code, RequestError, from_errno, invalid
from inagg_switch.p4runtime_names import Array, Table
from inagg_switch.p4runtime_target import Target
from inagg_switch.p4runtime_values import full_width, parse_value

INSERT = p4runtime_pb2.Update.INSERT
MODIFY = p4runtime_pb2.Update.MODIFY
DELETE = p4runtime_pb2.Update.DELETE

MAX_EGRESS_PORT = 511  # bit<9>
MAX_REPLICA_ID = 0xFFFF  # v1model's egress_rid is bit<16>
MAX_GROUP_ID = 0xFFFF  # v1model's mcast_grp is bit<16>


def apply_update(target: Target, update: p4runtime_pb2.Update) -> None:
    """Applies an update of any kind that this server supports."""
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
    if message.HasField("meter_config") or message.HasField("meter_counter_data"):
        raise invalid(f"table {table.name} has no direct meter")
    if message.idle_timeout_ns:
        raise invalid(f"table {table.name} does not support idle timeouts")


def _check_count(data: p4runtime_pb2.CounterData, subject: str) -> None:
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"{subject}: a counter cannot be negative")


def _insert_entry(target: Target, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    if table.is_const:
        raise RequestError(Code.PERMISSION_DENIED, f"table {table.name} has const entries")
    key = parse_key(table, message)
    if not message.HasField("action"):
        raise invalid(f"table {table.name}: a new entry needs an action")
    action, params = parse_action(target.names, table, message.action, is_default=False)
    try:
        target.control.table_insert(table.id, key.match, key.priority, action, params)
        if message.HasField("counter_data"):
            data = message.counter_data
            target.control.direct_counter_write(
                table.id, key.match, key.priority, data.packet_count, data.byte_count
            )
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None
    target.remember(table.id, key, message)


def _modify_entry(target: Target, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    key = parse_key(table, message)
    try:
        if message.HasField("action"):
            action, params = parse_action(target.names, table, message.action, is_default=False)
            target.control.table_modify(table.id, key.match, key.priority, action, params)
        elif all(entry_key(e) != key for e in target.control.table_entries(table.id, table.field_bytes)):
            raise RequestError(Code.NOT_FOUND, f"table {table.name}: there is no such entry")
        if message.HasField("counter_data"):
            data = message.counter_data
            target.control.direct_counter_write(
                table.id, key.match, key.priority, data.packet_count, data.byte_count
            )
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None
    target.remember(table.id, key, message)


def _delete_entry(target: Target, table: Table, message: p4runtime_pb2.TableEntry) -> None:
    if table.is_const:
        raise RequestError(Code.PERMISSION_DENIED, f"table {table.name} has const entries")
    key = parse_key(table, message)
    try:
        target.control.table_delete(table.id, key.match, key.priority)
    except OSError as error:
        raise from_errno(error, f"table {table.name}") from None
    target.opaque.pop((table.id, key), None)


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
    if table.has_const_default:
        raise RequestError(Code.PERMISSION_DENIED, f"table {table.name}: its default action is const")
    action, params = 0, b""
    if message.HasField("action"):
        action, params = parse_action(target.names, table, message.action, is_default=True)
    try:
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


def index_range(
    array: Array, message: p4runtime_pb2.CounterEntry | p4runtime_pb2.RegisterEntry, what: str
) -> tuple[int, int]:
    """First index and number of the cells that a message means: one, or all when it has no index."""
    if not message.HasField("index"):
        return 0, array.size
    index = message.index.index
    if index < 0:
        raise invalid(f"{what} {array.name}: the index {index} is negative")
    if index >= array.size:
        raise RequestError(
            Code.OUT_OF_RANGE, f"{what} {array.name}: the index {index} is not below {array.size}"
        )
    return index, 1


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


def _write_replication(
    target: Target, kind: int, message: p4runtime_pb2.PacketReplicationEngineEntry
) -> None:
    if message.WhichOneof("type") != "multicast_group_entry":
        raise RequestError(Code.UNIMPLEMENTED, "clone sessions are not supported by this switch")
    entry = message.multicast_group_entry
    group = entry.multicast_group_id
    if group == 0:
        raise invalid("0 is not a multicast group")
    if group > MAX_GROUP_ID:
        raise RequestError(Code.OUT_OF_RANGE, f"multicast group {group}: ids are 1 to {MAX_GROUP_ID}")
    if kind == INSERT and group in target.groups:
        raise RequestError(Code.ALREADY_EXISTS, f"multicast group {group} exists")
    if kind != INSERT and group not in target.groups:
        raise RequestError(Code.NOT_FOUND, f"multicast group {group} does not exist")
    replicas = [] if kind == DELETE else parse_replicas(entry)
    # To the program an empty group is no group: packets to either are dropped.
    had_replicas = group in target.groups and len(target.groups[group].replicas) > 0
    if replicas or had_replicas:
        try:
            target.control.multicast_set(group, replicas)
        except OSError as error:
            raise from_errno(error, f"multicast group {group}") from None
    if kind == DELETE:
        del target.groups[group]
    else:
        target.groups[group] = p4runtime_pb2.MulticastGroupEntry()
        target.groups[group].CopyFrom(entry)


def parse_replicas(entry: p4runtime_pb2.MulticastGroupEntry) -> list[tuple[int, int]]:
    """(port, rid) of each replica of a group."""
    subject = f"multicast group {entry.multicast_group_id}"
    replicas: list[tuple[int, int]] = []
    for replica in entry.replicas:
        port = replica.egress_port
        if replica.port:
            port = parse_value(replica.port, MAX_EGRESS_PORT.bit_length(), f"{subject}: port")
        if not 0 <= port <= MAX_EGRESS_PORT:
            raise invalid(f"{subject}: the port {port} is not in 0 to {MAX_EGRESS_PORT}")
        if replica.instance > MAX_REPLICA_ID:
            raise invalid(f"{subject}: the instance {replica.instance} is above {MAX_REPLICA_ID}")
        if (port, replica.instance) in replicas:
            raise invalid(f"{subject}: port {port}, instance {replica.instance} is given twice")
        replicas.append((port, replica.instance))
    return replicas


def _write_register(target: Target, kind: int, message: p4runtime_pb2.RegisterEntry) -> None:
    register = target.names.register(message.register_id)
    subject = f"register {register.name}"
    if kind != MODIFY:
        raise invalid(f"{subject}: can only be modified")
    first, count = index_range(register, message, "register")
    if message.data.WhichOneof("data") != "bitstring" or register.bit_width == 0:
        raise invalid(f"{subject}: the value must be a bitstring, and the register one of bit<W>")
    value = full_width(parse_value(message.data.bitstring, register.bit_width, subject), register.bit_width)
    try:
        target.control.register_write(register.id, first, count, value)
    except OSError as error:
        raise from_errno(error, subject) from None


_WRITERS = {
    "table_entry": _write_table_entry,
    "counter_entry": _write_counter,
    "direct_counter_entry": _write_direct_counter,
    "packet_replication_engine_entry": _write_replication,
    "register_entry": _write_register,
}
