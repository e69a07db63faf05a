# SPDX-License-Identifier: Apache-2.0
"""The packet replication engine: multicast groups and clone sessions. Their messages are kept as written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.entities.values import parse_value
from inagg_switch.p4runtime.errors import Code, RequestError, from_errno, invalid

INSERT = p4runtime_pb2.Update.INSERT
DELETE = p4runtime_pb2.Update.DELETE

_Kept = TypeVar("_Kept", p4runtime_pb2.MulticastGroupEntry, p4runtime_pb2.CloneSessionEntry)

MAX_EGRESS_PORT = 511  # bit<9>
MAX_REPLICA_ID = 0xFFFF  # v1model's egress_rid is bit<16>
MAX_GROUP_ID = 0xFFFF  # v1model's mcast_grp is bit<16>
MAX_SESSION_ID = 0x7FFF  # BMv2's


def write_replication(target: Target, kind: int, message: p4runtime_pb2.PacketReplicationEngineEntry) -> None:
    """Insert, modify or delete a group or session. Raises RequestError."""
    which = message.WhichOneof("type")
    if which == "multicast_group_entry":
        _write_group(target, kind, message.multicast_group_entry)
    elif which == "clone_session_entry":
        _write_session(target, kind, message.clone_session_entry)
    else:
        raise invalid("the entry is neither a multicast group nor a clone session")


def _check_there(kind: int, there: bool, subject: str) -> None:
    if kind == INSERT and there:
        raise RequestError(Code.ALREADY_EXISTS, f"{subject} exists")
    if kind != INSERT and not there:
        raise RequestError(Code.NOT_FOUND, f"{subject} does not exist")


def _write_group(target: Target, kind: int, entry: p4runtime_pb2.MulticastGroupEntry) -> None:
    group = entry.multicast_group_id
    if group == 0:
        raise invalid("0 is not a multicast group")
    if group > MAX_GROUP_ID:
        raise RequestError(Code.OUT_OF_RANGE, f"multicast group {group}: ids are 1 to {MAX_GROUP_ID}")
    subject = f"multicast group {group}"
    _check_there(kind, group in target.groups, subject)
    _write(target.groups, group, kind, entry, subject, lambda to: target.control.multicast_set(group, to))


def _write_session(target: Target, kind: int, entry: p4runtime_pb2.CloneSessionEntry) -> None:
    session = entry.session_id
    if session == 0:
        raise invalid("0 is not a clone session")
    if session > MAX_SESSION_ID:
        raise RequestError(Code.OUT_OF_RANGE, f"clone session {session}: ids are 1 to {MAX_SESSION_ID}")
    subject = f"clone session {session}"
    _check_there(kind, session in target.sessions, subject)
    length = entry.packet_length_bytes
    if length < 0:
        raise invalid(f"{subject}: packet_length_bytes is negative")
    if entry.class_of_service:
        raise RequestError(Code.UNIMPLEMENTED, f"{subject}: there is one class of service, 0")
    _write(
        target.sessions,
        session,
        kind,
        entry,
        subject,
        lambda to: target.externs.clone_set(session, to, length),
    )


def _write(
    kept: dict[int, _Kept],
    identity: int,
    kind: int,
    entry: _Kept,
    subject: str,
    send: Callable[[list[tuple[int, int]]], None],
) -> None:
    """Pass the replicas of a group or session to the program, and keep the message."""
    replicas = [] if kind == DELETE else parse_replicas(entry.replicas, subject)
    # The program does not distinguish a group without replicas from no group: packets to both are dropped.
    had_replicas = identity in kept and len(kept[identity].replicas) > 0
    if replicas or had_replicas:
        try:
            send(replicas)
        except OSError as error:
            raise from_errno(error, subject) from None
    if kind == DELETE:
        del kept[identity]
    else:
        kept[identity] = type(entry)()
        kept[identity].CopyFrom(entry)


def parse_replicas(messages: Sequence[p4runtime_pb2.Replica], subject: str) -> list[tuple[int, int]]:
    """(port, rid) of each replica. Raises RequestError."""
    replicas: dict[
        tuple[int, int], None
    ] = {}  # an ordered set; with a list, large groups would take quadratic time
    for replica in messages:
        port = replica.egress_port
        if replica.port:
            port = parse_value(replica.port, MAX_EGRESS_PORT.bit_length(), f"{subject}: port")
        if not 0 <= port <= MAX_EGRESS_PORT:
            raise invalid(f"{subject}: the port {port} is not in 0 to {MAX_EGRESS_PORT}")
        if replica.instance > MAX_REPLICA_ID:
            raise invalid(f"{subject}: the instance {replica.instance} is above {MAX_REPLICA_ID}")
        if (port, replica.instance) in replicas:
            raise invalid(f"{subject}: port {port}, instance {replica.instance} is given twice")
        replicas[port, replica.instance] = None
    return list(replicas)


def read_replication(
    target: Target, request: p4runtime_pb2.PacketReplicationEngineEntry
) -> Iterator[p4runtime_pb2.Entity]:
    """The requested groups or sessions, looked up at once; id 0 selects all; without a type, all of both kinds."""
    which = request.WhichOneof("type")
    groups = _chosen(target.groups, request.multicast_group_entry.multicast_group_id)
    sessions = _chosen(target.sessions, request.clone_session_entry.session_id)
    found = [
        *(("multicast_group_entry", one) for one in groups if which != "clone_session_entry"),
        *(("clone_session_entry", one) for one in sessions if which != "multicast_group_entry"),
    ]
    return (p4runtime_pb2.Entity(packet_replication_engine_entry={kind: kept}) for kind, kept in found)


def _chosen(kept: Mapping[int, _Kept], identity: int) -> list[_Kept]:
    """All messages for id 0, else the one with the id, if it exists."""
    if not identity:
        return list(kept.values())
    return [kept[identity]] if identity in kept else []
