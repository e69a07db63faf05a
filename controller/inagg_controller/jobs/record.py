# SPDX-License-Identifier: Apache-2.0
"""What is kept of jobs and servers while the controller does not run, as JSON.

Ranks, switches and servers tell the rest again: heartbeats, presence, counters, and the results of a change of way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from inagg_controller.fabric.topology import Link
from inagg_controller.fabric.tree import Tree, TreeSwitch
from inagg_controller.jobs.accounts import Owner
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.leases import Lease
from inagg_controller.jobs.placement import Kind, Placement
from inagg_controller.jobs.servers import Seat, Server, Worker

_T = TypeVar("_T")


class RecordError(Exception):
    """A record is not one of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord:
    """A ServerShare. registered: the names of the servers."""

    count: int
    registered: tuple[str, ...]
    memory: int
    seats: tuple[Seat, ...]
    serving: tuple[int, ...]
    beside: Mapping[int, Worker] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRecord:
    """The last placement of a job. links: (above, below, the link between them)."""

    epoch: int
    switches: tuple[TreeSwitch, ...]
    links: tuple[tuple[str, str, Link], ...]
    leases: Mapping[str, Lease]
    group: int | None
    results_ip: int | None
    servers: ShareRecord | None
    priority: int
    first_chunk: int = 0  # an earlier version's jobs begin there

    @property
    def tree(self) -> Tree:
        """The switches and links."""
        return Tree(self.switches, {(above, below): link for above, below, link in self.links})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job without its members. why_changing: the reason why it has lost its way; None: it has not. first, key: as in
    `Job`."""

    id: int
    name: str
    workers: int
    slots: int
    creator: str | None
    job_class: str
    on_path_loss: tuple[str, ...]
    secret: str
    state: str
    reason: str | None
    why_changing: str | None
    changes: int
    left: tuple[int, ...]
    lost: Mapping[int, str]
    placement: PlacementRecord
    first: Kind | None = None
    key: str = ""
    tenant: str | None = None

    @property
    def owner(self) -> Owner:
        """Whose the job is."""
        return Owner(self.creator, self.job_class, self.tenant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """A registered server."""

    name: str
    ip: int
    udp_port: int
    memory: int
    instance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Everything that is kept. jobs, servers: their records. members: of jobs, by number and rank; each has its own, so
    that the last of thousands costs no more than the first. numbers: the next of each kind of number. epoch_key: of
    `Epochs`; empty if there is none. ordinary: the links that ordinary traffic uses; empty if that is not known."""

    jobs: Mapping[int, bytes] = field(default_factory=dict)
    members: Mapping[tuple[int, int], bytes] = field(default_factory=dict)
    servers: Mapping[str, bytes] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    epoch_key: bytes = b""
    ordinary: tuple[str, ...] = ()


_jobs, _servers = TypeAdapter(JobRecord), TypeAdapter(ServerRecord)
_members: TypeAdapter[Registered] = TypeAdapter(Registered)


def record_of(job: Job) -> bytes:
    """A job's record, as JSON."""
    placement = job.placement
    return _jobs.dump_json(
        JobRecord(
            id=job.id,
            name=job.name,
            workers=job.workers,
            slots=job.slots,
            **job.owner._asdict(),
            on_path_loss=tuple(job.on_path_loss),
            secret=job.secret,
            state=job.state,
            reason=job.reason,
            why_changing=None if job.change is None else job.change.reason,
            changes=job.changes,
            left=tuple(job.left),
            lost=job.lost,
            first=job.first,
            key=job.key,
            placement=PlacementRecord(
                epoch=placement.epoch,
                first_chunk=placement.first_chunk,
                switches=placement.tree.switches,
                links=tuple((*ends, link) for ends, link in placement.tree.links.items()),
                leases=placement.leases,
                group=placement.group,
                results_ip=placement.results_ip,
                servers=_share_record(placement),
                priority=placement.priority,
            ),
        )
    )


def _share_record(placement: Placement) -> ShareRecord | None:
    share = placement.servers
    if share is None:
        return None
    return ShareRecord(
        count=share.count,
        registered=tuple(server.name for server in share.registered),
        memory=share.memory,
        seats=share.seats,
        serving=tuple(sorted(share.serving)),
        beside=share.beside,
    )


def record_of_member(member: Registered) -> bytes:
    """The record of a worker that has registered, as JSON."""
    return _members.dump_json(member)


def record_of_server(server: Server) -> bytes:
    """A server's record, as JSON."""
    return _servers.dump_json(
        ServerRecord(
            name=server.name,
            ip=server.ip,
            udp_port=server.udp_port,
            memory=server.memory,
            instance=server.instance,
        )
    )


def read_job(record: bytes) -> JobRecord:
    """A job's record. Raises RecordError."""
    return _read(_jobs, record)


def read_member(record: bytes) -> Registered:
    """A worker's record. Raises RecordError."""
    return _read(_members, record)


def read_server(record: bytes) -> ServerRecord:
    """A server's record. Raises RecordError."""
    return _read(_servers, record)


def _read(kind: "TypeAdapter[_T]", record: bytes) -> _T:
    try:
        return kind.validate_json(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"a record is not one of this version: {where}: {first['msg']}") from error
