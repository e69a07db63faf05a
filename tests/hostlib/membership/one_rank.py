# SPDX-License-Identifier: Apache-2.0
"""A rank of a job whose controller is fine and not there, for tests of one process."""

import torch

from inagg.membership.control import ControlClient
from inagg.membership.session import Session
from inagg.options import Options
from inagg.sums.journal import Report
from inagg.sums.work import SwitchWork
from inagg_contract.documents import Aggregator, Health, Heartbeat, JobStatus, Policy
from inagg_simulator.virtual_network import EPOCH, JOB


class HealthyController(ControlClient):
    """Answers that the job runs. `left_with`: the error with which the rank left."""

    left_with: str | None

    def heartbeat(
        self, job: int, rank: int, report: Report | None = None, *, timeout_s: float | None = None
    ) -> Heartbeat:
        return Heartbeat(state="running", lost=(), reason=None)

    def leave(
        self, job: int, rank: int, *, error: str | None = None, timeout_s: float | None = None
    ) -> JobStatus:
        self.left_with = error
        return status_of(1)


def health_of(aggregator: str | None) -> Health:
    """A controller's health. aggregator: its switch's address; None: it has no switch."""
    switch = (
        None if aggregator is None else Aggregator(ip=aggregator, mac="02:49:41:00:00:01", udp_port=18753)
    )
    return Health(
        switch="none" if switch is None else "connected",
        switch_error=None,
        words=4,
        slot_versions=8,
        free_slot_versions=8,
        aggregator=switch,
        jobs=0,
        switches=(),
        links=(),
    )


def status_of(workers: int) -> JobStatus:
    return JobStatus(
        id=JOB,
        name="",
        workers=workers,
        state="running",
        epoch=EPOCH,
        slots=16,
        words=4,
        registered=(0,),
        left=(),
        lost=(),
        reason=None,
        policy=Policy(
            rto_initial_s=0.1,
            rto_min_s=0.01,
            rto_max_s=1.0,
            give_up_s=120.0,
            heartbeat_interval_s=0.5,
            heartbeat_timeout_s=3.0,
        ),
        aggregator=Aggregator(ip="127.0.0.1", mac="", udp_port=9),
        counters=None,
    )


def all_reduce(one: Session, tensor: torch.Tensor, options: Options) -> SwitchWork:
    flat = tensor.contiguous()

    def deliver() -> None:
        tensor.copy_(flat)

    reduction = one.sums.submit(flat, options=options, call="", touches=[tensor], deliver=deliver)
    return SwitchWork([tensor], [reduction])
