# SPDX-License-Identifier: Apache-2.0
"""Job classes and their quotas in the job table: literal cases, in virtual time.

The switch has 64 slot versions, so 32 slots. Four slots take 8864 bytes of one server (server_tables).
"""

from typing import Any

import pytest

from inagg_controller.configuration import parse_job_classes
from inagg_controller.errors import InvalidRequestError, UnavailableError
from inagg_controller.jobs.accounts import Held
from inagg_controller.jobs.classes import JobClass
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.table import JobTable
from tests.controller.server_tables import FOUR_SLOTS, ROOM, add_server, beat, worker
from tests.controller.serving import AT, LEAF_SPINE, SHARED_SLOTS
from tests.controller.shared_tables import HOSTS
from tests.controller.tables import (
    carry_out,
    create_leased,
    create_on_servers,
    create_shared,
    frees_place,
    member,
    new_table,
)

HOST = "10.0.0.1"


def table_with(*classes: str, **changes: Any) -> JobTable:
    """classes: as in --job-class."""
    return new_table(classes=parse_job_classes(classes), **changes)


def leased(table: JobTable, slots: int = 2, job_class: str = "batch", creator: str | None = None) -> Job:
    return create_leased(table, 1, slots, "", 0.0, creator, job_class=job_class)


def shared(table: JobTable, priority: int = 0, job_class: str = "batch") -> Job:
    return create_shared(table, 1, 2, "", 0.0, colocated=True, priority=priority, job_class=job_class)


def colocated(table: JobTable, job_class: str = "batch") -> Job:
    return create_on_servers(table, 1, 2, "", 0.0, colocated=True, job_class=job_class)


def registered(table: JobTable, slots: int = 4, job_class: str = "batch", creator: str | None = None) -> Job:
    return create_on_servers(table, 1, slots, "", 0.0, creator, colocated=False, job_class=job_class)


def held(table: JobTable) -> Held:
    """What the jobs of the class batch hold."""
    return table.held_by(table.classes["batch"])


def run(table: JobTable, job: Job) -> None:
    table.register(job.id, member(0), 0.0)
    carry_out(table, 0.0)
    assert job.state == "running"


# Jobs at a time


def test_a_class_has_as_many_jobs_as_its_quota_says_of_all_ways_together() -> None:
    table = table_with("batch,jobs=3", topology=HOSTS, shared_slots=SHARED_SLOTS)
    leased(table)
    shared(table)
    colocated(table)
    for create in (leased, shared, colocated):
        with pytest.raises(
            UnavailableError, match=r"^the class batch is full: its quota is jobs=3; wait until one ends$"
        ):
            create(table)
    assert len(table.jobs) == 3
    assert leased(table, job_class="default").owner.job_class == "default"


def test_a_class_may_have_no_jobs_at_all() -> None:
    table = table_with("default,jobs=0", "batch")
    with pytest.raises(
        UnavailableError, match=r"class default is full: its quota is jobs=0; set another job_"
    ):
        create_leased(table, 1, 2, "", 0.0)
    assert leased(table).owner.job_class == "batch"


def test_a_job_that_fails_before_it_is_in_a_switch_frees_its_place_at_once() -> None:
    table = table_with("batch,jobs=1")
    job = leased(table)
    table.end(job.id, 0.0)
    assert held(table) == Held(0, {"s1": 0}, 0)
    leased(table)


def test_a_job_that_ends_frees_its_place_when_its_slots_are_free() -> None:
    table = table_with("batch,jobs=1,slots=4")
    job = leased(table, slots=4)
    run(table, job)
    assert not frees_place(table, "batch")
    table.leave(job.id, 0, 1.0)
    assert (job.state, held(table)) == ("finished", Held(1, {"s1": 4}, 0))
    assert frees_place(table, "batch")
    with pytest.raises(UnavailableError, match="quota is jobs=1"):
        leased(table)
    carry_out(table, 1.0)
    assert held(table) == Held(0, {"s1": 0}, 0)
    assert not frees_place(table, "batch")
    leased(table)


def test_a_place_is_freed_once_however_often_a_job_is_ended() -> None:
    table = table_with("batch,jobs=2")
    first, _ = leased(table), leased(table)
    run(table, first)
    table.end(first.id, 1.0)
    carry_out(table, 1.0)
    table.end(first.id, 2.0)
    table.leave(first.id, 0, 2.0)
    table.switches.lost("s1", 3.0)
    table.switches.connected("s1")
    table.tick(100.0)  # forgets it
    assert first.id not in table.jobs
    assert held(table).jobs == 0  # the second was joining for too long
    leased(table), leased(table)
    with pytest.raises(UnavailableError, match="is full: its quota is jobs=2"):
        leased(table)


def test_a_place_is_not_about_to_be_free_while_other_jobs_fill_the_class_or_its_switch_is_away() -> None:
    table = table_with("batch,jobs=1", "other")
    assert not frees_place(table, "unknown")
    job = leased(table)
    run(table, job)
    table.end(job.id, 0.0)
    assert [frees_place(table, name) for name in ("batch", "other", "default")] == [True, False, False]
    table.switches.done(table.switches.effects.popleft(), 0.0, "refused")
    assert frees_place(table, "batch")
    table.switches.lost("s1", 1.0)
    assert (frees_place(table, "batch"), held(table).jobs) == (False, 0)


# Slots


def test_the_jobs_of_a_class_lease_its_slots_at_most_and_get_fewer_as_they_become_scarce() -> None:
    table = table_with("batch,slots=12")
    assert [leased(table, slots=8).slots for _ in range(2)] == [8, 4]
    with pytest.raises(
        UnavailableError,
        match=r"^the jobs of the class batch have 12 slots of switch s1: its quota is slots=12; wait until one ends, "
        r"or ask for fewer slots a job \(INAGG_SLOTS\)$",
    ):
        leased(table)
    assert held(table) == Held(2, {"s1": 12}, 0)
    assert leased(table, slots=16, job_class="default").slots == 16


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_what_is_left_of_a_quota_may_be_too_little_for_a_job(slots: int) -> None:
    table = table_with(f"batch,slots={slots}")
    assert [leased(table, slots=8).slots for _ in range(slots // 2)] == [2] * (slots // 2)
    with pytest.raises(UnavailableError, match=f"its quota is slots={slots}"):
        leased(table)


def test_slots_are_counted_in_each_switch() -> None:
    table = table_with("batch,slots=8", topology=LEAF_SPINE)
    create_leased(table, 2, 8, "", 0.0, at=["leaf1", "leaf1"], job_class="batch")
    assert held(table).slots == {"leaf1": 8, "leaf2": 0, "spine1": 0, "spine2": 0}
    with pytest.raises(UnavailableError, match="have 8 slots of switch leaf1: its quota is slots=8"):
        create_leased(table, 4, 8, "", 0.0, at=AT, job_class="batch")
    assert create_leased(table, 2, 8, "", 0.0, at=["leaf2", "leaf2"], job_class="batch").slots == 8


@pytest.mark.parametrize(
    ("quota", "granted", "message"),
    [
        (16, [8, 8], "the jobs of the class batch have 16 slots of switch s1: its quota is slots=16"),
        (28, [8, 8, 8], r"the jobs of 10\.0\.0\.1 have all slots of switch s1 that one host may have"),
        (64, [8, 8, 8], r"the jobs of 10\.0\.0\.1 have all slots of switch s1 that one host may have"),
    ],
)
def test_quotas_and_the_share_of_a_host_hold_together(quota: int, granted: list[int], message: str) -> None:
    table = table_with(f"batch,slots={quota}", host_share=0.75)  # 24 slots
    assert [leased(table, 8, creator=HOST).slots for _ in granted] == granted
    with pytest.raises(UnavailableError, match=message):
        leased(table, 8, creator=HOST)


def test_jobs_of_several_hosts_fill_a_class_together() -> None:
    table = table_with("batch,slots=16", host_share=0.75)
    for host in (1, 2):
        assert leased(table, 8, creator=f"10.0.0.{host}").slots == 8
    with pytest.raises(UnavailableError, match="quota is slots=16"):
        leased(table, 8, creator="10.0.0.3")


def test_a_quota_that_is_larger_than_the_pool_does_not_enlarge_it() -> None:
    table = table_with("batch,slots=1000")
    assert leased(table, 32).slots == 32
    with pytest.raises(UnavailableError, match="the slot pool of switch s1 is full: 0 of 32 slots are free"):
        leased(table)


# Memory


def test_the_jobs_of_a_class_have_its_memory_of_all_servers_together() -> None:
    table = table_with(f"batch,memory={FOUR_SLOTS}")
    add_server(table, "a"), add_server(table, "b")
    job = registered(table, slots=2)
    assert job.placement.servers is not None
    assert (job.placement.servers.count, held(table).memory) == (2, FOUR_SLOTS // 2)
    assert registered(table, slots=8).slots == 2
    with pytest.raises(
        UnavailableError,
        match=r"^the jobs of the class batch have 8864 bytes of registered servers, and another needs 4432: its quota "
        r"is memory=8864; wait until one ends, or use servers = colocated$",
    ):
        registered(table)
    assert held(table) == Held(2, {"s1": 0}, FOUR_SLOTS)
    assert colocated(table).slots == 2
    assert registered(table, slots=8, job_class="default").slots == 8


def test_memory_is_free_when_the_server_no_longer_serves_the_job() -> None:
    table = table_with(f"batch,memory={FOUR_SLOTS}")
    server = add_server(table)
    job = registered(table)
    table.register(job.id, worker(0, None), 0.0)
    beat(table, server, job)
    table.end(job.id, 1.0)
    with pytest.raises(UnavailableError, match="its quota is memory=8864"):
        registered(table)
    beat(table, server)
    assert held(table).memory == 0
    registered(table)


def test_memory_of_a_server_that_is_gone_is_not_counted() -> None:
    table = table_with(f"batch,memory={FOUR_SLOTS}")
    add_server(table, "a", memory=FOUR_SLOTS)
    registered(table)
    server = table.servers.by_name["a"]
    table.servers.stop("a", server.instance, 1.0)
    add_server(table, "b")
    assert registered(table).slots == 4


def test_a_server_without_memory_is_no_matter_of_quotas() -> None:
    table = table_with("batch,memory=1GiB", host_share=0.75)
    add_server(table, memory=FOUR_SLOTS)
    with pytest.raises(UnavailableError, match="have all memory of the servers that one host may have"):
        registered(table, slots=2, creator=HOST), registered(table, slots=2, creator=HOST)
    registered(table, slots=2)
    with pytest.raises(UnavailableError, match="no aggregation server has enough free memory"):
        registered(table)


def test_shared_slots_with_registered_servers_take_of_the_memory() -> None:
    table = table_with("batch,memory=4431", topology=HOSTS, shared_slots=SHARED_SLOTS)
    add_server(table, memory=ROOM)
    with pytest.raises(UnavailableError, match="have 0 bytes of registered servers, and another needs 4432"):
        create_shared(table, 1, 2, "", 0.0, colocated=False, job_class="batch")
    assert shared(table).placement.aggregation == "shared"


# Priority and ways


def test_a_job_on_shared_slots_asks_for_the_priority_of_its_class_at_most() -> None:
    table = table_with("batch,priority=3", topology=HOSTS, shared_slots=SHARED_SLOTS)
    with pytest.raises(
        UnavailableError,
        match=r"^priority is 4, too high for a job of the class batch: its quota is priority=3$",
    ):
        shared(table, priority=4)
    assert shared(table, priority=3).placement.priority == 3
    assert shared(table, priority=255, job_class="default").placement.priority == 255


@pytest.mark.parametrize(
    ("quota", "allowed"),
    [("leased", {leased}), ("shared+server", {shared, colocated}), ("server+leased", {leased, colocated})],
)
def test_a_class_may_use_some_ways_only(quota: str, allowed: set[object]) -> None:
    table = table_with(f"batch,aggregation={quota}", topology=HOSTS, shared_slots=SHARED_SLOTS)
    for create, way in ((leased, "leased"), (shared, "shared"), (colocated, "server")):
        if create in allowed:
            assert create(table).placement.aggregation == way
        else:
            with pytest.raises(
                UnavailableError,
                match=rf"^aggregation = {way} is not for jobs of the class batch: its quota is aggregation=",
            ):
                create(table)


# Which classes there are


@pytest.mark.parametrize("create", [leased, shared, colocated, registered])
def test_an_unknown_class_is_refused_with_the_known_ones(create: Any) -> None:
    table = table_with("batch,jobs=1", "urgent", topology=HOSTS, shared_slots=SHARED_SLOTS)
    with pytest.raises(
        InvalidRequestError,
        match=r"^job_class is bulk; the classes of this controller are batch, urgent, default \(--job-class\)$",
    ):
        create(table, job_class="bulk")
    assert table.jobs == {}


def test_the_default_class_has_the_quotas_that_it_is_given() -> None:
    assert new_table().classes == {"default": JobClass(name="default")}
    table = table_with("default,slots=4")
    assert create_leased(table, 1, 32, "", 0.0).slots == 4
