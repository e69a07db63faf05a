# SPDX-License-Identifier: Apache-2.0
"""What is particular to jobs on shared slots, with a switch and servers: literal cases, in virtual time.

The switch has 64 slot versions, of which the last 16 are shared.
"""

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from inagg_controller.errors import UnavailableError
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.effects import Install, Regroup
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Limits
from inagg_controller.jobs.placement import State
from inagg_controller.jobs.servers import Seat, Server
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import (
    DISPLACEMENT,
    HOME,
    PARENT,
    RECEIVER,
    SERVER,
    SHARING,
    JobEntries,
    Member,
)
from inagg_switch import Switch
from tests import INAGG_P4
from tests.controller.server_tables import (
    FOUR_SLOTS,
    ROOM,
    add_server,
    beat,
    ordered,
    register_all,
    seats,
    serve_all,
    tick,
)
from tests.controller.serving import LEAF_SPINE, SHARED_SLOTS
from tests.controller.shared_tables import HOSTS, values
from tests.controller.tables import (
    carry_out,
    create_leased,
    create_shared,
    frees_memory,
    frees_slots,
    new_table,
)
from tests.switch.inagg.packets import DATA, INAGG_PORT, RESULT, Inagg, ethernet, ipv4, read_result, udp


def shared_table(topology: Topology = HOSTS, shared_slots: int = SHARED_SLOTS, **limits: Any) -> JobTable:
    return new_table(topology=topology, shared_slots=shared_slots, **limits)


def member(rank: int, server_udp_port: int | None = 5000) -> Member:
    return Member(
        rank=rank,
        ip=0x0A000001 + rank,
        mac=0x020000000001 + rank,
        udp_port=4000,
        port=1 + rank,
        server_udp_port=server_udp_port,
    )


join = partial(register_all, member=member)


def colocated(table: JobTable, workers: int = 2, slots: int = 4, creator: str | None = None) -> Job:
    return create_shared(table, workers, slots, "", 0.0, creator, colocated=True)


def registered(table: JobTable, workers: int = 2, slots: int = 4) -> Job:
    return create_shared(table, workers, slots, "", 0.0, colocated=False)


def started(table: JobTable) -> Job:
    """A running job with two workers and their servers."""
    job = join(table, colocated(table))
    carry_out(table, 0.0)
    serve_all(table, job)
    assert job.state == "running"
    return job


def entries(job: Job) -> JobEntries:
    assert job.placement.entries
    return job.placement.entries["s1"]


# When a job runs


@pytest.mark.parametrize("first", ["entries", "servers"])
def test_a_job_runs_when_its_entries_are_in_and_all_its_servers_serve(first: str) -> None:
    table = shared_table()
    job = colocated(table)
    assert (job.placement.aggregation, job.placement.leases, job.slots) == ("shared", {}, 4)
    table.register(job.id, member(1), 0.0)
    assert (not table.switches.effects, seats(job)) == (True, [])
    table.register(job.id, member(0), 0.0)
    assert job.placement.servers is not None
    assert job.placement.servers.seats == (
        Seat("rank 0", 0x0A000001, 5000, 0),
        Seat("rank 1", 0x0A000002, 5000, 1),
    )
    if first == "entries":
        carry_out(table, 0.1)
        table.serve(job.id, 0, 0.2)
        assert job.state == "joining"
        table.serve(job.id, 1, 0.3)
    else:
        serve_all(table, job, 0.2)
        assert job.state == "joining"
        carry_out(table, 0.3)
    assert (job.state, job.liveness.last_seen) == ("running", {0: 0.3, 1: 0.3})
    assert not table.switches.effects


def test_servers_have_their_orders_also_while_the_switch_is_away() -> None:
    table = shared_table()
    server = add_server(table)
    job = registered(table)
    table.switches.lost("s1", 0.0)
    join(table, job)
    assert (ordered(table, server), job.placement.in_use, list(table.switches.effects)) == (
        [job.id],
        True,
        [],
    )
    beat(table, server, job)
    table.switches.connected("s1")
    carry_out(table, 1.0)
    assert job.state == "running"


# Its entries


def test_a_complete_job_asks_for_exactly_the_entries_of_the_protocol() -> None:
    table = shared_table()
    job = create_shared(table, 2, 4, "", 0.0, colocated=True, priority=7)
    join(table, job)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    made = effect.entries["s1"]
    epoch = job.placement.epoch
    lease = {"all": 0b11, "slot_base": 0, "slot_mask": 0, "epoch": epoch, "result_group": 2}
    assert values(made, "InaggIngress.admission.admission") == [
        (
            {"port": rank + 1, "source": 0x0A000001 + rank, "job": 1, "rank": rank},
            {
                "member": 1 << rank,
                **lease,
                "first_chunk": job.placement.first_chunk,
                "parents": 0,
                "run_bits": 0,
            },
        )
        for rank in range(2)
    ]
    arrival = {**lease, "mac": 0x024941000001, "ip": 0x0A0000FD, "first_port": 1}
    assert values(made, PARENT) == [
        ({"port": 1 + rank, "source": 0x0A000001 + rank, "job": 1}, arrival) for rank in range(2)
    ]
    # 2654435769 * 4 mod 16 = 4
    share = {
        "base": 48,
        "mask": 15,
        "offset": (4 - job.placement.first_chunk) % 16,
        "servers": 2,
        "run_bits": 1,
        "homes": 0b11,
    }
    share |= {"job_priority": 7, "expiry_us": 20000} | {"mac": 0x024941000001, "ip": 0x0A0000FD}
    assert values(made, SHARING) == [({"job": 1}, share)]
    assert values(made, SERVER) == [
        (
            {"job": 1, "server": rank},
            {
                "port": 1 + rank,
                "mac": 0x020000000001 + rank,
                "ip": 0x0A000001 + rank,
                "udp_port": 5000,
                "rank": 0,
            },
        )
        for rank in range(2)
    ]
    assert [match["rank"] for match, _ in values(made, RECEIVER)] == [0, 1, 255]
    assert made.group.replicas == ((1, 256), (2, 256))
    assert values(made, DISPLACEMENT) == [({"job": 1, "expired": expired}, {}) for expired in (0, 1)]
    assert values(made, HOME) == [({"job": 1, "rank": rank, "port": rank + 1}, {}) for rank in range(2)]
    assert {entry.table for entry in made.receivers} == {RECEIVER, SERVER, SHARING, HOME, DISPLACEMENT}
    assert len([entity for stage in made.stages for entity in stage]) == 2 + 2 + 1 + 2 + 2 + 2 + 3 + 1


def test_ranks_behind_one_port_get_a_copy_of_each_result() -> None:
    """Also the rank whose server has given it the result: the switch sends one copy for both."""
    table = shared_table()
    job = colocated(table, workers=3)
    for rank, host in enumerate((0, 0, 1)):
        one = replace(member(host), rank=rank, udp_port=4000 + rank, server_udp_port=5000 + rank)
        table.register(job.id, one, 0.0)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    made = effect.entries["s1"]
    ((_, share),) = values(made, SHARING)
    assert (share["servers"], share["homes"]) == (2, 0b11)
    assert values(made, HOME) == []


@pytest.mark.parametrize(("workers", "skipped"), [(8, 8), (15, 8), (16, 0)])
def test_the_switch_skips_no_copy_for_many_servers(workers: int, skipped: int) -> None:
    """Each makes another set of ports that results go to."""
    table = shared_table(slot_versions=256, shared_slots=64, host_share=1.0)
    job = colocated(table, workers=workers, slots=16)
    for rank in range(workers):
        table.register(job.id, member(rank), 0.0)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    made = effect.entries["s1"]
    ((_, share),) = values(made, SHARING)
    assert share["homes"] == (1 << share["servers"]) - 1
    assert len(values(made, HOME)) == skipped


def test_a_rank_without_a_server_gets_all_results_from_the_switch() -> None:
    table = shared_table()
    add_server(table)
    job = join(table, registered(table))
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    ((_, share),) = values(effect.entries["s1"], SHARING)
    assert (job.workers, share["homes"], values(effect.entries["s1"], HOME)) == (2, 0, [])


@pytest.mark.parametrize("unicast", [False, True])
def test_the_entries_make_the_switch_combine_and_pass_results_on(unicast: bool) -> None:
    table = shared_table()
    job = colocated(table, workers=3)
    if unicast:
        table.unicast(job.id)
    made = entries(join(table, job))
    with contextlib.closing(Switch.from_p4(INAGG_P4, defines={"SLOT_VERSIONS": "64"}, seed=1)) as program:
        program.multicast_group(made.group.group, made.group.replicas)
        for entry in (*made.receivers, *made.admissions):
            table_name, action = entry.table.rpartition(".")[2], entry.action.rpartition(".")[2]
            program.insert(table_name, dict(entry.match), action, dict(entry.params))
        for chunk in range(8):
            server = chunk // 2 % 2  # two of four slots are a run
            other = 1 - server  # the rank of the server sends to it directly
            assert program.process(1 + other, frame(job, other, chunk, DATA)) == []
            ((port, partial),) = program.process(3, frame(job, 2, chunk, DATA))
            assert (port, partial[:6]) == (1 + server, member(server).mac.to_bytes(6, "big"))
            # IPv4 destination, UDP destination, workers, first word.
            assert partial[30:34] == member(server).ip.to_bytes(4, "big")
            assert partial[36:38] == (5000).to_bytes(2, "big")
            assert partial[62:70] == (1 << other | 1 << 2).to_bytes(8, "big")
            assert partial[70:326] == ((1 << other) + (1 << 2)).to_bytes(256, "big")
            results = program.process(1 + server, frame(job, server, chunk, DATA | RESULT, udp_port=5000))
            assert [port for port, _ in results] == [1 + other, 3]
            for port, sent in results:
                result, own = read_result(sent), (member(port - 1).ip, 4000)
                to_all = (job.placement.results_ip, INAGG_PORT)
                assert (result.dst_ip, result.dst_port) == (own if unicast else to_all)
        assert program.counter("slot_combined")[3][0] == 8
        assert [program.counter("result_at_home")[port][0] for port in (1, 2, 3)] == [4, 4, 0]


def frame(job: Job, rank: int, chunk: int, kind: int, udp_port: int = 4000) -> bytes:
    """A packet of a rank or of its server to the switch, with 1 << rank in each word."""
    header = Inagg(kind=kind, job=job.id, epoch=job.placement.epoch, rank=rank, chunk=chunk)
    payload = header.encode() + b"".join((1 << rank).to_bytes(256, "big") for _ in range(4))
    packet = ipv4(member(rank).ip, 0x0A0000FD, udp(udp_port, INAGG_PORT, payload))
    return ethernet(0x024941000001, member(rank).mac, 0x0800, packet)


def test_registered_servers_are_reached_as_the_topology_says() -> None:
    table = shared_table()
    for name in "ab":
        add_server(table, name)
    job = registered(table)
    for rank in range(2):
        table.register(job.id, member(rank, None), 0.0)
    assert values(entries(job), SERVER) == [
        (
            {"job": 1, "server": index},
            {
                "port": 4,
                "mac": 0x02000000AA61 + index,
                "ip": 0x0A000161 + index,
                "udp_port": 18754,
                "rank": 0,
            },
        )
        for index in range(2)
    ]


def test_servers_at_one_address_need_one_entry_for_their_results() -> None:
    table = shared_table()
    for number in range(2):
        table.servers.register(f"a{number}", 0x0A000161, 18754 + number, ROOM, 0.0)
    job = join(table, registered(table))
    assert [match for match, _ in values(entries(job), PARENT)] == [
        {"port": 4, "source": 0x0A000161, "job": 1}
    ]
    assert [params["udp_port"] for _, params in values(entries(job), SERVER)] == [18754, 18755]


def test_the_first_chunks_of_jobs_have_slots_of_their_own() -> None:
    table = shared_table()
    offsets = []
    for _ in range(4):
        job = join(table, colocated(table))
        first_chunk = job.placement.first_chunk
        offsets += [(params["offset"] + first_chunk) % 16 for _, params in values(entries(job), SHARING)]
        table.end(job.id, 0.0)
    assert sorted(offsets) == [0, 4, 8, 12]


def test_a_job_that_is_changed_to_unicast_waits_for_the_switch() -> None:
    table = shared_table()
    job = join(table, colocated(table))
    carry_out(table, 0.0)
    assert job.placement.results_ip == 0xEFC00001
    table.unicast(job.id)
    serve_all(table, job)
    assert job.state == "joining"
    (change,) = table.switches.effects
    assert isinstance(change, Regroup)
    carry_out(table, 1.0)
    assert (table.job(job.id).placement.results_ip, table.job(job.id).state) == (None, "running")
    assert entries(job).group.replicas == ((1, 1), (2, 2))


# Its servers


@pytest.mark.parametrize(
    ("workers", "slots", "count"), [(1, 4, 1), (2, 4, 2), (3, 4, 2), (7, 4, 4), (7, 2, 2), (64, 64, 64)]
)
def test_the_number_of_colocated_servers_is_a_power_of_two(workers: int, slots: int, count: int) -> None:
    job = colocated(shared_table(), workers, slots)
    assert job.placement.servers is not None
    assert job.placement.servers.count == count


def test_the_number_of_registered_servers_is_a_power_of_two() -> None:
    table = shared_table()
    for name in "abc":
        add_server(table, name)
    assert seats(join(table, registered(table))) == ["a", "b"]
    assert [server.free for server in table.servers.by_name.values()] == [ROOM - 4432, ROOM - 4432, ROOM]


def test_servers_that_the_switch_cannot_reach_are_not_chosen() -> None:
    table = shared_table()
    add_server(table, "d")
    add_server(table, "e")
    with pytest.raises(
        UnavailableError,
        match=r"no switch of the job has the aggregation servers d, e: name their hosts.*IP=PORT,MAC",
    ):
        registered(table)
    assert table.jobs == {}
    add_server(table, "b")
    assert seats(join(table, registered(table))) == ["b"]


def test_a_server_at_another_switch_is_not_reached() -> None:
    table = shared_table(topology=LEAF_SPINE)
    table.servers.register("h3", 0x0A000003, 18754, ROOM, 0.0)  # at leaf2
    with pytest.raises(UnavailableError, match="no switch of the job has the aggregation servers h3"):
        create_shared(table, 2, 4, "", 0.0, at=["leaf1"] * 2, colocated=False)
    assert (
        create_shared(table, 2, 4, "", 0.0, at=["leaf2"] * 2, colocated=False).placement.servers is not None
    )


# What there is for it


def test_the_shared_slots_are_not_leased() -> None:
    table = shared_table()
    assert (table.switches.pools["s1"].free, table.switches.pools["s1"].size) == (48, 48)
    granted = [create_leased(table, 1, 8, "", 0.0).slots for _ in range(3)]
    assert (granted, table.switches.pools["s1"].free) == ([8, 8, 8], 0)
    assert max(lease.base + lease.size for lease in table.switches.pools["s1"].leases) == 48
    assert colocated(table).slots == 4


def test_without_shared_slots_jobs_are_refused() -> None:
    table = shared_table(shared_slots=0)
    with pytest.raises(UnavailableError, match="has no shared slots: start the controller with --shared-s"):
        colocated(table)
    assert (table.jobs, table.switches.pools["s1"].free) == ({}, 64)


@pytest.mark.parametrize("slots", [-1, 24, 64])
def test_the_shared_slots_are_a_power_of_two_and_at_most_half_of_the_pool(slots: int) -> None:
    with pytest.raises(ValueError, match=f"shared_slots is {slots}; it must be 0 or a power of two, at most"):
        Limits(slot_versions=64, shared_slots=slots)
    assert Limits(slot_versions=64, shared_slots=32).leasable == 32


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ({"max_above": 5}, "hold 5 switches and servers above and 4 are taken"),
        ({"max_shared_jobs": 2}, "hold 2 jobs on shared slots and 2 are taken"),
    ],
)
def test_the_tables_bound_the_number_of_jobs(limits: dict[str, Any], fault: str) -> None:
    table = shared_table(**limits)
    jobs = [colocated(table) for _ in range(2)]
    with pytest.raises(UnavailableError, match=fault):
        colocated(table)
    table.end(jobs[0].id, 0.0)
    colocated(table)


def test_one_host_leaves_room_in_the_tables_to_others() -> None:
    table = shared_table(max_shared_jobs=4)
    for _ in range(3):
        colocated(table, creator="10.0.0.1")
    with pytest.raises(
        UnavailableError, match=r"jobs of 10\.0\.0\.1 would have too many jobs on shared slots"
    ):
        colocated(table, creator="10.0.0.1")
    colocated(table, creator="10.0.0.2")


# Failures


def test_a_joining_job_whose_entries_were_in_a_lost_switch_is_installed_again() -> None:
    table = shared_table()
    job = join(table, colocated(table))
    carry_out(table, 0.0)
    table.switches.lost("s1", 1.0)
    assert (job.state, job.placement.entries, job.placement.state) == ("joining", {}, State.PLANNED)
    serve_all(table, job)
    assert job.state == "joining"
    table.switches.connected("s1")
    carry_out(table, 2.0)
    assert job.state == "running"


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("way", ["lost", "stopped", "started again", "refused", "no longer serves it"])
def test_a_server_that_is_gone_fails_the_job(way: str, installed: bool) -> None:
    table = shared_table()
    server = add_server(table)
    job = join(table, registered(table))
    if installed:
        carry_out(table, 0.0)
        beat(table, server, job)
        assert job.state == "running"
    if way == "lost":
        tick(table, 0.0, 2.5)
        for rank in range(2):
            table.heartbeat(job.id, rank, 2.5)
        tick(table, 2.6, 5.0)
        assert table.servers.by_name == {}
    elif way == "stopped":
        table.servers.stop("a", server.instance, 1.0)
    elif way == "started again":
        add_server(table)
    elif way == "refused":
        table.servers.heartbeat("a", server.instance, 1.0, [], {job.placement.key: "refused"})
    else:
        beat(table, server, now=1.0)
        if not installed:  # it has not served it yet
            assert job.state == "joining"
            return
    assert job.state == "failed"
    assert job.reason is not None
    assert way in job.reason
    carry_out(table, 6.0)
    assert (job.placement.entries, job.holds_resources) == ({}, False)


# What an ended job still holds


@pytest.mark.parametrize("first", ["switch", "server"])
def test_an_ended_job_holds_what_it_has_until_switch_and_servers_have_forgotten_it(first: str) -> None:
    table = shared_table()
    server: Server = add_server(table, memory=FOUR_SLOTS)
    job = join(table, registered(table))
    carry_out(table, 0.0)
    beat(table, server, job)
    table.end(job.id, 1.0)
    assert (ordered(table, server), frees_memory(table), frees_slots(table)) == ([], True, False)
    if first == "switch":
        carry_out(table, 1.0)
        assert (job.placement.entries, job.holds_resources, server.free) == ({}, True, 0)
        beat(table, server, now=1.5)
    else:
        beat(table, server, now=1.5)
        assert (server.free, job.holds_resources, frees_memory(table)) == (FOUR_SLOTS, True, False)
        assert len(table.switches.effects) == 1
        carry_out(table, 2.0)
    assert (job.placement.entries, job.holds_resources, server.free) == ({}, False, FOUR_SLOTS)
