# SPDX-License-Identifier: Apache-2.0
"""What the job table promises for jobs with servers, behind shared slots and alone: literal cases, in virtual time."""

from dataclasses import replace

import pytest

from inagg_contract.aggregation import COLOCATED, REGISTERED, SHARED, Aggregation
from inagg_controller.errors import (
    ConflictError,
    InvalidRequestError,
    UnavailableError,
    UnknownServerError,
)
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.servers import JobKey, Seat
from inagg_controller.jobs.table import JobTable
from tests.controller.kinds import Kind, create, join, table_of, worker_of
from tests.controller.server_tables import (
    FOUR_SLOTS,
    ROOM,
    add_server,
    beat,
    ordered,
    seats,
    serving,
    tick,
)
from tests.controller.serving import WITH_SERVERS
from tests.controller.tables import carry_out, frees_memory, frees_slots


@pytest.fixture(params=WITH_SERVERS)
def aggregation(request: pytest.FixtureRequest) -> Aggregation:
    found: Aggregation = request.param
    return found


@pytest.fixture
def colocated(aggregation: Aggregation) -> Kind:
    return Kind(aggregation, COLOCATED)


@pytest.fixture
def registered(aggregation: Aggregation) -> Kind:
    return Kind(aggregation, REGISTERED)


@pytest.fixture
def table(aggregation: Aggregation) -> JobTable:
    """Without a registered server; with a switch only for shared slots."""
    return table_of(aggregation)


def complete(table: JobTable, kind: Kind, workers: int = 2, slots: int = 4) -> Job:
    """A job whose ranks have registered, and whose entries are in the switch if it has one. Servers learn of it."""
    job = join(table, create(table, kind, workers, slots))
    carry_out(table, 0.0)
    assert job.state == "joining"
    return job


# Limits


@pytest.mark.parametrize(
    ("asked", "max_slots", "granted"),
    [(2, 8, 2), (64, 1024, 64), (1024, 1024, 1024), (16, 15, 8), (1 << 20, 1 << 20, 1 << 16)],
)
def test_slots_are_capped_by_the_limit_alone(
    aggregation: Aggregation, colocated: Kind, registered: Kind, asked: int, max_slots: int, granted: int
) -> None:
    table = table_of(aggregation, max_slots=max_slots)
    add_server(table, memory=1 << 40)
    assert create(table, colocated, slots=asked).slots == granted
    assert create(table, registered, slots=asked).slots == granted


@pytest.mark.parametrize(
    ("workers", "granted"),
    [(1, 64), (8, 64), (9, 128), (16, 128), (17, 256), (33, 512), (64, 512)],
)
def test_servers_of_many_ranks_alone_get_more_slots(workers: int, granted: int) -> None:
    table = table_of("server", max_slots=1024)
    assert create(table, Kind("server", COLOCATED), workers, 64).slots == granted


@pytest.mark.parametrize("creator", [None, "10.0.0.1"])
def test_the_number_of_jobs_with_servers_is_limited(
    aggregation: Aggregation, colocated: Kind, creator: str | None
) -> None:
    table = table_of(aggregation, max_server_jobs=4, host_share=0.75)
    most = 4 if creator is None else 3
    jobs = [create(table, colocated, 1, 2, creator=creator) for _ in range(most)]
    with pytest.raises(UnavailableError, match=f"{most} jobs on servers, the limit"):
        create(table, colocated, 1, 2, creator=creator)
    table.end(jobs[0].id, 0.0)
    create(table, colocated, 1, 2, creator=creator)


@pytest.mark.parametrize("creator", [None, "10.0.0.1"])
def test_the_number_of_ranks_of_jobs_with_servers_is_limited(
    aggregation: Aggregation, colocated: Kind, creator: str | None
) -> None:
    table = table_of(aggregation, max_server_ranks=8, host_share=0.5)
    first = create(table, colocated, 3 if creator else 7, 2, creator=creator)
    with pytest.raises(UnavailableError, match="ranks on servers, the limit"):
        create(table, colocated, 2, 2, creator=creator)
    create(table, colocated, 1, 2, creator=creator)
    table.end(first.id, 0.0)
    create(table, colocated, 3, 2, creator=creator)


# Colocated servers


def test_a_job_runs_when_each_of_its_colocated_servers_serves_it(table: JobTable, colocated: Kind) -> None:
    job = create(table, colocated)
    table.register(job.id, worker_of(job, 1), 0.0)
    assert seats(job) == []
    with pytest.raises(ConflictError, match=r"ranks \[0\] of job 1 have not registered yet"):
        table.serve(job.id, 1, 0.0)
    table.register(job.id, worker_of(job, 0), 0.0)
    assert job.placement.servers is not None
    assert job.placement.servers.seats == (
        Seat("rank 0", 0x0A000001, 5000, 0),
        Seat("rank 1", 0x0A000002, 5001, 1),
    )
    carry_out(table, 0.0)
    table.serve(job.id, 1, 0.1)
    table.serve(job.id, 1, 0.1)
    assert (job.state, serving(job)) == ("joining", {1})
    table.serve(job.id, 0, 0.2)
    assert (job.state, serving(job), job.liveness.last_seen) == ("running", {0, 1}, {0: 0.2, 1: 0.2})
    assert not table.switches.effects


def test_with_fewer_slots_than_workers_only_the_first_ranks_serve(table: JobTable, colocated: Kind) -> None:
    job = complete(table, colocated, workers=3, slots=2)
    assert seats(job) == ["rank 0", "rank 1"]
    with pytest.raises(ConflictError, match="rank 2 of job 1 runs no server of it"):
        table.serve(job.id, 2, 0.0)
    for rank in range(2):
        table.serve(job.id, rank, 0.0)
    assert job.state == "running"


def test_a_rank_that_serves_must_say_at_which_port_and_others_need_not(
    table: JobTable, colocated: Kind
) -> None:
    job = create(table, colocated, workers=3, slots=2)
    first, second, third = (worker_of(job, rank) for rank in range(3))
    with pytest.raises(InvalidRequestError, match="server_udp_port is missing: rank 1 of job 1 runs one"):
        table.register(job.id, replace(second, server_udp_port=None), 0.0)
    with pytest.raises(InvalidRequestError, match="server_udp_port and udp_port are both 4000"):
        table.register(job.id, replace(first, server_udp_port=4000), 0.0)
    assert job.members == {}
    without = replace(third, server_udp_port=None)
    table.register(job.id, third, 0.0)
    table.register(job.id, without, 0.0)  # the same: its port does not matter
    assert job.members == {2: without}
    table.register(job.id, first, 0.0)
    with pytest.raises(ConflictError, match="rank 0 of job 1 is already registered by a worker at another"):
        table.register(job.id, replace(first, server_udp_port=5999), 0.0)
    assert job.members[0] == first


@pytest.mark.parametrize(
    ("udp_port", "server_udp_port", "whose"),
    [
        (4000, 5001, "rank 0 of job 1"),
        (4001, 4000, "rank 0 of job 1"),
        (5000, 5001, "the server of rank 0 of job 1"),
        (4001, 5000, "the server of rank 0 of job 1"),
    ],
)
def test_no_two_workers_or_servers_have_the_same_address(
    table: JobTable, colocated: Kind, udp_port: int, server_udp_port: int, whose: str
) -> None:
    job = create(table, colocated)
    table.register(job.id, worker_of(job, 0), 0.0)
    second = worker_of(job, 1, host=1)
    with pytest.raises(ConflictError, match=f"^{whose} already has this address and UDP port"):
        table.register(job.id, replace(second, udp_port=udp_port, server_udp_port=server_udp_port), 0.0)
    assert list(job.members) == [0]
    table.register(job.id, second, 0.0)


def test_a_rank_that_says_too_late_that_it_serves_changes_nothing(table: JobTable, colocated: Kind) -> None:
    job = complete(table, colocated)
    table.serve(job.id, 0, 0.0)
    table.end(job.id, 0.1)
    version = table.version
    table.serve(job.id, 1, 0.2)
    assert (job.state, serving(job), table.version) == ("failed", {0}, version)


def test_a_job_that_its_servers_do_not_serve_in_time_names_them(table: JobTable, colocated: Kind) -> None:
    late, incomplete = complete(table, colocated, workers=4), create(table, colocated)
    for rank in (1, 3):
        table.serve(late.id, rank, 0.0)
    tick(table, 0.0, 20.0)
    assert (late.state, late.reason) == (
        "failed",
        "server rank 0 does not serve it; server rank 2 does not serve it",
    )
    assert incomplete.reason == "ranks [0, 1] did not join in time"


# Which registered servers a job gets


def test_without_a_registered_server_the_refusal_says_what_to_do(table: JobTable, registered: Kind) -> None:
    with pytest.raises(UnavailableError, match="has registered: start inagg-server, or use servers = coloc"):
        create(table, registered)


def test_a_worker_does_not_have_the_address_of_a_registered_server(table: JobTable, registered: Kind) -> None:
    add_server(table)
    job = create(table, registered)
    with pytest.raises(ConflictError, match="server a of job 1 already has this address and UDP port"):
        table.register(job.id, replace(worker_of(job, 0), ip=0x0A000161, udp_port=18754), 0.0)


def test_a_job_leases_memory_of_every_server_that_has_enough(table: JobTable, registered: Kind) -> None:
    a, b, small = add_server(table, "a"), add_server(table, "b", 4432), add_server(table, "c", 100)
    job = create(table, registered)
    assert (a.free, b.free, small.free) == (ROOM - 4432, 0, 100)
    join(table, job)
    assert seats(job) == ["a", "b"]
    assert job.placement.servers is not None
    assert job.placement.servers.seats[1] == Seat("b", 0x0A000162, 18754, None)


@pytest.mark.parametrize(
    ("memories", "chosen"),
    [
        ({"a": 8864, "b": 100}, ["a"]),
        ({"a": 8864, "b": 100, "c": 100}, ["a"]),
        ({"a": 4432, "b": 4432}, ["a", "b"]),
    ],
)
def test_more_servers_need_less_memory_of_each(
    table: JobTable, registered: Kind, memories: dict[str, int], chosen: list[str]
) -> None:
    for name, memory in memories.items():
        add_server(table, name, memory)
    job = complete(table, registered)
    assert (job.slots, seats(job)) == (4, chosen)


@pytest.mark.parametrize(("memory", "granted"), [(FOUR_SLOTS, 4), (FOUR_SLOTS - 1, 2), (4432, 2)])
def test_slots_are_halved_until_a_server_has_enough_memory(
    table: JobTable, registered: Kind, memory: int, granted: int
) -> None:
    add_server(table, memory=memory)
    assert create(table, registered).slots == granted


def test_slots_are_not_halved_for_the_sake_of_more_servers(table: JobTable, registered: Kind) -> None:
    add_server(table, "a")
    add_server(table, "b", memory=2216)  # enough for two slots on two servers
    job = complete(table, registered)
    assert (job.slots, seats(job)) == (4, ["a"])


def test_a_job_for_which_no_server_has_enough_memory_is_refused(table: JobTable, registered: Kind) -> None:
    server = add_server(table, memory=4431)
    with pytest.raises(
        UnavailableError, match="a job needs 4432 bytes, and at most 4431 are free; wait until"
    ):
        create(table, registered)
    assert (server.free, table.jobs) == (4431, {})


def test_the_jobs_of_one_host_leave_memory_to_others(aggregation: Aggregation, registered: Kind) -> None:
    table = table_of(aggregation, host_share=0.75)
    server = add_server(table, memory=2 * FOUR_SLOTS)
    granted = [create(table, registered, creator="10.0.0.1").slots for _ in range(2)]
    assert granted == [4, 2]
    with pytest.raises(
        UnavailableError, match=r"jobs of 10\.0\.0\.1 have all memory of the servers that one h"
    ):
        create(table, registered, creator="10.0.0.1")
    assert server.free == FOUR_SLOTS // 2
    assert create(table, registered, creator="10.0.0.2").slots == 2


# Orders and heartbeats


def test_a_server_is_ordered_to_serve_a_job_from_its_last_registration_to_its_end(
    table: JobTable, registered: Kind
) -> None:
    a, b = add_server(table, "a"), add_server(table, "b")
    job = create(table, registered)
    table.register(job.id, replace(worker_of(job, 0), server_udp_port=None), 0.0)
    assert ordered(table, a) == []
    table.register(job.id, replace(worker_of(job, 1), server_udp_port=None), 0.0)
    assert (ordered(table, a), ordered(table, b)) == ([job.id], [job.id])
    carry_out(table, 0.0)
    beat(table, a, job)
    assert (job.state, serving(job)) == ("joining", {0})
    beat(table, b, job, now=0.5)
    assert (job.state, serving(job), job.liveness.last_seen) == ("running", {0, 1}, {0: 0.5, 1: 0.5})
    assert ordered(table, a) == [job.id]
    table.end(job.id, 1.0)
    assert (ordered(table, a), ordered(table, b)) == ([], [])


def test_a_job_of_another_epoch_does_not_count(table: JobTable, registered: Kind) -> None:
    server = add_server(table)
    job = complete(table, registered)
    table.servers.heartbeat(
        "a", server.instance, 0.0, [JobKey(job.id, job.placement.epoch - 1), JobKey(99, job.placement.epoch)]
    )
    assert (job.state, serving(job)) == ("joining", set())


def test_a_registered_server_that_does_not_serve_a_job_in_time_is_named(
    table: JobTable, registered: Kind
) -> None:
    a, b = add_server(table, "a"), add_server(table, "b")
    job = complete(table, registered)
    for tenth in range(201):
        beat(table, a, job, now=tenth / 10)
        beat(table, b, now=tenth / 10)
        table.tick(tenth / 10)
    assert (job.state, job.reason) == ("failed", "server b does not serve it")


def test_a_job_that_a_server_refuses_fails_and_its_memory_there_is_free(
    table: JobTable, registered: Kind
) -> None:
    a, b = add_server(table, "a"), add_server(table, "b")
    job = complete(table, registered)
    beat(table, b, job)
    table.servers.heartbeat("a", a.instance, 0.0, [], {job.placement.key: "cannot lock 4432 bytes"})
    assert (job.state, job.reason) == ("failed", "server a: cannot lock 4432 bytes")
    carry_out(table, 0.0)
    assert (a.free, b.free, job.holds_resources) == (ROOM, ROOM - 4432, True)
    assert (ordered(table, a), ordered(table, b)) == ([], [])


def test_a_refusal_of_a_job_that_is_not_the_servers_or_not_known_changes_nothing(
    table: JobTable, registered: Kind
) -> None:
    a = add_server(table, "a")
    job = complete(table, registered)
    b = add_server(table, "b")
    waiting = create(table, registered)
    beat(table, a, job)
    refused = {job.placement.key: "no", JobKey(99, 1): "no", waiting.placement.key: "no"}
    table.servers.heartbeat("b", b.instance, 0.0, [], refused)
    assert (job.state, waiting.state) == ("running", "joining")


def test_a_server_that_no_longer_serves_a_running_job_fails_it(table: JobTable, registered: Kind) -> None:
    server = add_server(table)
    job = complete(table, registered)
    beat(table, server, job)
    beat(table, server)
    assert (job.state, job.reason, server.free) == ("failed", "server a no longer serves it", ROOM)
    carry_out(table, 0.0)
    assert not job.holds_resources


def test_a_server_that_stops_serving_a_joining_job_may_serve_it_again(
    table: JobTable, registered: Kind
) -> None:
    a, b = add_server(table, "a"), add_server(table, "b")
    job = complete(table, registered)
    beat(table, a, job)
    beat(table, a)
    beat(table, b, job)
    assert (job.state, serving(job)) == ("joining", {1})
    beat(table, a, job)
    assert job.state == "running"


# Memory


def test_memory_is_free_once_a_job_has_ended_and_the_server_has_said_that_it_does_not_serve_it(
    table: JobTable, registered: Kind
) -> None:
    server = add_server(table, memory=FOUR_SLOTS)
    job = complete(table, registered)
    beat(table, server, job)
    table.end(job.id, 1.0)
    carry_out(table, 1.0)
    assert (server.free, job.holds_resources, frees_memory(table)) == (0, True, True)
    beat(table, server, job, now=1.0)  # it has not heard of the end yet
    assert server.free == 0
    tick(table, 1.0, 5.0)
    with pytest.raises(UnavailableError, match="at most 0 are free"):
        create(table, registered)
    beat(table, server, now=5.0)
    assert (server.free, job.holds_resources, frees_memory(table)) == (FOUR_SLOTS, False, False)
    assert create(table, registered).slots == 4


def test_memory_of_a_job_of_which_a_server_may_have_orders_waits_for_its_next_heartbeat(
    table: JobTable, registered: Kind
) -> None:
    server = add_server(table)
    job = complete(table, registered)
    table.end(job.id, 0.0)
    assert server.free == ROOM - FOUR_SLOTS
    beat(table, server)
    assert server.free == ROOM


def test_a_job_is_remembered_until_the_last_server_has_freed_its_memory(
    table: JobTable, registered: Kind
) -> None:
    a, b = add_server(table, "a"), add_server(table, "b")
    job = complete(table, registered)
    beat(table, a, job)
    table.end(job.id, 0.0)
    carry_out(table, 0.0)
    for tenth in range(400):
        beat(table, a, now=tenth / 10)
        beat(table, b, job, now=tenth / 10)
        table.tick(tenth / 10)
    assert list(table.jobs) == [job.id]
    assert (a.free, b.free) == (ROOM, ROOM - 4432)
    beat(table, b, now=40.0)
    table.tick(40.0)
    assert table.jobs == {}


def test_slots_of_a_switch_do_not_wait_for_the_memory_of_servers(registered: Kind) -> None:
    table = table_of(SHARED)
    server = add_server(table)
    job = complete(table, registered)
    beat(table, server, job)
    table.end(job.id, 0.0)
    assert (frees_memory(table), frees_slots(table)) == (True, False)


# Servers that are lost, stop or start again


@pytest.mark.parametrize("running", [False, True])
def test_a_silent_server_is_lost_and_its_jobs_fail(
    table: JobTable, colocated: Kind, registered: Kind, running: bool
) -> None:
    a, b = add_server(table, "a"), add_server(table, "b")
    job = complete(table, registered)
    other = complete(table, colocated)
    beat(table, b, job)
    if running:
        beat(table, a, job)
    for tenth in range(50):
        beat(table, b, job, now=tenth / 10)
        for rank in range(2):
            table.heartbeat(job.id, rank, tenth / 10)
        table.tick(tenth / 10)
    assert job.state == ("running" if running else "joining")
    table.tick(5.0)
    reason = "server a at 10.0.1.97:18754 was lost: no heartbeat for 5 s"
    assert (job.state, job.reason) == ("failed", reason)
    assert (list(table.servers.by_name), other.state) == (["b"], "joining")
    with pytest.raises(UnknownServerError, match="no server a with instance 1: it was lost"):
        beat(table, a, job)
    carry_out(table, 5.0)
    assert job.holds_resources
    beat(table, b)
    assert (b.free, job.holds_resources) == (ROOM, False)


def test_a_server_that_starts_again_fails_the_jobs_of_its_earlier_start(
    table: JobTable, registered: Kind
) -> None:
    before = add_server(table)
    job = complete(table, registered)
    beat(table, before, job)
    after = table.servers.register("a", before.ip, before.udp_port, ROOM, 1.0)
    carry_out(table, 1.0)
    assert (job.state, job.holds_resources) == ("failed", False)
    assert job.reason == "server a was started again: the sums in its memory are gone"
    assert after.instance > before.instance
    assert (table.servers.by_name, after.free) == ({"a": after}, ROOM)
    with pytest.raises(UnknownServerError):
        beat(table, before, job)
    beat(table, after)


def test_a_server_at_the_address_of_another_replaces_it(table: JobTable, registered: Kind) -> None:
    old = add_server(table)
    neighbour = table.servers.register("neighbour", old.ip, 18755, 0, 0.0)
    job = complete(table, registered)
    new = table.servers.register("new", old.ip, old.udp_port, ROOM, 1.0)
    assert job.reason == "server a was started again: the sums in its memory are gone"
    assert table.servers.by_name == {"neighbour": neighbour, "new": new}


def test_a_server_that_stops_fails_its_jobs(table: JobTable, colocated: Kind, registered: Kind) -> None:
    server = add_server(table)
    job, other = complete(table, registered), complete(table, colocated)
    with pytest.raises(UnknownServerError):
        table.servers.stop("a", server.instance + 1, 0.0)
    table.servers.stop("a", server.instance, 0.0)
    assert (job.state, job.reason, other.state) == ("failed", "server a was stopped", "joining")
    carry_out(table, 0.0)
    assert (table.servers.by_name, job.holds_resources) == ({}, False)
    with pytest.raises(UnknownServerError):
        table.servers.stop("a", server.instance, 0.0)


def test_a_lost_server_frees_what_waited_for_its_word(table: JobTable, registered: Kind) -> None:
    server = add_server(table)
    job = complete(table, registered)
    beat(table, server, job)
    table.end(job.id, 0.0)
    carry_out(table, 0.0)
    tick(table, 0.0, 5.0)
    assert (job.reason, job.holds_resources) == ("ended on request", False)
