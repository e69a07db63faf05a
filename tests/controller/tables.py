# SPDX-License-Identifier: Apache-2.0
"""Job tables, and jobs in leased slots, in virtual time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from inagg_contract.aggregation import LEASED, SERVER, SHARED, Aggregation
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.epochs import KEY_BYTES, Epochs
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.table import JobTable
from inagg_controller.jobs.tenants import Tenants
from inagg_controller.switch.entries import Member
from tests.controller.serving import STAR

POLICY = Policy(heartbeat_timeout_s=3.0, join_timeout_s=20.0, keep_s=30.0)


def member(rank: int, host: int | None = None) -> Member:
    host = rank + 1 if host is None else host
    return Member(rank=rank, ip=0x0A000000 + host, mac=0x020000000000 + host, udp_port=4000, port=host)


def new_table(
    slot_versions: int = 64,
    topology: Topology = STAR,
    epochs: Epochs | None = None,
    *,
    now: float = 0.0,
    connected: bool = True,
    policy: Policy = POLICY,
    tenants: Tenants | None = None,
    **limits: Any,
) -> JobTable:
    table = JobTable(
        topology,
        Limits(slot_versions=slot_versions, **limits),
        policy,
        epochs=epochs or Epochs(bytes(KEY_BYTES)),
        now=now,
        words=4,
        multicast=0xEFC00000,
        tenants=tenants,
    )
    for name in topology.by_name if connected else ():
        table.switches.connected(name)
    return table


def _create(
    aggregation: Aggregation,
    table: JobTable,
    workers: int,
    slots: int,
    name: str = "",
    now: float = 0.0,
    creator: str | None = None,
    at: Sequence[str] | None = None,
    **wishes: Any,
) -> Job:
    """Create a job. wishes: the other fields of a request."""
    request = JobRequest(
        aggregation=aggregation, workers=workers, slots=slots, name=name, creator=creator, at=at, **wishes
    )
    return table.create(request, now)


create_leased = partial(_create, LEASED)
create_shared = partial(_create, SHARED)
create_on_servers = partial(_create, SERVER)


def frees_slots(table: JobTable) -> bool:
    """Whether slots are about to become free."""
    return table.frees_room(JobRequest(aggregation=LEASED, workers=1, slots=2))


def frees_memory(table: JobTable) -> bool:
    """Whether memory of registered servers is."""
    return table.frees_room(JobRequest(aggregation=SERVER, workers=1, slots=2, colocated=False))


def frees_place(table: JobTable, job_class: str) -> bool:
    """Whether a job of a class is about to give its place to another."""
    return table.frees_room(JobRequest(aggregation=SERVER, workers=1, slots=2, job_class=job_class))


def move(table: JobTable, job: Job) -> None:
    """Give a job other slots, in its or other switches."""
    leaf_of = job.placement.tree.leaf_of
    request = JobRequest(
        aggregation=LEASED,
        workers=job.workers,
        slots=job.slots,
        at=[leaf_of[rank].name for rank in range(job.workers)],
        **job.owner._asdict(),
    )
    table._states.check_epoch()
    plan = table._planners.plan(request, table._states.holders, moving=job)
    table._states.replace(job, request, plan)


def carry_out(table: JobTable, now: float) -> None:
    while table.switches.effects:
        table.switches.done(table.switches.effects.popleft(), now)


def running(table: JobTable, workers: int = 2, now: float = 0.0, slots: int = 4) -> Job:
    job = create_leased(table, workers, slots, "", now)
    for rank in range(workers):
        table.register(job.id, member(rank), now)
    carry_out(table, now)
    assert job.state == "running"
    return job
