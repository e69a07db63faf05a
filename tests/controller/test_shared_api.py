# SPDX-License-Identifier: Apache-2.0
"""The HTTP API for jobs on shared slots: requests, answers and refusals, the switch's entries, and metrics."""

import asyncio
from typing import Any

import pytest

from inagg_controller.fabric.topology import Host, Place, Topology
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import (
    ADMISSION,
    DISPLACEMENT,
    PARENT,
    RECEIVER,
    SERVER,
    SHARING,
    MulticastGroup,
)
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import (
    STAR,
    Serving,
    add_server,
    beat,
    metrics,
    run,
    settle,
    worker,
)
from tests.controller.shared_serving import SHARED_SLOTS, create, join, start

AGGREGATOR = {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753}


def test_a_job_has_a_switch_and_servers(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS, multicast=0xEFC00000) as (client, _, _):
            job = await create(client)
            known: dict[str, Any] = {
                "aggregation": "shared",
                "aggregator": AGGREGATOR,
                "results": {"ip": "239.192.0.1", "udp_port": 18753},
                "tree": [
                    {
                        "switch": "s1",
                        "aggregator_ip": "10.0.0.253",
                        "first_slot_version": 0,
                        "slot_versions": 0,
                        "ranks": [0, 1],
                        "below": [],
                        "above": [],
                    }
                ],
            }
            nothing = {"servers": [], "members": [], "serving": [], "state": "joining"}
            assert job | known | nothing == job
            registered = await join(client, 1)
            place = {"rank": 1, "member": 1, "switch": "s1", "port": 2}
            assert registered | known | place == registered
            assert registered["servers"] == [
                {"name": "rank 0", "ip": "10.0.0.1", "udp_port": 5000, "rank": 0},
                {"name": "rank 1", "ip": "10.0.0.2", "udp_port": 5000, "rank": 1},
            ]
            assert registered["members"] == [
                {"rank": 0, "ip": "10.0.0.1", "udp_port": 4000},
                {"rank": 1, "ip": "10.0.0.2", "udp_port": 4000},
            ]
            await settle(lambda: len(memory_switch.in_table(ADMISSION)) == 2)
            answer = (await client.post("/jobs/1/workers/1/serving")).json()
            assert (answer["state"], answer["serving"]) == ("joining", [1])
            await client.post("/jobs/1/workers/0/serving")
            answer = (await client.get("/jobs/1", params={"wait": "running"})).json()
            assert (answer["state"], answer["serving"]) == ("running", [0, 1])

    run(body)


def test_receivers_and_servers_are_in_before_the_first_admission_and_out_after_the_last(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            memory_switch.calls.clear()
            number = await start(client)
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1])

    run(body)
    order = [(verb, getattr(entity, "table", "group")) for verb, entity in memory_switch.calls]
    inserted = [RECEIVER, RECEIVER, SERVER, SERVER, SHARING, DISPLACEMENT, DISPLACEMENT]
    inserted += ["group", PARENT, PARENT, ADMISSION, ADMISSION]
    removed = [PARENT, PARENT, ADMISSION, ADMISSION, "group", RECEIVER, RECEIVER, SERVER, SERVER, SHARING]
    removed += [DISPLACEMENT, DISPLACEMENT]
    assert order == [("insert", name) for name in inserted] + [("remove", name) for name in removed]


def test_the_entries_have_the_jobs_priority_and_the_shared_slots(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await start(client, priority=200)
            (entry,) = memory_switch.in_table(SHARING)
            params = dict(entry.params)
            assert (params["base"], params["mask"], params["job_priority"]) == (48, 15, 200)

    run(body)


def test_results_can_be_sent_to_each_worker(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS, multicast=0xEFC00000) as (client, _, _):
            number = await start(client)
            job = (await client.post(f"/jobs/{number}/unicast")).json()
            assert (job["results"], job["state"]) == (None, "running")
            await settle(lambda: memory_switch.replicas(2) == ((1, 1), (2, 2)))
            assert isinstance(memory_switch.calls[-1][1], MulticastGroup)

    run(body)


def test_what_the_switch_admits_is_counted_by_rank(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start(client)
            memory_switch.admitted = {(number, 0): Count(5, 500), (number, 1): Count(6, 600)}
            expected = {"0": {"packets": 5, "bytes": 500}, "1": {"packets": 6, "bytes": 600}}
            assert (await client.get(f"/jobs/{number}")).json()["counters"] == expected

    run(body)


@pytest.mark.usefixtures("patient")
def test_a_server_learns_of_the_switch_in_front_of_it(memory_switch: MemorySwitch) -> None:
    host = Host("big", 0x0A000101, 0x02000000AA01, Place("s1", 4))
    serving = Serving({"s1": memory_switch}, Topology(STAR.switches, hosts=(*STAR.hosts, host)))

    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _), asyncio.timeout(10):
            instance = await add_server(client)
            job = await create(client, servers="registered")
            parked = asyncio.create_task(beat(client, instance))
            for rank in range(2):
                registered = (await client.post("/jobs/1/workers", json=worker(rank))).json()
            assert registered["servers"] == [
                {"name": "big", "ip": "10.0.1.1", "udp_port": 18754, "rank": None}
            ]
            (order,) = (await parked).json()["jobs"]
            assert order == {
                "id": 1,
                "epoch": 100,
                "slots": 4,
                "words": 4,
                "index": 0,
                "servers": 1,
                "workers": registered["members"],
                "relay": {"ip": "10.0.0.253", "udp_port": 18753},
            }
            parked = asyncio.create_task(beat(client, instance, job))
            waiting = await client.get("/jobs/1", params={"wait": "running"})
            assert (waiting.json()["state"], waiting.json()["serving"]) == ("running", [0])
            await client.delete("/jobs/1")
            assert (await parked).json() == {"jobs": []}

    run(body)


@pytest.mark.parametrize(
    ("new", "status", "detail"),
    [
        ({"servers": "registered"}, 503, "no aggregation server has registered: start inagg-server, or use"),
        ({"workers": 65}, 422, "workers is 65; a job on shared slots has 1 to 64"),
        ({"slots": 3}, 422, "slots is 3; it must be a power of two"),
        ({"hosts": ["10.0.0.1"]}, 422, "hosts has 1 addresses for 2 workers"),
        ({"priority": -1}, 422, "body.priority"),
        ({"priority": 256}, 422, "body.priority"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    serving: Serving, new: dict[str, object], status: int, detail: str
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            document = {"workers": 2, "slots": 4, "aggregation": "shared"} | new
            answer = await client.post("/jobs", json=document)
            assert (answer.status_code, detail in answer.json()["detail"]) == (status, True), answer.text
            assert (await client.get("/jobs")).json() == {"jobs": []}

    run(body)


def test_a_server_whose_host_the_switch_does_not_know_is_no_use(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await add_server(client)
            document = {"workers": 2, "slots": 4, "aggregation": "shared", "servers": "registered"}
            answer = await client.post("/jobs", json=document)
            assert answer.status_code == 503
            assert "no switch of the job has the aggregation servers big: name" in answer.json()["detail"]

    run(body)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"mac": None}, "mac is missing"),
        ({"server_udp_port": None}, "server_udp_port is missing: rank 0 of job 1 runs one of its servers"),
        ({"server_udp_port": 4000}, "server_udp_port and udp_port are both 4000"),
        ({"server_udp_port": 18753}, "server_udp_port 18753 is reserved for the aggregator"),
        ({"port": 7}, "port is 7, but"),
        ({"mac": "02:49:41:00:00:01"}, "mac is the aggregator's own"),
        # 8 bytes more than to a switch, for the set of workers.
        ({"mtu": 1079}, "mtu is 1079, but a DATA packet of this job needs 1080 bytes"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(
    serving: Serving, changes: dict[str, object], detail: str
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, service, _):
            await create(client)
            document = worker(0, server_udp_port=5000) | {"mtu": 1080}
            answer = await client.post("/jobs/1/workers", json=document | changes)
            assert (answer.status_code, detail in answer.json()["detail"]) == (422, True), answer.text
            assert service.jobs.job(1).members == {}
            assert (await client.post("/jobs/1/workers", json=document)).status_code == 200

    run(body)


def test_a_lost_switch_fails_the_job(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start(client)
            memory_switch.restart()
            job = (await client.get(f"/jobs/{number}")).json()
            while job["state"] == "running":
                await asyncio.sleep(0.01)
                job = (await client.get(f"/jobs/{number}")).json()
            assert job["reason"] == "switch s1 was lost: the sums in its slots are gone"

    run(body)


def test_free_slot_versions_are_those_that_can_be_leased(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await start(client)
            health = (await client.get("/health")).json()
            assert (health["slot_versions"], health["free_slot_versions"]) == (48, 48)

    run(body)


def test_metrics_count_shared_slots_and_jobs(serving: Serving) -> None:
    async def body() -> dict[tuple[str, ...], float]:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await start(client)
            return await metrics(client)

    found = run(body)
    assert found["inagg_shared_slots", "s1"] == 16
    assert found["inagg_pool_slot_versions", "free", "s1"] == 48
    assert found["inagg_jobs", "running", "shared"] == 1


# aggregation = auto


def test_auto_takes_shared_slots_before_servers_alone(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS, max_shared_jobs=6) as (client, service, _):
            found = [(await create(client, aggregation="auto", priority=3))["aggregation"] for _ in range(14)]
            assert found == ["leased"] * 6 + ["shared"] * 6 + ["server"] * 2
            assert {
                job.placement.priority
                for job in service.jobs.jobs.values()
                if job.placement.aggregation == "shared"
            } == {3}

    run(body)


def test_a_job_says_its_priority(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            job = await create(client, aggregation="shared", priority=3)
            assert (await client.get(f"/jobs/{job['id']}")).json()["priority"] == job["priority"] == 3

    run(body)


def test_auto_that_finds_nothing_says_why_of_all_three(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            asked = {"workers": 2, "slots": 4, "aggregation": "auto", "servers": "registered"}
            while (answer := await client.post("/jobs", json=asked)).is_success:
                pass
            first, second, third = answer.json()["detail"].split("; on ")
            assert (answer.status_code, "the slot pool of switch s1 is full" in first) == (503, True)
            assert second == (
                "shared slots: the switch has no shared slots: start the controller with --shared-slots, or with a "
                "smaller --pool"
            )
            assert third.startswith("servers: no aggregation server has registered")

    run(body)
