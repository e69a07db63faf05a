# SPDX-License-Identifier: Apache-2.0
"""Tenants in the job table: rights, and quotas beside those of classes. Literal cases, in virtual time.

The switch has 64 slot versions, so 32 slots. Four slots take 8864 bytes of one server (server_tables).
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from inagg_controller.configuration import parse_job_classes
from inagg_controller.errors import (
    ForbiddenClassError,
    ForbiddenError,
    NotOfferedError,
    UnavailableError,
)
from inagg_controller.jobs.accounts import Held
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.table import JobTable
from inagg_controller.jobs.tenants import Tenant, Tenants, digest_of
from tests.controller.server_tables import FOUR_SLOTS, add_server
from tests.controller.tables import (
    carry_out,
    create_leased,
    create_on_servers,
    member,
    move,
    new_table,
)

CLASSES = parse_job_classes(["batch", "urgent,slots=8"])


def tenant(name: str = "vision", classes: tuple[str, ...] = ("batch", "urgent"), **quotas: Any) -> Tenant:
    return Tenant(name=name, token_sha256=(digest_of(name),), classes=classes, **quotas)


def table_of(*tenants: Tenant, **changes: Any) -> JobTable:
    return new_table(classes=CLASSES, tenants=Tenants(tenants), **changes)


def leased(table: JobTable, slots: int = 2, job_class: str = "batch", tenant: str | None = "vision") -> Job:
    return create_leased(table, 1, slots, job_class=job_class, tenant=tenant)


def registered(table: JobTable, slots: int = 4, tenant: str | None = "vision") -> Job:
    return create_on_servers(table, 1, slots, colocated=False, job_class="batch", tenant=tenant)


def held(table: JobTable, name: str = "vision") -> Held:
    return table.held_by(table.tenants.by_name[name])


def run(table: JobTable, job: Job) -> None:
    table.register(job.id, member(0), 0.0)
    carry_out(table, 0.0)
    assert job.state == "running"


# Rights


def test_a_tenant_has_jobs_of_its_classes_only() -> None:
    table = table_of(tenant(classes=("batch",)))
    assert leased(table).owner.title == "class batch, tenant vision"
    for name in ("urgent", "default", "unknown"):
        with pytest.raises(
            ForbiddenClassError, match=f"^job_class is {name}; the classes of the tenant vision are batch$"
        ):
            leased(table, job_class=name)
    assert len(table.jobs) == 1


def test_the_operator_has_jobs_of_all_classes_and_they_count_for_no_tenant() -> None:
    table = table_of(tenant(classes=("batch",)))
    assert leased(table, job_class="urgent", tenant=None).owner.tenant is None
    assert held(table) == Held(0, {"s1": 0}, 0)


def test_a_token_is_found_by_any_of_its_tenants_digests() -> None:
    both = Tenant(name="both", token_sha256=(digest_of("old"), digest_of("new")), classes=("batch",))
    tenants = Tenants([tenant(), both])
    found = {token: tenants.find(token) for token in ("vision", "old", "new", "", "é", digest_of("old"))}
    names = {token: each and each.name for token, each in found.items()}
    assert names == {"vision": "vision", "old": "both", "new": "both", "": None, "é": None} | {
        digest_of("old"): None
    }


# Quotas


def test_the_quota_of_jobs_holds_for_all_classes_of_a_tenant_together() -> None:
    table = table_of(tenant(jobs=2), tenant("text"))
    leased(table), leased(table, job_class="urgent")
    with pytest.raises(
        UnavailableError, match=r"^the tenant vision is full: its quota is jobs=2; wait until one ends$"
    ):
        leased(table)
    assert leased(table, tenant="text").owner.tenant == "text"


def test_a_tenant_may_have_no_jobs_at_all() -> None:
    table = table_of(tenant(jobs=0))
    with pytest.raises(
        NotOfferedError, match=r"^the tenant vision is full: its quota is jobs=0; it may have no jobs$"
    ):
        leased(table)


@pytest.mark.parametrize(
    ("quota", "granted", "refusal"),
    [
        (4, [4], "the jobs of the tenant vision have 4 slots of switch s1: its quota is slots=4"),
        (16, [8], "the jobs of the class urgent have 8 slots of switch s1: its quota is slots=8"),
    ],
)
def test_the_tighter_of_the_quotas_of_tenant_and_class_decides(
    quota: int, granted: list[int], refusal: str
) -> None:
    table = table_of(tenant(slots=quota))
    assert [leased(table, 8, "urgent").slots for _ in granted] == granted
    with pytest.raises(UnavailableError, match=refusal):
        leased(table, 8, "urgent")


def test_jobs_of_several_tenants_fill_a_class_together() -> None:
    table = table_of(tenant(slots=6), tenant("text", slots=6))
    assert [leased(table, 4, "urgent", name).slots for name in ("vision", "text")] == [4, 4]
    with pytest.raises(UnavailableError, match="the jobs of the class urgent have 8 slots"):
        leased(table, 2, "urgent", "text")
    assert (held(table).slots, held(table, "text").slots) == ({"s1": 4}, {"s1": 4})


def test_the_jobs_of_a_tenant_have_its_memory_of_all_servers_together() -> None:
    table = table_of(tenant(memory=FOUR_SLOTS), tenant("text"))
    add_server(table, "a")
    assert registered(table).slots == 4
    with pytest.raises(
        UnavailableError,
        match=r"^the jobs of the tenant vision have 8864 bytes of registered servers, and another needs 4432: "
        "its quota is memory=8864;",
    ):
        registered(table)
    assert held(table).memory == FOUR_SLOTS
    assert registered(table, tenant="text").slots == 4


def test_a_job_that_ends_makes_room_for_another_of_its_tenant() -> None:
    table = table_of(tenant(jobs=1), tenant("text", jobs=1))
    job = leased(table)
    run(table, job)

    def frees(name: str) -> bool:
        return table.frees_room(
            JobRequest(aggregation="server", workers=1, slots=2, job_class="batch", tenant=name)
        )

    assert not frees("vision")
    table.end(job.id, 1.0)
    assert (frees("vision"), frees("text"), held(table).jobs) == (True, False, 1)
    carry_out(table, 1.0)
    assert (frees("vision"), held(table).jobs) == (False, 0)
    leased(table)


# Other tenants


def test_the_job_of_a_tenant_that_is_gone_goes_on_also_elsewhere_and_no_other_is_created() -> None:
    table = table_of(tenant(jobs=1, slots=4))
    job = leased(table, slots=4)
    run(table, job)
    table.tenants.replace([tenant("text")])
    table.tick(1.0)
    assert job.state == "running"
    move(table, job)  # to other slots, while it has those: more than the tenant had
    carry_out(table, 1.0)
    assert (job.state, len(job.placements), job.owner.tenant) == ("running", 1, "vision")
    with pytest.raises(
        ForbiddenError, match=r"^vision is no longer a tenant of this controller \(--tenants\)$"
    ):
        leased(table)
    table.tenants.replace([tenant(jobs=1)])
    assert held(table) == Held(1, {"s1": 4}, 0)
    with pytest.raises(UnavailableError, match="the tenant vision is full"):
        leased(table)


def test_a_running_job_may_move_though_its_tenant_may_have_no_further_jobs() -> None:
    table = table_of(tenant())
    job = leased(table)
    run(table, job)
    table.tenants.replace([tenant(jobs=0, classes=("urgent",))])
    move(table, job)
    carry_out(table, 1.0)
    assert (job.state, len(job.placements)) == ("running", 1)


# Restarts


def test_a_controller_that_starts_again_counts_the_jobs_of_its_tenants() -> None:
    table = table_of(tenant(jobs=2, memory=FOUR_SLOTS))
    add_server(table)
    run(table, leased(table, slots=4))
    registered(table)
    again = table_of(tenant(jobs=2, memory=FOUR_SLOTS))
    again.restore(table.changes(), 0.0)
    assert held(again) == held(table) == Held(2, {"s1": 4}, FOUR_SLOTS)
    with pytest.raises(UnavailableError, match="the tenant vision is full"):
        leased(again)


def test_jobs_that_an_earlier_version_has_kept_have_no_tenant() -> None:
    table = table_of()
    run(table, leased(table, tenant=None))
    saved = table.changes()
    record = json.loads(saved.jobs[1])
    assert record.pop("tenant", "missing") is None
    again = table_of(tenant())
    again.restore(replace(saved, jobs={1: json.dumps(record).encode()}), 0.0)
    assert (again.jobs[1].state, again.jobs[1].owner) == ("running", table.jobs[1].owner)
