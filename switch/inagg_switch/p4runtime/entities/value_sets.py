# SPDX-License-Identifier: Apache-2.0
"""Value sets of the parser: MODIFY replaces the members."""

from collections.abc import Iterator

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.entries import parse_fields
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError, from_errno, invalid

MODIFY = p4runtime_pb2.Update.MODIFY


def write_value_set(target: Target, kind: int, message: p4runtime_pb2.ValueSetEntry) -> None:
    """Replace the members of a value set. Raises RequestError."""
    value_set = target.names.value_set(message.value_set_id)
    subject = f"value set {value_set.name}"
    if kind != MODIFY:
        raise invalid(f"{subject}: can only be modified")
    if len(message.members) > value_set.size:
        raise RequestError(Code.RESOURCE_EXHAUSTED, f"{subject}: it has room for {value_set.size} members")
    rows = [parse_fields(value_set.fields, member.match, subject) for member in message.members]
    if len(set(rows)) < len(rows):
        raise invalid(f"{subject}: a member is given twice")
    try:
        target.externs.value_set_write(value_set.id, rows)
    except OSError as error:
        raise from_errno(error, subject) from None
    target.value_sets[value_set.id] = p4runtime_pb2.ValueSetEntry()
    target.value_sets[value_set.id].CopyFrom(message)


def read_value_sets(target: Target, request: p4runtime_pb2.ValueSetEntry) -> Iterator[p4runtime_pb2.Entity]:
    """The requested value sets, looked up at once; id 0 selects all. Raises RequestError."""
    value_sets = list(target.names.value_sets.values())
    if request.value_set_id:
        value_sets = [target.names.value_set(request.value_set_id)]
    found = [
        target.value_sets.get(value_set.id, p4runtime_pb2.ValueSetEntry(value_set_id=value_set.id))
        for value_set in value_sets
    ]
    return (p4runtime_pb2.Entity(value_set_entry=written) for written in found)
