# SPDX-License-Identifier: Apache-2.0
"""The HTTP API for jobs on shared slots: requests, answers and refusals, the switch's entries, and metrics."""

import asyncio
from typing import Any

import pytest

from inagg_controller.fabric.topology import Host, Place, Topology
from inagg_controller.switch.entries import (
    ADMISSION,
    DISPLACEMENT,
    HOME,
    PARENT,
    RECEIVER,
    SERVER,
    SHARING,
)
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import (
    SHARED_SLOTS,
    STAR,
    Serving,
    add_server,
    beat,
    create_job,
    metrics,
    register_ranks,
    run,
    settle,
    start_job,
    worker,
)

AGGREGATOR = {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753}


def test_a_job_has_a_switch_and_servers(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS, multicast=0xEFC00000) as (client, _, _):
            job = await create_job(client, aggregation="shared")
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
                        "threads": 1,
                    }
                ],
            }
            nothing = {"servers": [], "members": [], "serving": [], "state": "joining"}
            assert job | known | nothing == job
            registered = await register_ranks(client, 1)
            place = {"rank": 1, "member": 1, "switch": "s1", "port": 2}
            assert registered | known | place == registered
            assert registered["servers"] == [
                {"name": "rank 0", "ip": "10.0.0.1", "udp_port": 5000, "rank": 0},
                {"name": "rank 1", "ip": "10.0.0.2", "udp_port": 5000, "rank": 1},
            ]
            assert registered["members"] == [
                {"rank": 0, "ip": "10.0.0.1", "udp_port": 4000, "rack": ""},
                {"rank": 1, "ip": "10.0.0.2", "udp_port": 4000, "rack": ""},
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
            number = await start_job(client, aggregation="shared")
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1] and not memory_switch.in_table(DISPLACEMENT))

    run(body)
    order = [(verb, getattr(entity, "table", "group")) for verb, entity in memory_switch.calls]
    inserted = [RECEIVER, RECEIVER, SERVER, SERVER, SHARING, HOME, HOME, DISPLACEMENT, DISPLACEMENT]
    inserted += ["group", PARENT, PARENT, ADMISSION, ADMISSION]
    removed = [PARENT, PARENT, ADMISSION, ADMISSION, "group", RECEIVER, RECEIVER, SERVER, SERVER, SHARING]
    removed += [HOME, HOME, DISPLACEMENT, DISPLACEMENT]
    assert order == [("insert", name) for name in inserted] + [("remove", name) for name in removed]


def test_the_entries_have_the_jobs_priority_and_the_shared_slots(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await start_job(client, aggregation="shared", priority=200)
            (entry,) = memory_switch.in_table(SHARING)
            params = dict(entry.params)
            assert (params["base"], params["mask"], params["job_priority"]) == (48, 15, 200)

    run(body)


@pytest.mark.usefixtures("patient")
def test_a_server_learns_of_the_switch_in_front_of_it(memory_switch: MemorySwitch) -> None:
    host = Host("big", 0x0A000101, 0x02000000AA01, Place("s1", 4))
    serving = Serving({"s1": memory_switch}, Topology(STAR.switches, hosts=(*STAR.hosts, host)))

    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _), asyncio.timeout(10):
            instance = await add_server(client)
            job = await create_job(client, aggregation="shared", servers="registered")
            parked = asyncio.create_task(beat(client, instance))
            for rank in range(2):
                registered = (await client.post("/jobs/1/workers", json=worker(rank))).json()
            assert registered["servers"] == [
                {"name": "big", "ip": "10.0.1.1", "udp_port": 18754, "rank": None}
            ]
            (order,) = (await parked).json()["jobs"]
            assert order == {
                "id": 1,
                "epoch": job["epoch"],
                "first_chunk": job["first_chunk"],
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


def test_a_server_whose_host_the_switch_does_not_know_is_no_use(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await add_server(client)
            document = {"workers": 2, "slots": 4, "aggregation": "shared", "servers": "registered"}
            answer = await client.post("/jobs", json=document)
            assert answer.status_code == 503
            assert "no switch of the job has the aggregation servers big: name" in answer.json()["detail"]

    run(body)


def test_free_slot_versions_are_those_that_can_be_leased(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await start_job(client, aggregation="shared")
            health = (await client.get("/health")).json()
            assert (health["slot_versions"], health["free_slot_versions"]) == (48, 48)

    run(body)


def test_metrics_count_shared_slots_and_jobs(serving: Serving) -> None:
    async def body() -> dict[tuple[str, ...], float]:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await start_job(client, aggregation="shared")
            return await metrics(client)

    found = run(body)
    assert found["inagg_shared_slots", "s1"] == 16
    assert found["inagg_pool_slot_versions", "free", "s1"] == 48
    assert found["inagg_jobs", "running", "shared"] == 1


# aggregation = auto


def test_auto_takes_shared_slots_before_servers_alone(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS, max_shared_jobs=6) as (client, service, _):
            found = [
                (await create_job(client, aggregation="auto", priority=3))["aggregation"] for _ in range(14)
            ]
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
            job = await create_job(client, aggregation="shared", priority=3)
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
