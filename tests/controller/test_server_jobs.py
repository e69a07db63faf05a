# SPDX-License-Identifier: Apache-2.0
"""Jobs on servers, colocated and registered: literal cases, in virtual time."""

import pytest

from inagg_controller.errors import (
    ConflictError,
    InvalidRequestError,
    RequestError,
    UnavailableError,
    UnknownServerError,
)
from inagg_controller.jobs.servers import JobKey, Seat, Worker
from tests.controller.server_tables import (
    FOUR_SLOTS,
    ROOM,
    add_server,
    beat,
    colocated,
    join,
    ordered,
    registered,
    seats,
    serve_all,
    serving,
    table_without_switch,
    tick,
    worker,
)
from tests.controller.tables import (
    carry_out,
    create_leased,
    create_on_servers,
    frees_memory,
    frees_slots,
    member,
    new_table,
    running,
)

# Colocated servers


def test_a_job_with_colocated_servers_runs_when_each_of_them_serves_it() -> None:
    table = table_without_switch()
    job = colocated(table)
    table.register(job.id, worker(1), 0.0)
    assert seats(job) == []
    table.register(job.id, worker(0), 0.0)
    assert job.placement.servers is not None
    assert job.placement.servers.seats == (
        Seat("rank 0", 0x0A000001, 5000, 0),
        Seat("rank 1", 0x0A000002, 5000, 1),
    )
    assert (job.state, job.placement.results_ip, job.placement.group, table.switches.installed()) == (
        "joining",
        None,
        None,
        {},
    )
    table.serve(job.id, 1, 0.1)
    table.serve(job.id, 1, 0.1)
    assert (job.state, serving(job)) == ("joining", {1})
    table.serve(job.id, 0, 0.2)
    assert (job.state, serving(job), job.liveness.last_seen) == ("running", {0, 1}, {0: 0.2, 1: 0.2})
    assert not table.switches.effects


def test_with_fewer_slots_than_workers_only_the_first_ranks_serve() -> None:
    table = table_without_switch()
    job = colocated(table, workers=3, slots=2)
    for rank, port in ((0, 5000), (1, 5001), (2, None)):
        table.register(job.id, worker(rank, port), 0.0)
    assert seats(job) == ["rank 0", "rank 1"]
    with pytest.raises(ConflictError, match="rank 2 of job 1 runs no server of it"):
        table.serve(job.id, 2, 0.0)
    for rank in range(2):
        table.serve(job.id, rank, 0.0)
    assert job.state == "running"


def test_a_rank_that_serves_must_say_at_which_port_and_others_need_not() -> None:
    table = table_without_switch()
    job = colocated(table, workers=3, slots=2)
    with pytest.raises(InvalidRequestError, match="server_udp_port is missing: rank 1 of job 1 runs one"):
        table.register(job.id, worker(1, None), 0.0)
    assert job.members == {}
    table.register(job.id, worker(2, 5000), 0.0)
    table.register(job.id, worker(2, None), 0.0)  # the same: its port does not matter
    assert job.members == {2: worker(2, None)}


def test_nothing_is_served_before_all_ranks_have_registered() -> None:
    table = table_without_switch()
    job = colocated(table)
    table.register(job.id, worker(0), 0.0)
    with pytest.raises(ConflictError, match=r"ranks \[1\] of job 1 have not registered yet"):
        table.serve(job.id, 0, 0.0)
    assert serving(job) == set()


def test_a_rank_of_a_job_on_switches_serves_nothing() -> None:
    table = new_table()
    job = running(table)
    with pytest.raises(ConflictError, match="rank 0 of job 1 runs no server of it"):
        table.serve(job.id, 0, 0.0)


@pytest.mark.parametrize(
    ("second", "whose"),
    [
        (Worker(rank=1, ip=0x0A000001, udp_port=4000, server_udp_port=5001), "rank 0 of job 1"),
        (Worker(rank=1, ip=0x0A000001, udp_port=4001, server_udp_port=4000), "rank 0 of job 1"),
        (Worker(rank=1, ip=0x0A000001, udp_port=5000, server_udp_port=5001), "the server of rank 0 of job 1"),
        (Worker(rank=1, ip=0x0A000001, udp_port=4001, server_udp_port=5000), "the server of rank 0 of job 1"),
    ],
)
def test_no_two_workers_or_servers_have_the_same_address(second: Worker, whose: str) -> None:
    table = table_without_switch()
    job = colocated(table)
    table.register(job.id, worker(0), 0.0)
    with pytest.raises(ConflictError, match=f"^{whose} already has this address and UDP port"):
        table.register(job.id, second, 0.0)
    assert list(job.members) == [0]
    table.register(job.id, Worker(rank=1, ip=0x0A000001, udp_port=4001, server_udp_port=5001), 0.0)


def test_a_worker_and_its_server_have_different_ports() -> None:
    table = table_without_switch()
    job = colocated(table)
    with pytest.raises(InvalidRequestError, match="server_udp_port and udp_port are both 4000"):
        table.register(job.id, worker(0, 4000), 0.0)


def test_a_worker_does_not_have_the_address_of_a_registered_server() -> None:
    table = table_without_switch()
    add_server(table)
    job = registered(table)
    with pytest.raises(ConflictError, match="server a of job 1 already has this address and UDP port"):
        table.register(job.id, Worker(rank=0, ip=0x0A000161, udp_port=18754), 0.0)


@pytest.mark.parametrize("workers", [0, 65])
def test_a_job_on_servers_has_1_to_64_workers(workers: int) -> None:
    table = table_without_switch()
    with pytest.raises(InvalidRequestError, match=f"workers is {workers}; a job on servers has 1 to 64"):
        colocated(table, workers=workers)
    assert colocated(table, workers=64).workers == 64


@pytest.mark.parametrize(
    ("asked", "max_slots", "granted"),
    [(2, 8, 2), (1024, 1024, 1024), (16, 15, 8), (1 << 20, 1 << 20, 1 << 16)],
)
def test_slots_are_capped_by_the_limit(asked: int, max_slots: int, granted: int) -> None:
    table = table_without_switch(max_slots=max_slots)
    add_server(table, memory=1 << 40)
    assert colocated(table, slots=asked).slots == granted
    assert registered(table, slots=asked).slots == granted


def test_a_rank_that_leaves_makes_room_until_the_servers_are_to_install_the_job() -> None:
    table = table_without_switch()
    job = colocated(table)
    table.register(job.id, worker(0), 0.0)
    table.leave(job.id, 0, 0.0)
    assert (job.state, job.members) == ("joining", {})
    join(table, job)
    table.leave(job.id, 0, 0.0)
    assert (job.state, job.reason) == ("failed", "rank 0 (10.0.0.1): left")


def test_a_rank_that_dies_before_it_serves_fails_the_job() -> None:
    table = table_without_switch()
    job = join(table, colocated(table))
    table.attend(job.id, 1, 0.0)
    table.serve(job.id, 0, 0.0)
    table.vanish(job.id, job.members[1], 0.1)
    tick(table, 0.2, 0.6)
    assert (job.state, job.lost) == ("failed", {1: "its process has ended without leaving the job"})
    table.serve(job.id, 1, 0.7)
    assert job.state == "failed"


def test_a_job_that_its_servers_do_not_serve_in_time_names_them() -> None:
    table = table_without_switch()
    late, incomplete = join(table, colocated(table, workers=3)), colocated(table)
    table.serve(late.id, 1, 0.0)
    tick(table, 0.0, 20.0)
    assert (late.state, late.reason) == (
        "failed",
        "server rank 0 does not serve it; server rank 2 does not serve it",
    )
    assert incomplete.reason == "ranks [0, 1] did not join in time"


def test_unicast_changes_nothing_for_a_job_on_servers() -> None:
    table = table_without_switch()
    job = join(table, colocated(table))
    version = table.version
    assert table.unicast(job.id) is job
    assert (table.version, list(table.switches.effects)) == (version, [])


def test_a_job_on_servers_finishes_when_all_ranks_have_left() -> None:
    table = table_without_switch()
    job = join(table, colocated(table))
    serve_all(table, job)
    for rank in range(2):
        assert not job.ended
        table.leave(job.id, rank, 1.0)
    assert (job.state, job.holds_resources) == ("finished", False)
    tick(table, 1.0, 31.0)
    assert table.jobs == {}


# Which registered servers a job gets


def test_without_a_registered_server_the_refusal_says_what_to_do() -> None:
    with pytest.raises(UnavailableError, match="has registered: start inagg-server, or use servers = coloc"):
        registered(table_without_switch())


def test_a_job_leases_memory_of_every_server_that_has_enough() -> None:
    table = table_without_switch()
    a, b, small = add_server(table, "a"), add_server(table, "b", 4432), add_server(table, "c", 100)
    job = registered(table)
    assert (a.free, b.free, small.free) == (ROOM - 4432, 0, 100)
    join(table, job)
    assert seats(job) == ["a", "b"]
    assert job.placement.servers is not None
    assert job.placement.servers.seats[1] == Seat("b", 0x0A000162, 18754, None)


@pytest.mark.parametrize(("memories", "chosen"), [((8864, 100), ["a"]), ((4432, 4432), ["a", "b"])])
def test_more_servers_need_less_memory_of_each(memories: tuple[int, int], chosen: list[str]) -> None:
    table = table_without_switch()
    for name, memory in zip("ab", memories, strict=True):
        add_server(table, name, memory)
    assert seats(join(table, registered(table))) == chosen


def test_a_job_has_at_most_64_servers_and_at_most_one_a_slot() -> None:
    table = table_without_switch()
    for number in range(70):
        table.servers.register(f"s{number}", 0x0A000200 + number, 18754, ROOM, 0.0)
    counts = [len(seats(join(table, registered(table, slots=slots)))) for slots in (2, 8, 128)]
    assert counts == [2, 8, 64]


@pytest.mark.parametrize(("memory", "granted"), [(FOUR_SLOTS, 4), (FOUR_SLOTS - 1, 2), (4432, 2)])
def test_slots_are_halved_until_a_server_has_enough_memory(memory: int, granted: int) -> None:
    table = table_without_switch()
    add_server(table, memory=memory)
    assert registered(table).slots == granted


def test_slots_are_not_halved_for_the_sake_of_more_servers() -> None:
    table = table_without_switch()
    add_server(table, "a")
    add_server(table, "b", memory=2216)  # enough for two slots on two servers
    job = join(table, registered(table))
    assert (job.slots, seats(job)) == (4, ["a"])


def test_a_job_for_which_no_server_has_enough_memory_is_refused() -> None:
    table = table_without_switch()
    server = add_server(table, memory=4431)
    with pytest.raises(
        UnavailableError, match="a job needs 4432 bytes, and at most 4431 are free; wait until"
    ):
        registered(table)
    assert (server.free, table.jobs) == (4431, {})


def test_the_jobs_of_one_host_leave_memory_to_others() -> None:
    table = table_without_switch(host_share=0.75)
    server = add_server(table, memory=2 * FOUR_SLOTS)
    granted = [registered(table, creator="10.0.0.1").slots for _ in range(2)]
    assert granted == [4, 2]
    with pytest.raises(
        UnavailableError, match=r"jobs of 10\.0\.0\.1 have all memory of the servers that one h"
    ):
        registered(table, creator="10.0.0.1")
    assert server.free == FOUR_SLOTS // 2
    assert registered(table, creator="10.0.0.2").slots == 2


@pytest.mark.parametrize("creator", [None, "10.0.0.1"])
def test_the_number_of_jobs_on_servers_is_limited(creator: str | None) -> None:
    table = table_without_switch(max_server_jobs=4, host_share=0.75)
    jobs = [
        create_on_servers(table, 1, 2, "", 0.0, creator, colocated=True)
        for _ in range(4 if creator is None else 3)
    ]
    with pytest.raises(UnavailableError, match="jobs on servers, the limit"):
        create_on_servers(table, 1, 2, "", 0.0, creator, colocated=True)
    table.end(jobs[0].id, 0.0)
    create_on_servers(table, 1, 2, "", 0.0, creator, colocated=True)


@pytest.mark.parametrize("creator", [None, "10.0.0.1"])
def test_the_number_of_ranks_of_jobs_on_servers_is_limited(creator: str | None) -> None:
    table = table_without_switch(max_server_ranks=8, host_share=0.5)
    first = create_on_servers(table, 3 if creator else 7, 2, "", 0.0, creator, colocated=True)
    with pytest.raises(UnavailableError, match="ranks on servers, the limit"):
        create_on_servers(table, 2, 2, "", 0.0, creator, colocated=True)
    create_on_servers(table, 1, 2, "", 0.0, creator, colocated=True)
    table.end(first.id, 0.0)
    create_on_servers(table, 3, 2, "", 0.0, creator, colocated=True)


# Orders and heartbeats


def test_a_server_is_ordered_to_serve_a_job_from_its_last_registration_to_its_end() -> None:
    table = table_without_switch()
    a, b = add_server(table, "a"), add_server(table, "b")
    job = registered(table)
    table.register(job.id, worker(0, None), 0.0)
    assert ordered(table, a) == []
    table.register(job.id, worker(1, None), 0.0)
    assert (ordered(table, a), ordered(table, b)) == ([job.id], [job.id])
    beat(table, a, job)
    assert (job.state, serving(job)) == ("joining", {0})
    beat(table, b, job, now=0.5)
    assert (job.state, serving(job), job.liveness.last_seen) == ("running", {0, 1}, {0: 0.5, 1: 0.5})
    assert ordered(table, a) == [job.id]
    table.end(job.id, 1.0)
    assert (ordered(table, a), ordered(table, b)) == ([], [])


def test_a_job_of_another_epoch_does_not_count() -> None:
    table = table_without_switch()
    server = add_server(table)
    job = join(table, registered(table))
    table.servers.heartbeat(
        "a", server.instance, 0.0, [JobKey(job.id, job.placement.epoch - 1), JobKey(99, job.placement.epoch)]
    )
    assert (job.state, serving(job)) == ("joining", set())


def test_a_registered_server_that_does_not_serve_a_job_in_time_is_named() -> None:
    table = table_without_switch()
    a, b = add_server(table, "a"), add_server(table, "b")
    job = join(table, registered(table))
    for tenth in range(201):
        beat(table, a, job, now=tenth / 10)
        beat(table, b, now=tenth / 10)
        table.tick(tenth / 10)
    assert (job.state, job.reason) == ("failed", "server b does not serve it")


def test_a_job_that_a_server_refuses_fails_and_its_memory_there_is_free() -> None:
    table = table_without_switch()
    a, b = add_server(table, "a"), add_server(table, "b")
    job = join(table, registered(table))
    beat(table, b, job)
    table.servers.heartbeat("a", a.instance, 0.0, [], {job.placement.key: "cannot lock 4432 bytes"})
    assert (job.state, job.reason) == ("failed", "server a: cannot lock 4432 bytes")
    assert (a.free, b.free) == (ROOM, ROOM - 4432)
    assert (ordered(table, a), ordered(table, b)) == ([], [])


def test_a_refusal_of_a_job_that_is_not_the_servers_or_not_known_changes_nothing() -> None:
    table = table_without_switch()
    a = add_server(table, "a")
    job = join(table, registered(table))
    b = add_server(table, "b")
    waiting = registered(table)
    beat(table, a, job)
    refused = {job.placement.key: "no", JobKey(99, 1): "no", waiting.placement.key: "no"}
    table.servers.heartbeat("b", b.instance, 0.0, [], refused)
    assert (job.state, waiting.state) == ("running", "joining")


def test_a_server_that_no_longer_serves_a_running_job_fails_it() -> None:
    table = table_without_switch()
    server = add_server(table)
    job = join(table, registered(table))
    beat(table, server, job)
    beat(table, server)
    assert (job.state, job.reason, server.free) == ("failed", "server a no longer serves it", ROOM)


def test_a_server_that_stops_serving_a_joining_job_may_serve_it_again() -> None:
    table = table_without_switch()
    a, b = add_server(table, "a"), add_server(table, "b")
    job = join(table, registered(table))
    beat(table, a, job)
    beat(table, a)
    beat(table, b, job)
    assert (job.state, serving(job)) == ("joining", {1})
    beat(table, a, job)
    assert job.state == "running"


# Memory


def test_memory_is_free_once_a_job_has_ended_and_the_server_has_said_that_it_does_not_serve_it() -> None:
    table = table_without_switch()
    server = add_server(table, memory=FOUR_SLOTS)
    job = join(table, registered(table))
    beat(table, server, job)
    table.end(job.id, 1.0)
    assert (server.free, job.holds_resources, frees_memory(table)) == (0, True, True)
    beat(table, server, job, now=1.0)  # it has not heard of the end yet
    assert server.free == 0
    tick(table, 1.0, 5.0)
    with pytest.raises(UnavailableError, match="at most 0 are free"):
        registered(table)
    beat(table, server, now=5.0)
    assert (server.free, job.holds_resources, frees_memory(table)) == (FOUR_SLOTS, False, False)
    assert registered(table).slots == 4


def test_memory_of_a_job_of_which_a_server_may_have_orders_waits_for_its_next_heartbeat() -> None:
    table = table_without_switch()
    server = add_server(table)
    job = join(table, registered(table))
    table.end(job.id, 0.0)
    assert server.free == ROOM - FOUR_SLOTS
    beat(table, server)
    assert server.free == ROOM


def test_memory_of_a_job_that_never_was_complete_is_free_at_once() -> None:
    table = table_without_switch()
    server = add_server(table)
    job = registered(table)
    table.end(job.id, 0.0)
    assert (server.free, job.holds_resources) == (ROOM, False)


def test_a_job_is_remembered_until_the_last_server_has_freed_its_memory() -> None:
    table = table_without_switch()
    a, b = add_server(table, "a"), add_server(table, "b")
    job = join(table, registered(table))
    beat(table, a, job)
    table.end(job.id, 0.0)
    for tenth in range(400):
        beat(table, a, now=tenth / 10)
        beat(table, b, job, now=tenth / 10)
        table.tick(tenth / 10)
    assert list(table.jobs) == [job.id]
    assert (a.free, b.free) == (ROOM, ROOM - 4432)
    beat(table, b, now=40.0)
    table.tick(40.0)
    assert table.jobs == {}


def test_slots_of_a_switch_do_not_wait_for_the_memory_of_servers() -> None:
    table = new_table()
    server = add_server(table)
    job = join(table, registered(table))
    beat(table, server, job)
    table.end(job.id, 0.0)
    assert (frees_memory(table), frees_slots(table)) == (True, False)


# Servers that are lost, stop or start again


@pytest.mark.parametrize("running", [False, True])
def test_a_silent_server_is_lost_and_its_jobs_fail(running: bool) -> None:
    table = table_without_switch()
    a, b = add_server(table, "a"), add_server(table, "b")
    job = join(table, registered(table))
    other = join(table, colocated(table))
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
    assert job.holds_resources
    beat(table, b)
    assert (b.free, job.holds_resources) == (ROOM, False)


def test_a_heartbeat_just_in_time_keeps_a_server() -> None:
    table = table_without_switch()
    server = add_server(table)
    tick(table, 0.0, 4.9)
    beat(table, server, now=4.95)
    tick(table, 5.0, 9.9)
    assert list(table.servers.by_name) == ["a"]
    tick(table, 10.0, 10.0)
    assert list(table.servers.by_name) == []


def test_time_in_which_the_controller_itself_stood_still_is_not_held_against_servers() -> None:
    table = table_without_switch()
    add_server(table)
    table.tick(0.1)
    table.tick(60.0)
    assert list(table.servers.by_name) == ["a"]
    tick(table, 60.1, 64.0)
    assert list(table.servers.by_name) == ["a"]
    tick(table, 64.1, 65.1)
    assert list(table.servers.by_name) == []


def test_a_server_that_starts_again_fails_the_jobs_of_its_earlier_start() -> None:
    table = table_without_switch()
    before = add_server(table)
    job = join(table, registered(table))
    beat(table, before, job)
    after = table.servers.register("a", before.ip, before.udp_port, ROOM, 1.0)
    assert (job.state, job.holds_resources) == ("failed", False)
    assert job.reason == "server a was started again: the sums in its memory are gone"
    assert after.instance > before.instance
    assert (table.servers.by_name, after.free) == ({"a": after}, ROOM)
    with pytest.raises(UnknownServerError):
        beat(table, before, job)
    beat(table, after)


def test_a_name_belongs_to_one_server_while_it_lives() -> None:
    table = table_without_switch()
    server = add_server(table)
    with pytest.raises(ConflictError, match="has the name a: give this one another"):
        table.servers.register("a", server.ip + 1, server.udp_port, ROOM, 1.0)
    assert table.servers.by_name == {"a": server}
    tick(table, 1.0, 6.0)
    assert table.servers.register("a", server.ip + 1, server.udp_port, ROOM, 6.0).instance > server.instance


def test_a_server_at_the_address_of_another_replaces_it() -> None:
    table = table_without_switch()
    old = add_server(table)
    neighbour = table.servers.register("neighbour", old.ip, 18755, 0, 0.0)
    job = join(table, registered(table))
    new = table.servers.register("new", old.ip, old.udp_port, ROOM, 1.0)
    assert job.reason == "server a was started again: the sums in its memory are gone"
    assert table.servers.by_name == {"neighbour": neighbour, "new": new}


def test_a_server_that_stops_fails_its_jobs() -> None:
    table = table_without_switch()
    server = add_server(table)
    job, other = join(table, registered(table)), join(table, colocated(table))
    with pytest.raises(UnknownServerError):
        table.servers.stop("a", server.instance + 1, 0.0)
    table.servers.stop("a", server.instance, 0.0)
    assert (job.state, job.reason, other.state) == ("failed", "server a was stopped", "joining")
    assert (table.servers.by_name, job.holds_resources) == ({}, False)
    with pytest.raises(UnknownServerError):
        table.servers.stop("a", server.instance, 0.0)


def test_a_lost_server_frees_what_waited_for_its_word() -> None:
    table = table_without_switch()
    server = add_server(table)
    job = join(table, registered(table))
    beat(table, server, job)
    table.end(job.id, 0.0)
    tick(table, 0.0, 5.0)
    assert (job.reason, job.holds_resources) == ("ended on request", False)


# Beside jobs on switches


def test_jobs_on_switches_and_on_servers_do_not_touch_one_another() -> None:
    table = new_table()
    server = add_server(table)
    on_switch, on_server, in_ranks = (
        running(table),
        join(table, registered(table)),
        join(table, colocated(table)),
    )
    beat(table, server, on_server)
    serve_all(table, in_ranks)
    table.switches.lost("s1", 1.0)
    assert [job.state for job in (on_switch, on_server, in_ranks)] == ["failed", "running", "running"]
    table.switches.connected("s1")
    again = running(table, now=1.0)
    table.servers.stop("a", server.instance, 1.0)
    assert [job.state for job in (again, on_server, in_ranks)] == ["running", "failed", "running"]
    assert not table.switches.effects


def test_a_switch_that_connects_again_installs_nothing_for_jobs_on_servers() -> None:
    table = new_table()
    join(table, colocated(table))
    table.switches.lost("s1", 1.0)
    table.switches.connected("s1")
    assert not table.switches.effects


def test_a_controller_without_a_switch_refuses_jobs_on_switches() -> None:
    table = table_without_switch()
    with pytest.raises(UnavailableError, match="has no switch; aggregation = server needs none"):
        create_leased(table, 2, 4, "", 0.0)
    assert table.jobs == {}


def test_epochs_and_numbers_are_shared_by_all_jobs() -> None:
    table = new_table()
    jobs = [create_leased(table, 1, 2, "", 0.0), colocated(table), create_leased(table, 1, 2, "", 0.0)]
    assert [(job.id, job.placement.epoch, job.placement.aggregation) for job in jobs] == [
        (1, 100, "leased"),
        (2, 101, "server"),
        (3, 102, "leased"),
    ]
    for rank in range(1):
        table.register(jobs[0].id, member(rank), 0.0)
    carry_out(table, 0.0)
    assert jobs[0].state == "running"


def test_a_refused_registration_of_a_worker_changes_nothing() -> None:
    table = table_without_switch()
    job = join(table, colocated(table))
    version = table.version
    with pytest.raises(RequestError):
        table.register(job.id, worker(0, 5999), 0.0)
    assert (table.version, job.members[0]) == (version, worker(0))
