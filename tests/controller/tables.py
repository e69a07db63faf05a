# SPDX-License-Identifier: Apache-2.0
"""Job tables with servers, in virtual time: for tests of jobs on servers, and on shared slots in front of servers.

A slot version takes 1108 bytes of a server: 20 of header, 1024 of four words, 64 beside. So 4 slots take 8864 bytes of
one server, or 4432 of each of two.
"""

from collections.abc import Callable

from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.servers import Server
from inagg_controller.jobs.table import JobTable

ROOM = 1 << 20
FOUR_SLOTS = 8864  # bytes


def add_server(table: JobTable, name: str = "a", memory: int = ROOM, now: float = 0.0) -> Server:
    """Server a is at 10.0.1.97, b at 10.0.1.98."""
    return table.register_server(name, 0x0A000100 + ord(name[0]), 18754, memory, now)


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
    table.server_heartbeat(server.name, server.instance, now, [job.key for job in jobs])


def serving(job: Job) -> set[int]:
    """The servers that serve a job, by index."""
    assert job.servers is not None
    return job.servers.serving


def seats(job: Job) -> list[str]:
    """The names of a job's servers, by index."""
    assert job.servers is not None
    return [seat.name for seat in job.servers.seats]


def ordered(table: JobTable, server: Server) -> list[int]:
    """The jobs that a server is ordered to serve."""
    return [job.id for job in table.orders(server.name, server.instance)]


def tick(table: JobTable, start: float, end: float) -> None:
    """Let time pass in tenths of a second."""
    for tenth in range(round(start * 10), round(end * 10) + 1):
        table.tick(tenth / 10)
