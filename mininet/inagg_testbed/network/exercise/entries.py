# SPDX-License-Identifier: Apache-2.0
"""Loads the entries of a runtime JSON into a switch over P4Runtime.

A value is a number, or the text of a MAC, IPv4 or IPv6 address. A match is a value (exact, optional), or two: with the
length of the prefix (lpm), the mask (ternary), the end (range).
"""

import ipaddress
import queue
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

import inagg_p4runtime.messages
import inagg_p4runtime.quiet  # noqa: F401  before grpc is imported
from inagg_switch.errors import SwitchError
from inagg_switch.program.values import encode, find
from inagg_testbed.errors import ProcessFailedError
from inagg_testbed.network.exercise.documents import (
    CloneSession,
    MulticastGroup,
    Runtime,
    TableEntry,
    refusal,
)

_TIMEOUT_S = 30.0
_BATCH = 100  # updates; the answer to more may not fit gRPC's limit for errors
_MAC = re.compile(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")
_Value = int | str
_Update = p4runtime_pb2.Update
Updates = Sequence[tuple[str, Any]]  # the place in the file, and the update


def updates(p4info: Path, path: Path, runtime: Runtime) -> Updates:
    """The updates that a runtime JSON stands for, read from `path`.

    Raises ConfigurationError, which names the file and the entries, if the program lacks what they name.
    """
    info = text_format.Parse(p4info.read_text(), p4info_pb2.P4Info())
    found = []
    faults: list[str] = []
    kinds: dict[str, Sequence[TableEntry | MulticastGroup | CloneSession]] = {
        "table_entries": runtime.table_entries,
        "multicast_group_entries": runtime.multicast_group_entries,
        "clone_session_entries": runtime.clone_session_entries,
    }
    for kind, entries in kinds.items():
        for number, entry in enumerate(entries):
            place = f"{path}: {kind}.{number}"
            wrong: list[str] = []
            found.append((place, _update(info, entry, wrong)))
            faults += [f"{place}: {fault}" for fault in wrong]
    if faults:
        raise refusal(faults)
    return found


@contextmanager
def _noted(faults: list[str]) -> Iterator[None]:
    try:
        yield
    except (SwitchError, ValueError) as error:
        faults.append(str(error))


def _update(
    info: p4info_pb2.P4Info, entry: TableEntry | MulticastGroup | CloneSession, faults: list[str]
) -> Any:
    update = _Update(type=_Update.INSERT)
    if isinstance(entry, TableEntry):
        with _noted(faults):
            _fill_entry(info, entry, update.entity.table_entry, faults)
        if entry.default_action:
            update.type = _Update.MODIFY
        return update
    engine = update.entity.packet_replication_engine_entry
    if isinstance(entry, MulticastGroup):
        made = engine.multicast_group_entry
        made.multicast_group_id = entry.multicast_group_id
    else:
        made = engine.clone_session_entry
        made.session_id, made.packet_length_bytes = entry.clone_session_id, entry.packet_length_bytes
    for replica in entry.replicas:
        made.replicas.add(egress_port=replica.egress_port, instance=replica.instance)
    return update


def _fill_entry(info: p4info_pb2.P4Info, entry: TableEntry, made: Any, faults: list[str]) -> None:
    """Fill a P4Runtime entry. Notes the faults of keys and parameters; raises SwitchError for a table or an action that
    does not exist."""
    table = find(info.tables, entry.table, "table", "the program")
    owner = f"table {table.preamble.name}"
    made.table_id = table.preamble.id
    made.priority = entry.priority or 0
    made.is_default_action = bool(entry.default_action)
    fields = {field.name: field for field in table.match_fields}
    for name, value in (entry.match or {}).items():
        with _noted(faults):
            field = _named(fields, name, "key", owner)
            match = _match(field, value if isinstance(value, list) else [value], f"key {name} of {owner}")
            if match is not None:
                made.match.append(match)
    actions = [
        action for action in info.actions if action.preamble.id in {ref.id for ref in table.action_refs}
    ]
    action = find(actions, entry.action_name, "action", owner)
    params = {param.name: param for param in action.params}
    made.action.action.action_id = action.preamble.id
    for name in params.keys() - entry.action_params.keys():
        faults.append(f"action {action.preamble.name} needs a value for {name}")
    for name, value in entry.action_params.items():
        with _noted(faults):
            param = _named(params, name, "parameter", f"action {action.preamble.name}")
            values = value if isinstance(value, list) else [value]
            what = f"parameter {name} of {action.preamble.name}"
            if len(values) != 1:
                raise ValueError(f"{what} takes one value")
            made.action.action.params.add(param_id=param.id, value=_encoded(values[0], param.bitwidth, what))


def _named(known: Mapping[str, Any], name: str, kind: str, owner: str) -> Any:
    if name not in known:
        raise ValueError(f"{owner} has no {kind} {name}; there are: {', '.join(known) or 'none'}")
    return known[name]


def _match(field: p4info_pb2.MatchField, values: Sequence[_Value], what: str) -> Any:
    """The match of a field; None if it matches anything, which P4Runtime says by leaving it out."""
    kind, width = field.match_type, field.bitwidth
    made = p4runtime_pb2.FieldMatch(field_id=field.id)
    single = kind in (p4info_pb2.MatchField.EXACT, p4info_pb2.MatchField.OPTIONAL)
    if len(values) != (1 if single else 2):
        wanted = "one value" if single else "two values"
        raise ValueError(f"{what} takes {wanted}, not {len(values)}")
    first = _encoded(values[0], width, what)
    if kind == p4info_pb2.MatchField.EXACT:
        made.exact.value = first
    elif kind == p4info_pb2.MatchField.OPTIONAL:
        made.optional.value = first
    elif kind == p4info_pb2.MatchField.LPM:
        if not isinstance(values[1], int) or not 0 <= values[1] <= width:
            raise ValueError(f"{what}: the length of the prefix is {values[1]!r}, not 0 to {width}")
        made.lpm.value, made.lpm.prefix_len = first, values[1]
        return made if values[1] else None
    elif kind == p4info_pb2.MatchField.TERNARY:
        made.ternary.value, made.ternary.mask = first, _encoded(values[1], width, what)
        return made if any(made.ternary.mask) else None
    else:
        made.range.low, made.range.high = first, _encoded(values[1], width, what)
        everything = made.range.low == encode(0, width, what) and made.range.high == encode(
            (1 << width) - 1, width, what
        )
        return None if everything else made
    return made


def _encoded(value: _Value, width: int, what: str) -> bytes:
    """A value as bytes; a negative number in two's complement. Raises EntryError, ValueError."""
    if isinstance(value, int):
        negative = -(1 << width >> 1) <= value < 0
        return encode(value + (1 << width) if negative else value, width, what)
    if _MAC.fullmatch(value):
        data = bytes.fromhex(value.replace(":", ""))
    else:
        try:
            data = ipaddress.ip_address(value).packed
        except ValueError:
            raise ValueError(
                f"{what}: {value!r} is neither a number nor a MAC, IPv4 or IPv6 address; write numbers without quotes"
            ) from None
    if 8 * len(data) != width:
        raise ValueError(f"{what}: {value} has {8 * len(data)} bits, not {width}")
    return data


def load(address: str, device_id: int, wanted: Updates) -> None:
    """Write the updates to a switch, as its primary controller.

    Raises ConfigurationError that names those that the switch refuses, ProcessFailedError if it does not answer.
    """
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    arbitration = p4runtime_pb2.StreamMessageRequest()
    arbitration.arbitration.device_id = device_id
    arbitration.arbitration.election_id.low = 1
    requests.put(arbitration)
    with grpc.insecure_channel(address) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        try:
            stream = stub.StreamChannel(iter(requests.get, None), timeout=_TIMEOUT_S)
            next(stream)
            for start in range(0, len(wanted), _BATCH):
                _write(stub, device_id, wanted[start : start + _BATCH])
        except grpc.RpcError as error:
            raise ProcessFailedError(f"the switch at {address} does not answer: {error.details()}") from error
        finally:
            requests.put(None)


def _write(stub: Any, device_id: int, batch: Updates) -> None:
    request = p4runtime_pb2.WriteRequest(device_id=device_id)
    request.election_id.low = 1
    request.updates.extend(update for _, update in batch)
    try:
        stub.Write(request, timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        refused = list(_refused(error, batch))
        if not refused:
            raise
        raise refusal(refused) from error


def _refused(error: Any, batch: Updates) -> Iterator[str]:
    """A message for each update that the switch has refused (P4Runtime specification, 12.3)."""
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status.ParseFromString(value)
    for (place, _), detail in zip(batch, status.details, strict=False):
        one = p4runtime_pb2.Error()
        if detail.Unpack(one) and one.canonical_code != 0:
            yield f"{place}: the switch refuses the entry: {one.message}"
