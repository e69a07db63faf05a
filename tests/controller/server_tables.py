# SPDX-License-Identifier: Apache-2.0
"""Job tables with servers, in virtual time: for tests of jobs on servers, and on shared slots in front of servers.

A slot version takes 1108 bytes of a server: 20 of header, 1024 of four words, 64 beside. So 4 slots take 8864 bytes of
one server, or 4432 of each of two.

`worker`, `colocated` and `registered` make jobs on servers alone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.servers import Server, Worker
from inagg_controller.jobs.table import JobTable
from tests.controller.tables import create_on_servers, new_table

ROOM = 1 << 20
FOUR_SLOTS = 8864  # bytes


def add_server(table: JobTable, name: str = "a", memory: int = ROOM, now: float = 0.0) -> Server:
    """Server a is at 10.0.1.97, b at 10.0.1.98."""
    return table.servers.register(name, 0x0A000100 + ord(name[0]), 18754, memory, now)


def register_all(table: JobTable, job: Job, member: Callable[[int], Registered]) -> Job:
    """Register all ranks. member: what a rank registers."""
    for rank in range(job.workers):
        table.register(job.id, member(rank), 0.0)
    return job


def serve_all(table: JobTable, job: Job, now: float = 0.0) -> None:
    """All ranks say that they serve the job."""
    for rank in range(job.workers):
        table.serve(job.id, rank, now)


def beat(table: JobTable, server: Server, *jobs: Job, now: float = 0.0) -> None:
    """A heartbeat of a server that serves these jobs."""
    table.servers.heartbeat(server.name, server.instance, now, [job.placement.key for job in jobs])


def serving(job: Job) -> set[int]:
    """The servers that serve a job, by index."""
    assert job.placement.servers is not None
    return job.placement.servers.serving


def seats(job: Job) -> list[str]:
    """The names of a job's servers, by index."""
    assert job.placement.servers is not None
    return [seat.name for seat in job.placement.servers.seats]


def ordered(table: JobTable, server: Server) -> list[int]:
    """The jobs that a server is ordered to serve."""
    return [job.id for job in table.servers.orders(server.name, server.instance)]


def tick(table: JobTable, start: float, end: float) -> None:
    """Let time pass in tenths of a second."""
    for tenth in range(round(start * 10), round(end * 10) + 1):
        table.tick(tenth / 10)


def worker(rank: int, server_udp_port: int | None = 5000) -> Worker:
    return Worker(rank=rank, ip=0x0A000001 + rank, udp_port=4000, server_udp_port=server_udp_port)


def table_without_switch(slot_versions: int = 0, **limits: Any) -> JobTable:
    return new_table(slot_versions=slot_versions, topology=Topology(()), **limits)


join = partial(register_all, member=worker)


def colocated(table: JobTable, workers: int = 2, slots: int = 4) -> Job:
    return create_on_servers(table, workers, slots, "", 0.0, colocated=True)


def registered(table: JobTable, workers: int = 2, slots: int = 4, creator: str | None = None) -> Job:
    return create_on_servers(table, workers, slots, "", 0.0, creator, colocated=False)
