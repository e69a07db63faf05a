# SPDX-License-Identifier: Apache-2.0
"""Job tables, and jobs in leased slots, in virtual time."""

from typing import Any

from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.job import Job, Limits, Policy
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import Member
from tests.controller.serving import STAR

POLICY = Policy(heartbeat_timeout_s=3.0, join_timeout_s=20.0, keep_s=30.0)


def member(rank: int, host: int | None = None) -> Member:
    host = rank + 1 if host is None else host
    return Member(rank=rank, ip=0x0A000000 + host, mac=0x020000000000 + host, udp_port=4000, port=host)


def new_table(slot_versions: int = 64, topology: Topology = STAR, **limits: Any) -> JobTable:
    table = JobTable(
        topology,
        Limits(slot_versions=slot_versions, **limits),
        POLICY,
        first_epoch=100,
        now=0.0,
        words=4,
        multicast=0xEFC00000,
    )
    for name in topology.by_name:
        table.switch_connected(name)
    return table


def carry_out(table: JobTable, now: float) -> None:
    while table.effects:
        table.done(table.effects.popleft(), now)


def running(table: JobTable, workers: int = 2, now: float = 0.0, slots: int = 4) -> Job:
    job = table.create(workers, slots, "", now)
    for rank in range(workers):
        table.register(job.id, member(rank), now)
    carry_out(table, now)
    assert job.state == "running"
    return job
