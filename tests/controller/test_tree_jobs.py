# SPDX-License-Identifier: Apache-2.0
"""Jobs on a tree of switches: their entries, run by the compiled program, and the service's part in their life."""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import httpx
import pytest

from inagg_controller.errors import (
    ConfigurationError,
    InvalidRequestError,
    SwitchUnreachableError,
    UnavailableError,
)
from inagg_controller.fabric.topology import Place
from inagg_controller.jobs.job import Install, Job, Remove
from inagg_controller.jobs.table import JobTable
from inagg_controller.service import Service
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import Entity, Member, MulticastGroup
from inagg_switch import Switch
from tests import INAGG_P4
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import LEAF_SPINE, Clock, Serving, run, settle, worker
from tests.controller.test_jobs import carry_out, new_table
from tests.switch.inagg.packets import Inagg, ethernet, ipv4, read_result, udp

RANKS = 4  # h1, h2 at leaf1, h3, h4 at leaf2
AT = ["leaf1", "leaf1", "leaf2", "leaf2"]


def member(rank: int) -> Member:
    return Member(
        rank=rank,
        ip=0x0A000001 + rank,
        mac=0x020000000001 + rank,
        udp_port=5000 + rank,
        port=1 + rank % 2,
    )


def tree_table(**limits: int) -> JobTable:
    return new_table(topology=LEAF_SPINE, **limits)


def joined(table: JobTable, at: list[str] = AT) -> Job:
    job = table.create(len(at), 4, "", 0.0, at=at)
    for rank in range(len(at)):
        table.register(job.id, member(rank), 0.0)
    return job


class Wires:
    """The switches of LEAF_SPINE, each with the compiled program, and their links. Hosts keep what they get."""

    def __init__(self) -> None:
        self.programs = {name: Switch.from_p4(INAGG_P4, seed=1) for name in LEAF_SPINE.by_name}
        self.received: dict[int, list[bytes]] = {host.ip: [] for host in LEAF_SPINE.hosts}
        self.crossed: dict[Place, int] = {}
        self.host_at = {host.place: host.ip for host in LEAF_SPINE.hosts}

    def insert(self, name: str, entity: Entity) -> None:
        if isinstance(entity, MulticastGroup):
            self.programs[name].multicast_group(entity.group, entity.replicas)
            return
        table, action = entity.table.rpartition(".")[2], entity.action.rpartition(".")[2]
        self.programs[name].insert(table, dict(entity.match), action, dict(entity.params))

    def send(self, place: Place, frame: bytes) -> None:
        """Deliver a frame that comes to a port, and all that follows."""
        queue = deque([(place, frame)])
        while queue:
            (name, port), frame = queue.popleft()
            for out_port, sent in self.programs[name].process(port, frame):
                out = Place(name, out_port)
                if (link := LEAF_SPINE.link_at.get(out)) is None:
                    self.received[self.host_at[out]].append(sent)
                else:
                    self.crossed[out] = self.crossed.get(out, 0) + 1
                    queue.append((next(end for end in link.ends if end != out), sent))

    def close(self) -> None:
        for program in self.programs.values():
            program.close()


@pytest.fixture
def wires() -> Iterator[Wires]:
    made = Wires()
    yield made
    made.close()


def contribution(job: Job, rank: int, chunk: int) -> bytes:
    leaf = LEAF_SPINE.by_name[AT[rank]]
    number = job.tree.number_of(rank)
    header = Inagg(job=job.id, epoch=job.epoch, rank=number, chunk=chunk, checksum=rank)
    payload = header.encode() + b"".join((1 << rank).to_bytes(256, "big") for _ in range(4))
    packet = ipv4(member(rank).ip, leaf.ip, udp(5000 + rank, 0x4941, payload))
    return ethernet(leaf.mac, member(rank).mac, 0x0800, packet)


@pytest.mark.parametrize("unicast", [False, True])
@pytest.mark.parametrize("roots", [1, 2])
def test_the_entries_make_the_switches_sum_what_all_ranks_send(
    wires: Wires, roots: int, unicast: bool
) -> None:
    table = tree_table(max_roots=roots)
    job = table.create(RANKS, 4, "", 0.0, at=AT)
    if unicast:
        table.unicast(job.id)
    for rank in range(RANKS):
        table.register(job.id, member(rank), 0.0)
    (effect,) = table.effects
    assert isinstance(effect, Install)
    for name, entries in effect.entries.items():
        for entity in itertools.chain(*entries.stages):
            wires.insert(name, entity)
    for chunk in range(4):
        for rank in range(RANKS):
            wires.send(LEAF_SPINE.host_at[member(rank).ip].place, contribution(job, rank, chunk))
    for rank in range(RANKS):
        results = [read_result(frame) for frame in wires.received[member(rank).ip]]
        assert [result.inagg.chunk for result in results] == [0, 1, 2, 3]
        for result in results:
            assert (result.words, result.inagg.checksum) == ([0b1111] * 4, 0 + 1 + 2 + 3)
            assert result.src_ip == LEAF_SPINE.by_name[AT[rank]].ip
            own = (member(rank).ip, 5000 + rank)
            assert (result.dst_ip, result.dst_port) == (own if unicast else (job.results_ip, 0x4941))
    up = {str(place): count for place, count in wires.crossed.items() if place.switch.startswith("leaf")}
    expected = {1: {"leaf1:101": 4, "leaf2:101": 4}, 2: dict.fromkeys(up, 2)}[roots]
    assert (up, len(up)) == (expected, 2 * roots)


def test_a_lost_partial_sum_is_repaired_by_member_0(wires: Wires) -> None:
    table = tree_table(max_roots=1)
    joined(table)
    (effect,) = table.effects
    assert isinstance(effect, Install)
    for name, entries in effect.entries.items():
        for entity in itertools.chain(*entries.stages):
            if name != "spine1":
                wires.insert(name, entity)
    (job,) = table.jobs.values()
    for rank in range(RANKS):
        wires.send(LEAF_SPINE.host_at[member(rank).ip].place, contribution(job, rank, 0))
    for entity in itertools.chain(*effect.entries["spine1"].stages):
        wires.insert("spine1", entity)
    for rank in (1, 0, 2):
        wires.send(LEAF_SPINE.host_at[member(rank).ip].place, contribution(job, rank, 0))
    assert all(len(frames) == 1 for frames in wires.received.values())


def test_a_job_leases_as_much_in_every_switch_of_its_tree_or_nothing() -> None:
    table = tree_table()
    alone = table.create(1, 32, "", 0.0, at=["leaf2"])
    assert {name: pool.free for name, pool in table.pools.items()} == {
        "leaf1": 64,
        "leaf2": 0,
        "spine1": 64,
        "spine2": 64,
    }
    with pytest.raises(UnavailableError, match="the slot pool of switch leaf2 is full"):
        table.create(RANKS, 4, "", 0.0, at=AT)
    assert {name: pool.free for name, pool in table.pools.items() if name != "leaf2"} == {
        "leaf1": 64,
        "spine1": 64,
        "spine2": 64,
    }
    table.end(alone.id, 0.0)
    job = table.create(RANKS, 4, "", 0.0, at=AT)
    assert {lease.size for lease in job.leases.values()} == {8}
    assert job.leases.keys() == LEAF_SPINE.by_name.keys()


def test_entries_go_in_from_the_root_down() -> None:
    table = tree_table()
    joined(table)
    (effect,) = table.effects
    assert isinstance(effect, Install)
    assert list(effect.entries) == ["spine1", "spine2", "leaf1", "leaf2"]


def test_no_switch_sums_for_more_members_than_it_has_bits() -> None:
    table = tree_table()
    with pytest.raises(InvalidRequestError, match="switch leaf1 would sum for 65 workers and switches"):
        table.create(66, 4, "", 0.0, at=["leaf1"] * 65 + ["leaf2"])
    assert table.create(128, 4, "", 0.0, at=["leaf1", "leaf2"] * 64).workers == 128


def test_switches_above_count_too_for_what_the_tables_hold() -> None:
    table = tree_table(max_above=6)
    for _ in range(2):
        table.create(2, 2, "", 0.0, "10.0.0.1", at=["leaf1", "leaf2"])  # two spines each
    assert table.create(2, 2, "", 0.0, "10.0.0.1", at=["leaf1", "leaf1"]).id == 3
    with pytest.raises(
        UnavailableError, match=r"jobs of 10.0.0.1 would have too many switches above at .* is 4;"
    ):
        table.create(2, 2, "", 0.0, "10.0.0.1", at=["leaf1", "leaf2"])
    table.create(2, 2, "", 0.0, at=["leaf1", "leaf2"])
    with pytest.raises(
        UnavailableError, match="the tables of switch leaf1 hold 6 switches above and 6 are taken"
    ):
        table.create(2, 2, "", 0.0, at=["leaf1", "leaf2"])


@pytest.mark.parametrize("name", ["leaf1", "spine2"])
def test_a_lost_switch_fails_the_jobs_whose_tree_has_it_and_no_other(name: str) -> None:
    table = tree_table()
    spanning, local = joined(table), joined(table, ["leaf2", "leaf2"])
    carry_out(table, 0.0)
    table.switch_lost(name, 1.0)
    assert (spanning.state, local.state) == ("failed", "running")
    assert spanning.reason == f"switch {name} was lost: the sums in its slots are gone"
    (effect,) = table.effects
    assert isinstance(effect, Remove)
    assert effect.entries.keys() == LEAF_SPINE.by_name.keys() - {name}
    carry_out(table, 1.0)
    assert not spanning.holds_resources
    if name == "spine2":  # there is another
        assert list(table.create(RANKS, 4, "", 2.0, at=AT).tree.by_name) == ["spine1", "leaf1", "leaf2"]
        return
    with pytest.raises(UnavailableError, match="switch leaf1 is not connected"):
        table.create(RANKS, 4, "", 2.0, at=AT)


def test_a_cut_link_fails_its_jobs_and_later_ones_go_around_it() -> None:
    table = tree_table()
    job, local = joined(table), joined(table, ["leaf1", "leaf1"])
    carry_out(table, 0.0)
    cut = LEAF_SPINE.links[0]
    table.link_down(cut, 1.0, "no beacon arrives at spine1:1")
    assert (job.state, local.state) == ("failed", "running")
    assert job.reason == "the link leaf1:101 - spine1:1 is down: no beacon arrives at spine1:1"
    carry_out(table, 1.0)
    assert list(table.create(RANKS, 4, "", 1.0, at=AT).tree.by_name) == ["spine2", "leaf1", "leaf2"]
    table.link_down(LEAF_SPINE.links[2], 1.0, "")
    with pytest.raises(UnavailableError, match="there is no working way from switch leaf1 to switch leaf2"):
        table.create(RANKS, 4, "", 1.0, at=AT)
    table.link_up(cut)
    assert list(table.create(RANKS, 4, "", 1.0, at=AT).tree.by_name) == ["spine1", "leaf1", "leaf2"]


def test_a_joining_job_waits_for_a_lost_switch_and_is_installed_afresh() -> None:
    table = tree_table()
    job = joined(table)
    table.effects.popleft()  # half of it may be in the switches
    table.switch_lost("spine1", 1.0)
    carry_out(table, 1.0)
    assert job.state == "joining"
    table.switch_connected("spine1")
    carry_out(table, 1.0)
    assert job.state == "running"


# The service.


class Fabric:
    """MemorySwitches joined by the links of LEAF_SPINE, over which beacons travel. cut: ends of links that do not."""

    def __init__(self) -> None:
        self.switches = {name: MemorySwitch() for name in LEAF_SPINE.by_name}
        self.cut: set[Place] = set()
        self.cables = {a: b for link in LEAF_SPINE.links for a, b in (link.ends, link.ends[::-1])}
        for name, switch in self.switches.items():
            switch.emit = partial(self.carry, name)

    def carry(self, name: str, frame: bytes) -> None:
        sent = Place(name, int.from_bytes(frame[14:16], "big"))
        came = self.cables[sent]
        if not {sent, came} & self.cut:
            marked = frame[:16] + came.port.to_bytes(2, "big") + frame[18:]
            self.switches[came.switch].on_packet(marked)

    def serving(self) -> Serving:
        return Serving(self.switches, LEAF_SPINE)


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


async def start(client: httpx.AsyncClient, hosts: Mapping[int, str]) -> int:
    """Create a job for hosts, by rank, and register its ranks. Returns its number when it runs."""
    body = {"workers": len(hosts), "slots": 4, "hosts": [f"10.0.0.{name[1:]}" for name in hosts.values()]}
    answer = await client.post("/jobs", json=body)
    assert answer.status_code == 201, answer.text
    number: int = answer.json()["id"]
    for rank, name in hosts.items():
        host = LEAF_SPINE.host_at[0x0A000000 + int(name[1:])]
        registration = worker(rank, ip=f"10.0.0.{name[1:]}", mac=f"02:00:00:00:00:0{name[1:]}")
        answer = await client.post(f"/jobs/{number}/workers", json=registration | {"port": host.place.port})
        assert answer.status_code == 200, answer.text
    job = (await client.get(f"/jobs/{number}", params={"wait": "running"})).json()
    assert job["state"] == "running", job
    return number


ALL = {0: "h1", 1: "h3", 2: "h2", 3: "h4"}


def test_a_job_shows_its_tree_and_each_worker_its_own_switch(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            number = await start(client, ALL)
            job = (await client.get(f"/jobs/{number}")).json()
            lease = {"first_slot_version": 0, "slot_versions": 8}
            leaves, spines = ["leaf1", "leaf2"], ["spine1", "spine2"]
            ips = [switch.pop("aggregator_ip") for switch in job["tree"]]
            assert ips == ["10.0.255.3", "10.0.255.4", "10.0.255.1", "10.0.255.2"]
            assert job["tree"] == [
                {"switch": "spine1", **lease, "ranks": [], "below": leaves, "above": []},
                {"switch": "spine2", **lease, "ranks": [], "below": leaves, "above": []},
                {"switch": "leaf1", **lease, "ranks": [0, 2], "below": [], "above": spines},
                {"switch": "leaf2", **lease, "ranks": [1, 3], "below": [], "above": spines},
            ]
            again = worker(3, ip="10.0.0.4", mac="02:00:00:00:00:04", port=2)
            answer = (await client.post(f"/jobs/{number}/workers", json=again)).json()
            assert (answer["switch"], answer["member"], answer["aggregator"]["ip"]) == (
                "leaf2",
                1,
                "10.0.255.2",
            )

    run(body)


def test_what_does_not_fit_the_topology_is_refused(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            job = {"workers": 2, "slots": 4}
            for hosts, message in (
                (None, "hosts is missing: this controller has several switches"),
                (["10.0.0.1"], "hosts has 1 addresses for 2 workers"),
                (["10.0.0.1", "10.0.0.9"], "the topology file names no host with the address 10.0.0.9"),
            ):
                answer = await client.post("/jobs", json=job if hosts is None else {**job, "hosts": hosts})
                assert (answer.status_code, message in answer.json()["detail"]) == (422, True), answer.text
            await client.post("/jobs", json={**job, "hosts": ["10.0.0.1", "10.0.0.3"]})
            wrong = worker(1, ip="10.0.0.2", mac="02:00:00:00:00:02")
            answer = await client.post("/jobs/1/workers", json=wrong)
            assert answer.status_code == 409
            assert "rank 1 is at switch leaf1, but job 1 was created for a worker at leaf2" in answer.text

    run(body)


def test_a_switch_that_dies_fails_its_jobs_with_its_name_and_others_go_on(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, service, _):
            number, other = await start(client, ALL), await start(client, {0: "h1", 1: "h2"})
            fabric.switches["spine1"].away = True
            fabric.switches["spine1"].restart()
            # The last switch of the tree from which entries are removed.
            await settle(lambda: fabric.switches["spine2"].groups == [1])
            assert fabric.switches["leaf1"].groups == [1, 3]
            job = (await client.get(f"/jobs/{number}")).json()
            assert job["state"] == "failed"
            assert job["reason"] == "switch spine1 was lost: the sums in its slots are gone"
            assert (await client.get(f"/jobs/{other}")).json()["state"] == "running"
            health = (await client.get("/health")).json()
            assert (health["switch"], health["switches"][2]["state"]) == ("lost", "lost")
            assert fabric.switches["leaf2"].groups == fabric.switches["spine2"].groups == [1]
            await start(client, ALL)
            fabric.switches["spine1"].away = False
            await settle(lambda: service.switches["spine1"].connected)

    run(body)


async def look_at_links(service: Service, clock: Clock, until: float) -> None:
    while clock.now < until:
        clock.now += 0.25
        service._look_at_links()
        await asyncio.sleep(0)  # for the beacons


def test_a_joining_job_whose_switch_stays_away_fails_with_its_name(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, service, clock):
            hosts = ["10.0.0.1", "10.0.0.3"]
            await client.post("/jobs", json={"workers": 2, "slots": 4, "hosts": hosts})
            fabric.switches["leaf2"].away = True
            fabric.switches["leaf2"].restart()
            await settle(lambda: not service.switches["leaf2"].connected)
            await look_at_links(service, clock, 4.0)
            assert (await client.get("/jobs/1")).json()["state"] == "joining"
            await look_at_links(service, clock, 6.0)
            job = (await client.get("/jobs/1")).json()
            assert job["state"] == "failed"
            assert job["reason"] == "the link leaf2:101 - spine1:2 is down: switch leaf2 is not connected"

    run(body)


def test_a_link_that_dies_fails_its_jobs_with_both_ends(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, service, clock):
            number = await start(client, ALL)
            fabric.cut = {Place("leaf2", 102)}
            await look_at_links(service, clock, 6.0)
            job = (await client.get(f"/jobs/{number}")).json()
            assert job["state"] == "failed"
            assert job["reason"].startswith("the link leaf2:102 - spine2:2 is down: no beacon arrives at ")
            links = (await client.get("/health")).json()["links"]
            assert [link["state"] for link in links] == ["up", "up", "up", "down"]
            found = (await client.get("/metrics")).text
            assert 'inagg_link_up{end="leaf2:102",other_end="spine2:2"} 0.0' in found
            fabric.cut = set()
            await look_at_links(service, clock, 8.0)
            assert service.jobs.create(RANKS, 4, "", 8.0, at=AT).tree.roots == 2

    run(body)


def test_a_wrong_cable_is_an_error_at_start(fabric: Fabric) -> None:
    a, b = Place("leaf1", 101), Place("leaf1", 102)
    fabric.cables[a], fabric.cables[b] = fabric.cables[b], fabric.cables[a]
    fabric.cables[fabric.cables[a]], fabric.cables[fabric.cables[b]] = a, b

    async def body() -> None:
        async with fabric.serving()():
            pass

    with pytest.raises(
        ConfigurationError, match="port leaf1:101 is connected to spine2:1; the topology file says"
    ):
        run(body)


def test_counters_and_admitted_contributions_are_told_by_switch(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            number = await start(client, ALL)
            fabric.switches["leaf2"].admitted = {(number, 0): Count(5, 500), (number, 1): Count(6, 600)}
            fabric.switches["spine1"].admitted = {(number, 1): Count(7, 700)}
            job = (await client.get(f"/jobs/{number}")).json()
            assert {rank: count["packets"] for rank, count in job["counters"].items()} == {"1": 5, "3": 6}
            found = (await client.get("/metrics")).text
            assert f'inagg_rank_admitted_packets_total{{job="{number}",rank="3"}} 6.0' in found
            labels = f'{{above="spine1",job="{number}",switch="leaf2"}}'
            assert f"inagg_partial_admitted_packets_total{labels} 7.0" in found
            assert set((await client.get("/counters")).json()) == set(LEAF_SPINE.by_name)

    run(body)


def test_counters_of_all_switches_are_read_at_the_same_time(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(len(fabric.switches))

    def read_counters(_: MemorySwitch, ports: Sequence[int]) -> Mapping[str, Mapping[int, Count]]:
        together.wait(10)
        return {}

    monkeypatch.setattr(MemorySwitch, "read_counters", read_counters)

    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            assert list((await client.get("/counters")).json()) == list(LEAF_SPINE.by_name)

    run(body)


def test_loss_needs_the_name_of_its_switch(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            loss = {"port": 101, "direction": "ingress", "probability": 0.5}
            assert (await client.put("/loss", json=loss)).status_code == 422
            assert (await client.put("/loss", json={**loss, "switch": "leaf9"})).status_code == 422
            answer = (await client.put("/loss", json={**loss, "switch": "leaf2"})).json()
            assert {each["switch"] for each in answer["loss"]} == {"leaf2"}
            assert (await client.delete("/loss")).json() == {"loss": []}

    run(body)


def test_an_installation_stops_when_another_switch_of_the_job_restarts(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, service, _):
            spine, leaf = fabric.switches["spine1"], fabric.switches["leaf2"]

            def restart_leaf(entity: Entity) -> bool:  # on the spine's thread, while it is written to
                spine.refuse = lambda _: False
                leaf.restart()
                deadline = time.monotonic() + 10
                while leaf.connections < 2 or not service.switches["leaf2"].connected:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                return False

            spine.refuse = restart_leaf
            await start(client, ALL)  # MemorySwitch refuses an entry that is there already
            assert leaf.connections == 2
            assert leaf.groups == [1, 2]

    run(body)


def test_a_switch_that_refuses_a_removal_does_not_end_it_at_the_others(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, service, clock):
            number = await start(client, ALL)
            leaf = fabric.switches["leaf2"]  # the first from which entries are removed
            leaf.refuse_removal = lambda entity: True
            await client.delete(f"/jobs/{number}")
            await settle(lambda: service.jobs.job(number).retry_at is not None)
            groups = {name: switch.groups for name, switch in fabric.switches.items()}
            assert groups == {"leaf1": [1], "leaf2": [1, 2], "spine1": [1], "spine2": [1]}
            leaf.refuse_removal = lambda entity: False
            clock.now = 1.0
            await settle(lambda: leaf.groups == [1])

    run(body)


def test_a_switch_that_stands_still_holds_up_no_job_of_others(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            standing, go_on = threading.Event(), threading.Event()

            def stand(entity: Entity) -> bool:  # on the spine's thread
                standing.set()
                assert go_on.wait(10)
                return False

            fabric.switches["spine1"].refuse = stand
            spanning = asyncio.create_task(start(client, ALL))
            await settle(standing.is_set)
            await start(client, {0: "h1", 1: "h2"})
            assert not spanning.done()
            go_on.set()
            await spanning

    run(body)


def test_calls_that_wait_for_a_switch_that_is_lost_are_not_made(fabric: Fabric) -> None:
    made = []

    def call(number: int) -> None:
        made.append(number)
        raise SwitchUnreachableError("no answer")

    async def body() -> None:
        async with fabric.serving()() as (_, service, _):
            fabric.switches["spine1"].away = True
            connection = service.switches["spine1"].connection
            calls = (connection.call(partial(call, number)) for number in range(3))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [SwitchUnreachableError] * 3

    run(body)
    assert made == [0]
