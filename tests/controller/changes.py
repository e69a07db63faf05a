# SPDX-License-Identifier: Apache-2.0
"""Jobs that change their way, and what their ranks do then, in virtual time."""

from array import array
from collections.abc import Sequence

from inagg_controller.jobs.job import Job
from inagg_controller.jobs.servers import Worker
from inagg_controller.jobs.table import JobTable
from tests.controller.tables import carry_out, create_leased, member

ALL = ("same", "other", "servers", "fail")
SLOTS = 4
FIRST = array("I", range(SLOTS))


def running(table: JobTable, on_path_loss: Sequence[str] = ALL, workers: int = 2) -> Job:
    """A leased job of ranks at the first two switches of the topology in turns."""
    leaves = [name for name in table.switches.pools if not name.startswith("spine")]
    at = [leaves[rank % len(leaves)] for rank in range(workers)]
    job = create_leased(table, workers, SLOTS, at=at, on_path_loss=on_path_loss)
    for rank in range(workers):
        table.register(job.id, member(rank), 0.0)
    carry_out(table, 0.0)
    assert job.state == "running"
    return job


def freeze(
    table: JobTable, job: Job, now: float, ranks: Sequence[int] | None = None, beside: Sequence[int] = ()
) -> None:
    """beside: the ranks that are in a network beside that of the switches."""
    assert job.change is not None
    for rank in range(job.workers) if ranks is None else ranks:
        there = worker_beside(rank) if rank in beside else None
        table.changing.publish(job, rank, job.change.lost, FIRST, 5000, now, there)


def worker_beside(rank: int) -> Worker:
    return Worker(rank=rank, ip=0x0A000101 + rank, udp_port=6000, server_udp_port=7000)


def found_by(job: Job) -> str:
    """By which option a changing job has found a way; empty if it has not."""
    assert job.change is not None
    return job.change.found_by


def go_on(table: JobTable, job: Job, now: float) -> None:
    """All ranks freeze and go on."""
    freeze(table, job, now)
    carry_out(table, now)
    if job.placement.servers is not None:
        for rank in range(job.placement.servers.count):
            table.serve(job.id, rank, now)
    assert table.changing.ready(job)
    for rank in range(job.workers):
        assert job.state == "changing"
        table.changing.resume(job, rank, job.placement.epoch, now)
    assert (job.state, job.change) == ("running", None)


def beat(table: JobTable, job: Job, now: float) -> None:
    for rank in range(job.workers):
        table.heartbeat(job.id, rank, now)
