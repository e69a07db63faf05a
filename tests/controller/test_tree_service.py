# SPDX-License-Identifier: Apache-2.0
"""The service with a tree of switches: what it tells of jobs, and what it does when a switch or link fails."""

import asyncio
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from inagg_contract.constants import FLOOD_GROUP
from inagg_controller.errors import ConfigurationError, SwitchUnreachableError
from inagg_controller.fabric.topology import Place
from inagg_controller.service import Service
from inagg_controller.state_file import StateFile
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import STATION, Entity, TableEntry
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import AT, LEAF_SPINE, RANKS, Clock, Serving, run, settle, worker
from tests.controller.tables import create_leased

H3 = 0x020000000003


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
            fabric.switches["leaf1"].threads = 2
            number = await start(client, ALL)
            job = (await client.get(f"/jobs/{number}")).json()
            lease = {"first_slot_version": 0, "slot_versions": 8}
            leaves, spines = ["leaf1", "leaf2"], ["spine1", "spine2"]
            ips = [switch.pop("aggregator_ip") for switch in job["tree"]]
            assert ips == ["10.0.255.3", "10.0.255.4", "10.0.255.1", "10.0.255.2"]
            assert job["tree"] == [
                {"switch": "spine1", **lease, "ranks": [], "below": leaves, "above": [], "threads": 1},
                {"switch": "spine2", **lease, "ranks": [], "below": leaves, "above": [], "threads": 1},
                {"switch": "leaf1", **lease, "ranks": [0, 2], "below": [], "above": spines, "threads": 2},
                {"switch": "leaf2", **lease, "ranks": [1, 3], "below": [], "above": spines, "threads": 1},
            ]
            again = worker(3, ip="10.0.0.4", mac="02:00:00:00:00:04", port=2)
            answer = (await client.post(f"/jobs/{number}/workers", json=again)).json()
            assert (answer["switch"], answer["member"], answer["aggregator"]["ip"]) == (
                "leaf2",
                1,
                "10.0.255.2",
            )

    run(body)


def test_servers_take_partial_sums_from_the_root(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()(shared_slots=16) as (client, _, _):
            new = {"workers": 2, "slots": 4, "aggregation": "shared", "hosts": ["10.0.0.3", "10.0.0.1"]}
            job = (await client.post("/jobs", json=new)).json()
            assert [switch["switch"] for switch in job["tree"]] == ["spine1", "leaf1", "leaf2"]
            assert job["relay"] == {"ip": "10.0.255.3", "udp_port": 18753}
            assert job["aggregator"]["ip"] == "10.0.255.2"

    run(body)


def test_a_rank_that_names_no_rack_is_in_the_rack_of_its_switch(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            new = {"workers": 3, "slots": 4, "aggregation": "server"}
            number = (await client.post("/jobs", json=new)).json()["id"]
            for rank, more in enumerate(
                [{"ip": "10.0.0.3"}, {"ip": "10.0.0.1"}, {"ip": "10.0.0.9", "rack": "r9"}]
            ):
                document = {"rank": rank, "udp_port": 4000, "server_udp_port": 5000, **more}
                answer = await client.post(f"/jobs/{number}/workers", json=document)
                assert answer.status_code == 200, answer.text
            assert [member["rack"] for member in answer.json()["members"]] == ["leaf2", "leaf1", "r9"]

    run(body)


def test_what_does_not_fit_the_topology_is_refused(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            job = {"workers": 2, "slots": 4}
            for hosts, message in (
                (None, "hosts is missing: this controller has several switches"),
                (["10.0.0.1"], "hosts has 1 addresses for 2 workers: give one address for each rank"),
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
        service.link_watch.look()
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
            assert create_leased(service.jobs, RANKS, 4, "", 8.0, at=AT).placement.tree.roots == 2

    run(body)


def ordinary_ways(fabric: Fabric) -> dict[str, tuple[list[int], int]]:
    """By switch that is there: the ports to which it floods, and the port at which it has h3, at leaf2."""
    ways = {}
    for name, switch in fabric.switches.items():
        if switch.away:
            continue
        flooded = [port for port, _ in switch.replicas(FLOOD_GROUP)]
        (params,) = [
            dict(entity.params)
            for entity in switch.entities.values()
            if isinstance(entity, TableEntry) and (entity.table, entity.match) == (STATION, (("mac", H3),))
        ]
        ways[name] = flooded, params["port"]
    return ways


def test_ordinary_traffic_goes_around_a_link_that_dies(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (client, service, clock):
            assert ordinary_ways(fabric) == {
                "leaf1": ([1, 2, 101, 102], 101),
                "leaf2": ([1, 2, 101], 1),
                "spine1": ([1, 2], 2),
                "spine2": ([1], 1),
            }
            fabric.cut = {Place("leaf2", 101)}
            await look_at_links(service, clock, 6.0)
            around = {
                "leaf1": ([1, 2, 101, 102], 102),
                "leaf2": ([1, 2, 102], 1),
                "spine1": ([1], 1),
                "spine2": ([1, 2], 2),
            }
            await settle(lambda: ordinary_ways(fabric) == around)
            links = (await client.get("/health")).json()["links"]
            assert [link["ordinary"] for link in links] == [True, False, True, True]
            fabric.cut = set()
            await look_at_links(service, clock, 8.0)
            assert ordinary_ways(fabric) == around

    run(body)


def test_ordinary_traffic_goes_around_a_switch_that_dies_and_reaches_it_again(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as _:
            spine = fabric.switches["spine1"]
            spine.away = True
            spine.restart()
            around = {"leaf1": ([1, 2, 102], 102), "leaf2": ([1, 2, 102], 1), "spine2": ([1, 2], 2)}
            await settle(lambda: ordinary_ways(fabric) == around)
            spine.away = False
            around |= {"leaf1": ([1, 2, 101, 102], 102), "spine1": ([1], 1)}
            await settle(lambda: spine.groups and ordinary_ways(fabric) == around)

    run(body)


def test_a_switch_that_stands_still_does_not_keep_ordinary_traffic_from_going_around(fabric: Fabric) -> None:
    async def body() -> None:
        async with fabric.serving()() as (_, service, clock):
            go_on = threading.Event()
            fabric.switches["spine1"].refuse = lambda _: not go_on.wait(20)
            fabric.cut = {Place("leaf1", 101), Place("leaf2", 101)}
            await look_at_links(service, clock, 6.0)
            await settle(lambda: fabric.switches["spine2"].replicas(FLOOD_GROUP) == ((1, 0), (2, 0)))
            assert fabric.switches["spine1"].replicas(FLOOD_GROUP) == ((1, 0), (2, 0))
            go_on.set()
            await settle(lambda: fabric.switches["spine1"].replicas(FLOOD_GROUP) == ())

    run(body)


def test_nothing_else_moves_while_a_switch_in_the_tree_has_not_stopped_to_flood(fabric: Fabric) -> None:
    """spine1, which only the controller does not reach, leaf1 and spine2 would close a circle through leaf2."""

    async def body() -> None:
        async with fabric.serving()():
            refused, go_on = threading.Event(), threading.Event()

            def stand(_: Entity) -> bool:  # on the leaf's thread
                refused.set()
                return not go_on.wait(20)

            fabric.switches["leaf2"].refuse = stand
            fabric.switches["spine1"].away = True
            fabric.switches["spine1"].restart()
            await settle(refused.is_set)
            await settle(lambda: ordinary_ways(fabric)["leaf1"][0] == [1, 2, 102])
            await asyncio.sleep(1.5)  # longer than the others wait for one another
            assert ordinary_ways(fabric)["spine2"] == ([1], 1)
            go_on.set()
            await settle(lambda: ordinary_ways(fabric)["spine2"] == ([1, 2], 2))
            await settle(lambda: ordinary_ways(fabric)["leaf2"] == ([1, 2, 102], 1))

    run(body)


def test_a_controller_that_starts_again_leaves_ordinary_traffic_where_it_is(
    fabric: Fabric, tmp_path: Path
) -> None:
    around = {"leaf1": ([1, 2, 102], 102), "leaf2": ([1, 2, 102], 1), "spine2": ([1, 2], 2)}

    async def first() -> None:
        with closing(StateFile(tmp_path / "state")) as state:
            async with fabric.serving()(state=state) as (client, _, _):
                fabric.switches["spine1"].away = True
                fabric.switches["spine1"].restart()
                await settle(lambda: ordinary_ways(fabric) == around)
                await start(client, ALL)

    async def again() -> None:
        for switch in fabric.switches.values():
            switch.calls.clear()
        fabric.switches["spine1"].away = False
        with closing(StateFile(tmp_path / "state")) as state:
            async with fabric.serving()(state=state):
                joined = around | {"leaf1": ([1, 2, 101, 102], 102), "spine1": ([1], 1)}
                await settle(lambda: ordinary_ways(fabric) == joined)
        # Only what leads to spine1's aggregator has moved.
        calls = fabric.switches["leaf2"].calls + fabric.switches["spine2"].calls
        assert {(kind, str(H3) in str(entity)) for kind, entity in calls} <= {("modify", False)}

    run(first)
    run(again)


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
            assert re.search(
                rf'inagg_rank_admitted_packets_total\{{.*inagg_job="{number}".*rank="3"\}} 6.0', found
            )
            labels = f'{{above="spine1",inagg_job="{number}",name="",switch="leaf2"}}'
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
            await settle(lambda: service.jobs.job(number).placement.retry_at is not None)
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


def test_the_metrics_read_all_kinds_at_a_time(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, begun = threading.Event(), threading.Event()

    def read_counters(ports: Sequence[int]) -> dict[str, dict[int, Count]]:
        assert go_on.wait(20)
        return {}

    def read_admitted() -> dict[tuple[int, int], Count]:
        begun.set()
        return {}

    monkeypatch.setattr(fabric.switches["leaf1"], "read_counters", read_counters)
    monkeypatch.setattr(fabric.switches["leaf2"], "read_admitted", read_admitted)

    async def body() -> None:
        async with fabric.serving()() as (client, _, _):
            scrape = asyncio.create_task(client.get("/metrics"))
            try:
                await settle(begun.is_set)  # while the counters of leaf1 are read
            finally:
                go_on.set()
            assert (await scrape).status_code == 200

    run(body)


def test_a_switch_that_hangs_hides_its_own_traffic_alone(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_controller.http.overviews._READ_S", 0.2)
    leaf, go = fabric.switches["leaf1"], threading.Event()
    read_counters = leaf.read_counters

    def hanging(*arguments: Any) -> Any:
        go.wait(10)
        return read_counters(*arguments)

    async def body() -> Any:
        async with fabric.serving()() as (client, service, _):
            leaf.read_counters = hanging  # type: ignore[method-assign, assignment]
            try:
                found = (await client.get("/overview")).json()
                next_call = asyncio.ensure_future(service.switches["leaf1"].connection.call(lambda: None))
                done, _ = await asyncio.wait([next_call], timeout=0.05)
            finally:
                go.set()
            await next_call
            return {each["switch"] for each in found["ports"]}, done

    # The next call waits for its turn: the one that hangs has not been given up.
    assert run(body) == ({"leaf2", "spine1", "spine2"}, set())
