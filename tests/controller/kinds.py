# SPDX-License-Identifier: Apache-2.0
"""Jobs of every kind, in virtual time: their tables, their ranks, and the switch and servers that sum for them."""

from typing import Any, NamedTuple

from inagg_contract.aggregation import (
    COLOCATED,
    LEASED,
    REGISTERED,
    SERVER,
    SHARED,
    Aggregation,
    ServerKind,
    uses_switches,
)
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.servers import Worker
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import Member
from tests.controller.server_tables import add_server
from tests.controller.serving import SHARED_SLOTS
from tests.controller.shared_tables import HOSTS
from tests.controller.tables import carry_out, new_table


class Kind(NamedTuple):
    """What sums for a job. servers: whose they are, if it has any."""

    aggregation: Aggregation
    servers: ServerKind | None = None

    def __str__(self) -> str:
        return self.aggregation if self.servers is None else f"{self.aggregation}-{self.servers}"


KINDS = (
    Kind(LEASED),
    Kind(SHARED, COLOCATED),
    Kind(SHARED, REGISTERED),
    Kind(SERVER, COLOCATED),
    Kind(SERVER, REGISTERED),
)
SWITCHED = tuple(kind for kind in KINDS if uses_switches(kind.aggregation))


def table_of(aggregation: Aggregation, **changes: Any) -> JobTable:
    """A table for jobs of a kind, without registered servers: on servers alone without a switch.

    changes: of `new_table`.
    """
    topology = HOSTS if uses_switches(aggregation) else Topology(())
    settings: dict[str, Any] = {"topology": topology, "shared_slots": SHARED_SLOTS}
    return new_table(**settings | changes)


def table_for_all(**changes: Any) -> JobTable:
    """A table for jobs of every kind, with the registered servers a and b. changes: of `new_table`."""
    table = table_of(SHARED, **changes)
    for name in "ab":
        add_server(table, name)
    return table


def create(
    table: JobTable, kind: Kind, workers: int = 2, slots: int = 4, now: float = 0.0, **wishes: Any
) -> Job:
    """Create a job. wishes: the other fields of a request."""
    colocated = kind.servers == COLOCATED
    request = JobRequest(
        aggregation=kind.aggregation, workers=workers, slots=slots, colocated=colocated, **wishes
    )
    return table.create(request, now)


def worker_of(job: Job, rank: int, host: int | None = None) -> Registered:
    """What a rank registers. host: of h1, h2, ..., its own unless it is given."""
    host = rank + 1 if host is None else host
    ip, udp_port, server_udp_port = 0x0A000000 + host, 4000 + rank, 5000 + rank
    if not job.placement.tree.switches:
        return Worker(rank=rank, ip=ip, udp_port=udp_port, server_udp_port=server_udp_port)
    mac = 0x020000000000 + host
    return Member(rank=rank, ip=ip, mac=mac, udp_port=udp_port, port=host, server_udp_port=server_udp_port)


def join(table: JobTable, job: Job, now: float = 0.0) -> Job:
    """Register all ranks."""
    for rank in range(job.workers):
        table.register(job.id, worker_of(job, rank), now)
    return job


def obey(table: JobTable, now: float = 0.0) -> None:
    """The switch and the servers do what the table wants of them, if the switch is there."""
    carry_out(table, now)
    serve(table, now)


def serve(table: JobTable, now: float = 0.0) -> None:
    """The servers serve the jobs that they are to serve, and no other."""
    for job in list(table.jobs.values()):
        for seat in job.placement.servers.seats if job.placement.servers is not None else ():
            if seat.rank is not None:
                table.serve(job.id, seat.rank, now)
    for server in table.servers.by_name.values():
        orders = table.servers.orders(server.name, server.instance)
        table.servers.heartbeat(server.name, server.instance, now, [job.placement.key for job in orders])


def running(table: JobTable, kind: Kind, workers: int = 2, now: float = 0.0, slots: int = 4) -> Job:
    """A job that runs."""
    job = join(table, create(table, kind, workers, slots, now), now)
    obey(table, now)
    assert job.state == "running"
    return job


def tick(table: JobTable, now: float) -> None:
    """Let time pass. The registered servers go on as they are."""
    for server in table.servers.by_name.values():
        table.servers.heartbeat(server.name, server.instance, now, server.serving)
    table.tick(now)


def all_is_free(table: JobTable) -> bool:
    """Whether no job holds anything of the switch or of a registered server."""
    return (
        all(pool.free == pool.size for pool in table.switches.pools.values())
        and all(server.free == server.memory for server in table.servers.by_name.values())
        and not any(job.holds_resources for job in table.jobs.values())
        and not table.switches.effects
        and not table.switches.installed()
    )
