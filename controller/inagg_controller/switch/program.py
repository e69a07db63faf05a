# SPDX-License-Identifier: Apache-2.0
"""Reads the P4 program's sizes from its P4Info and checks the tables that the controller writes.

The check at start reports a wrong file by its name, instead of a failed write in the middle of a job.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from inagg_controller.errors import ConfigurationError
from inagg_controller.switch.entries import (
    ADMISSION,
    DISPLACEMENT,
    HOME,
    PARENT,
    RECEIVER,
    SERVER,
    SHARING,
    SOURCE_IP,
    SOURCE_MAC,
    STATION,
    UPLINK,
    Binding,
    Member,
    Parent,
    SharedServer,
    Sharing,
    TableEntry,
    aggregator_entries,
    binding_entries,
    job_entries,
    linked_port_entry,
    loss_entry,
    queue_entry,
)
from inagg_p4runtime.names import short_names

_POOL = "InaggIngress.pool"
_SLOT_EPOCH = "InaggIngress.slot_epoch"
DIRECT_COUNTERS = ("InaggIngress.admission.admitted", "InaggIngress.shared_slots.displaced")


@dataclass(frozen=True, slots=True)
class Program:
    """The P4 program's properties that the controller depends on.

    p4info, device_config: the program. cookie: names it. words: 256-byte words in a DATA packet. slot_versions: slot
    versions of the switch. job_members: bits of a member bitmap. max_members, max_above: members, and switches and
    servers above, of all jobs that fit into the tables. max_shared_jobs, max_stations: jobs on shared slots, and bound
    stations, that fit into the tables. counters: names of the indexed counters.
    """

    p4info: Any = field(repr=False)
    device_config: bytes = field(repr=False)
    cookie: int
    words: int
    slot_versions: int
    job_members: int
    max_members: int
    max_above: int
    max_shared_jobs: int
    max_stations: int
    counters: tuple[str, ...]


def load_program(p4info_path: Path, device_config_path: Path) -> Program:
    """Read and check a P4Info file (text format); check that the device config can be read.

    Raises ConfigurationError, which names the file and the fault.
    """
    p4info = p4info_pb2.P4Info()
    try:
        # A newer p4c may write fields that this P4Info schema does not have.
        text = p4info_path.read_text()
        text_format.Parse(text, p4info, allow_unknown_field=True)
        device_config = device_config_path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{p4info_path} is not P4Info in text format: {error}") from error
    try:
        return _examine(p4info, device_config, _digest(text.encode(), device_config))
    except LookupError as error:
        raise ConfigurationError(
            f"{p4info_path} is not the P4Info of inagg.p4: {error.args[0]}. Compile p4/inagg.p4 of this version."
        ) from error


def _examine(p4info: Any, device_config: bytes, cookie: int) -> Program:
    tables = {table.preamble.name: table for table in p4info.tables}
    actions = {action.preamble.name: action for action in p4info.actions}
    registers = {register.preamble.name: register for register in p4info.registers}
    for entry in _one_of_each():
        _check_entry(tables, actions, entry)
    direct = {counter.preamble.name for counter in p4info.direct_counters}
    for name in DIRECT_COUNTERS:
        if name not in direct:
            raise LookupError(f"it has no direct counter {name}")
    for name in (_POOL, _SLOT_EPOCH):
        if name not in registers or registers[name].size <= 0:
            raise LookupError(f"it has no register {name} with a size")
    slot_versions = registers[_SLOT_EPOCH].size
    words, rest = divmod(registers[_POOL].size, slot_versions)
    if rest or not words:
        raise LookupError(f"the size of {_POOL} is not a multiple of that of {_SLOT_EPOCH}")
    member = next(param for param in actions["InaggIngress.admission.admit"].params if param.name == "member")
    return Program(
        p4info=p4info,
        device_config=device_config,
        cookie=cookie,
        words=words,
        slot_versions=slot_versions,
        job_members=member.bitwidth,
        # A job of two workers or more has a receiver for all of them, also at a switch with one of them.
        max_members=min(tables[ADMISSION].size, tables[HOME].size, tables[RECEIVER].size // 2),
        max_above=min(tables[name].size for name in (PARENT, UPLINK, SERVER)),
        max_shared_jobs=min(tables[SHARING].size, tables[DISPLACEMENT].size // 2),
        max_stations=min(tables[name].size for name in (STATION, SOURCE_MAC, SOURCE_IP)) - 1,
        counters=short_names([counter.preamble.name for counter in p4info.counters]),
    )


def _digest(*parts: bytes) -> int:
    """64 bits that other parts hardly have."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return int.from_bytes(digest.digest()[:8], "big")


def _one_of_each() -> tuple[TableEntry, ...]:
    """An example of each kind of table entry that the controller writes."""
    member = Member(rank=0, ip=1, mac=1, udp_port=1, port=1)
    parent = Parent(ip=2, mac=2, port=2, rank=0)
    server = SharedServer(ip=1, mac=1, udp_port=2, port=1)
    sharing = Sharing(
        base=0,
        size=2,
        offset=0,
        bits={0: 1},
        servers=(server,),
        homes=(0,),
        home_ports={0: 1},
        priority=0,
        expiry_us=1,
    )
    leased = job_entries(
        job=1, epoch=1, slot_base=0, slots=2, group=2, members={0: member}, parents=[parent], own=(1, 1)
    )
    shared = job_entries(job=1, epoch=1, group=2, members={0: member}, sharing=sharing, own=(1, 1))
    below = job_entries(
        job=1, epoch=1, group=2, members={0: member}, sharing=sharing, parents=[parent], own=(1, 1)
    )
    return (
        *leased.receivers,
        *leased.admissions,
        *shared.receivers,
        *shared.admissions,
        *below.admissions,
        *aggregator_entries(1, 1),
        *binding_entries([Binding(ip=2, mac=2, port=1)]),
        linked_port_entry(1),
        queue_entry(1, 1),
        loss_entry(1, "ingress", True, 0.5),
        loss_entry(1, "egress", True, 0.5),
    )


def _check_entry(tables: dict[str, Any], actions: dict[str, Any], entry: TableEntry) -> None:
    table = tables.get(entry.table)
    if table is None:
        raise LookupError(f"it has no table {entry.table}")
    fields = {field.name for field in table.match_fields}
    if fields != {name for name, _ in entry.match}:
        raise LookupError(f"table {entry.table} matches on {sorted(fields)}")
    action = actions.get(entry.action)
    if action is None or action.preamble.id not in {ref.id for ref in table.action_refs}:
        raise LookupError(f"table {entry.table} has no action {entry.action}")
    params = {param.name for param in action.params}
    if params != {name for name, _ in entry.params}:
        raise LookupError(f"action {entry.action} takes {sorted(params)}")
