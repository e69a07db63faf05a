# SPDX-License-Identifier: Apache-2.0
"""Invariants of quotas under any sequence of events, in virtual time: they hold, and what a job has is freed once."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from inagg_controller.configuration import parse_job_classes
from inagg_controller.errors import UnavailableError
from inagg_controller.jobs.classes import Held
from inagg_controller.jobs.job import Job
from tests.controller.life_with_servers import LifeWithServers
from tests.controller.shared_tables import SHARED_SLOTS

CLASSES = parse_job_classes(
    [
        "few,jobs=2",
        "small,slots=6,memory=8864,priority=1",
        "servers,jobs=3,aggregation=shared+server",
        "closed,jobs=0",
    ]
)
HOST_SHARE = 0.5


class LifeWithClasses(LifeWithServers):
    """The same with jobs of several classes and hosts.

    freed: the epochs of the jobs that have been seen without resources.
    """

    limits: ClassVar[Mapping[str, Any]] = {
        "shared_slots": SHARED_SLOTS,
        "classes": CLASSES,
        "host_share": HOST_SHARE,
    }

    @initialize()
    def start(self) -> None:
        super().start()
        self.freed: set[int] = set()

    @rule(
        job_class=st.sampled_from(["default", *(each.name for each in CLASSES)]),
        creator=st.sampled_from([None, "10.0.0.1", "10.0.0.2"]),
        priority=st.integers(0, 2),
    )
    def ask_as(self, job_class: str, creator: str | None, priority: int) -> None:
        """The next jobs that are created are of this class, and from this host."""
        self.job_class, self.creator, self.priority = job_class, creator, priority

    @rule(workers=st.integers(1, 2))
    def create_within_the_number(self, workers: int) -> None:
        """The number of jobs is a reason to refuse a job if and only if the class has them all."""
        full = self.jobs_of(self.job_class) == self.table.classes[self.job_class].jobs
        before, refusal = self.picture(), ""
        try:
            job = self.table.create_on_servers(
                workers, 2, "", self.now, self.creator, colocated=True, job_class=self.job_class
            )
        except UnavailableError as error:
            refusal = str(error)
            assert self.picture() == before
        else:
            self.epochs.append(job.epoch)
        assert ("its quota is jobs=" in refusal) is full

    def jobs_of(self, job_class: str) -> int:
        return len(self.holders(job_class))

    def holders(self, job_class: str) -> list[Job]:
        return [job for job in self.table.jobs.values() if job.job_class == job_class and job.holds_resources]

    @invariant()
    def no_class_has_more_than_its_quotas(self) -> None:
        for known in self.table.classes.values():
            held = self.table.held_by(known.name)
            assert known.jobs is None or held.jobs <= known.jobs
            assert known.slots is None or max(held.slots.values()) <= known.slots
            assert known.memory is None or held.memory <= known.memory
        for job in self.table.jobs.values():
            known = self.table.classes[job.job_class]
            assert job.aggregation in known.aggregation
            assert known.priority is None or job.aggregation != "shared" or job.priority <= known.priority

    @invariant()
    def a_class_holds_what_pools_and_servers_lease_to_its_jobs(self) -> None:
        for name in self.table.classes:
            memory = sum(
                lease.size
                for server in self.table.servers.values()
                for key, lease in server.leases.items()
                if self.table.jobs[key.id].job_class == name
            )
            leases = [lease for job in self.holders(name) for lease in job.leases.items()]
            slots = {
                switch: sum(lease.size for at, lease in leases if at == switch) // 2
                for switch in self.table.pools
            }
            assert self.table.held_by(name) == Held(self.jobs_of(name), slots, memory)

    @invariant()
    def no_host_has_more_than_its_share(self) -> None:
        for creator in ("10.0.0.1", "10.0.0.2"):
            for name, pool in self.table.pools.items():
                held = [
                    job.leases[name].size
                    for job in self.table.jobs.values()
                    if job.creator == creator and job.holds_resources and name in job.leases
                ]
                assert sum(held) <= HOST_SHARE * pool.size

    @invariant()
    def a_job_frees_its_part_once_after_it_has_ended(self) -> None:
        for job in self.table.jobs.values():
            assert not (job.epoch in self.freed and job.holds_resources)
            assert job.holds_resources or job.ended
            if not job.holds_resources:
                self.freed.add(job.epoch)

    def teardown(self) -> None:
        """Once all is over, every class has room for exactly the jobs of its quota."""
        super().teardown()
        nothing = Held(0, dict.fromkeys(self.table.pools, 0), 0)
        for known in self.table.classes.values():
            assert self.table.held_by(known.name) == nothing
            if known.jobs is None:
                continue
            for _ in range(known.jobs):
                self.table.create_on_servers(1, 2, "", self.now, colocated=True, job_class=known.name)
            with pytest.raises(UnavailableError, match=f"its quota is jobs={known.jobs}"):
                self.table.create_on_servers(1, 2, "", self.now, colocated=True, job_class=known.name)


TestLifeWithClasses = LifeWithClasses.TestCase
TestLifeWithClasses.settings = settings(max_examples=150, stateful_step_count=50)
