# SPDX-License-Identifier: Apache-2.0
"""The HTTP API over a switch in memory: requests about jobs of every kind, answers and refusals.

`test_shared_api` and `test_server_api` have what is particular to jobs on shared slots and on servers.
"""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from inagg_contract.aggregation import AGGREGATIONS, AUTO, Aggregation
from inagg_contract.documents import NewJob
from inagg_controller.state_file import StateFile
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import ADMISSION, RECEIVER
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import (
    ON_SWITCHES,
    SHARED_SLOTS,
    WITH_SERVERS,
    Serving,
    create_job,
    metrics,
    run,
    start_job,
    worker,
)

on_switches = pytest.mark.parametrize("aggregation", ON_SWITCHES)
with_servers = pytest.mark.parametrize("aggregation", WITH_SERVERS)


# Jobs of every kind


def test_a_new_job_is_joining_and_is_listed(serving: Serving, aggregation: Aggregation) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            job = await create_job(client, aggregation=aggregation, name="digits")
            assert job.pop("secret")
            assert (job["id"], job["name"], job["aggregation"]) == (1, "digits", aggregation)
            assert (job["state"], job["slots"], job["words"]) == ("joining", 4, 4)
            assert (job["registered"], job["policy"]["give_up_s"]) == ([], 120)
            assert (await client.get("/jobs")).json() == {"jobs": [job]}

    run(body)


@pytest.mark.parametrize(("aggregation", "granted"), [("leased", 16), ("shared", 1024), ("server", 1024)])
def test_a_job_says_how_many_slots_it_was_granted(
    serving: Serving, aggregation: Aggregation, granted: int
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            job = await create_job(client, aggregation=aggregation, slots=1024)
            assert job["slots"] == (await client.get("/jobs/1")).json()["slots"] == granted

    run(body)


def test_a_creation_that_is_repeated_with_its_key_finds_the_job(serving: Serving, tmp_path: Path) -> None:
    body_of_two = {"workers": 2, "slots": 8}

    async def create(client: httpx.AsyncClient, key: str, **more: object) -> httpx.Response:
        return await client.post("/jobs", json=body_of_two | more, headers={"Idempotency-Key": key})

    async def first() -> Any:
        with closing(StateFile(tmp_path / "state")) as state:
            async with serving(state=state) as (client, _, _):
                made = (await create(client, "one")).json()
                assert (await create(client, "one")).json() == made
                assert (await create(client, "two")).json()["id"] != made["id"]
                return made

    async def after_a_restart(made: Any) -> None:
        with closing(StateFile(tmp_path / "state")) as state:
            async with serving(state=state) as (client, _, _):
                found = (await create(client, "one")).json()
                assert (found["id"], found["secret"]) == (made["id"], made["secret"])
                refused = await create(client, "one", workers=3)
                assert refused.status_code == 422
                assert "job 1 was created with this key, for 2 workers" in refused.json()["detail"]
                await client.delete("/jobs/1")
                assert (await create(client, "one")).json()["id"] != 1
                for wrong in ("k" * 65, "two words"):
                    assert (await create(client, wrong)).status_code == 422

    made = run(first)
    run(lambda: after_a_restart(made))


def test_a_client_that_gives_up_leaves_the_job_to_its_repeated_request(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            key = {"Idempotency-Key": "one"}
            new = NewJob(workers=2, slots=8)
            job = await service.create(new, "10.0.0.1", key="one")
            again = await client.post("/jobs", json={"workers": 2, "slots": 8}, headers=key)
            assert again.json()["id"] == job.id
            service.give_up(job)
            assert job.state == "joining"
            service.give_up(job)
            assert job.state == "failed"

    run(body)


def test_a_job_is_counted_by_its_state_and_kind(serving: Serving, aggregation: Aggregation) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            for state in ("joining", "failed"):
                found = await metrics(client)
                assert found["inagg_jobs", *sorted((state, aggregation))] == 0
            await create_job(client, aggregation=aggregation)
            assert (await metrics(client))["inagg_jobs", *sorted(("joining", aggregation))] == 1
            await client.delete("/jobs/1")
            assert (await metrics(client))["inagg_jobs", *sorted(("failed", aggregation))] == 1
            await start_job(client, aggregation=aggregation)
            found = await metrics(client)
            assert [
                found["inagg_jobs", *sorted((state, aggregation))]
                for state in ("joining", "running", "finished", "failed")
            ] == [0, 1, 0, 1]

    run(body)


@on_switches
def test_a_job_on_a_switch_has_entries_there_and_counts_of_what_they_admit(
    serving: Serving, memory_switch: MemorySwitch, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation=aggregation)
            assert len(memory_switch.in_table(ADMISSION)) == len(memory_switch.in_table(RECEIVER)) == 2
            assert memory_switch.groups == [1, 2]
            memory_switch.admitted = {
                (number, 0): Count(5, 500),
                (number, 1): Count(6, 600),
                (99, 0): Count(1, 1),
            }
            expected = {"0": {"packets": 5, "bytes": 500}, "1": {"packets": 6, "bytes": 600}}
            assert (await client.get(f"/jobs/{number}")).json()["counters"] == expected

    run(body)


@pytest.mark.parametrize(
    "document",
    [
        {"workers": 0, "slots": 4},
        {"workers": 65, "slots": 4},
        {"workers": 2, "slots": 3},
        {"workers": 2, "slots": 1},
        {"workers": 2, "slots": 0},
        {"workers": 2, "slots": -4},
        {"workers": 2.0, "slots": 4},
        {"workers": 2},
        {"workers": 2, "slots": 4, "servers": "none"},
        {"workers": 2, "slots": 4, "priority": -1},
        {"workers": 2, "slots": 4, "priority": 256},
    ],
)
def test_a_bad_job_is_refused(
    serving: Serving, aggregation: Aggregation, document: dict[str, object]
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            answer = await client.post("/jobs", json=document | {"aggregation": aggregation})
            assert answer.status_code == 422, answer.text
            assert (await client.post("/jobs", json=[document])).status_code == 422
            assert (await client.get("/jobs")).json() == {"jobs": []}

    run(body)


@pytest.mark.parametrize(
    ("aggregation", "detail"),
    [
        ("leased", "switch s1 would sum for 65 workers and switches; it can for 64"),
        ("shared", "workers is 65; a job on shared slots has 1 to 64"),
        ("server", "workers is 65; a job on servers has 1 to 64"),
    ],
)
def test_a_job_with_too_many_workers_learns_how_many_there_may_be(
    serving: Serving, aggregation: Aggregation, detail: str
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            document = {"workers": 65, "slots": 4, "aggregation": aggregation}
            answer = await client.post("/jobs", json=document)
            assert (answer.status_code, answer.json()["detail"]) == (422, detail)

    run(body)


@pytest.mark.parametrize("aggregation", [*AGGREGATIONS, AUTO])
def test_a_job_with_more_workers_than_hosts_is_refused(serving: Serving, aggregation: str) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            document = {"workers": 2, "slots": 4, "aggregation": aggregation, "hosts": ["10.0.0.1"]}
            answer = await client.post("/jobs", json=document)
            assert (answer.status_code, answer.json()["detail"]) == (
                422,
                "hosts has 1 addresses for 2 workers: give one address for each rank",
            )

    run(body)


@with_servers
def test_without_a_registered_server_a_job_for_one_is_refused(
    serving: Serving, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            document = {"workers": 2, "slots": 4, "aggregation": aggregation, "servers": "registered"}
            answer = await client.post("/jobs", json=document)
            assert (answer.status_code, answer.json()["detail"]) == (
                503,
                "no aggregation server has registered: start inagg-server, or use servers = colocated",
            )
            assert (await client.get("/jobs")).json() == {"jobs": []}

    run(body)


# Registrations


@pytest.mark.parametrize(
    ("aggregation", "switch", "port"), [("leased", "s1", 2), ("shared", "s1", 2), ("server", None, None)]
)
def test_a_registration_tells_the_workers_place(
    serving: Serving, aggregation: Aggregation, switch: str | None, port: int | None
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await create_job(client, aggregation=aggregation)
            answer = (await client.post("/jobs/1/workers", json=worker(1))).json()
            place = {"rank": 1, "member": 1, "switch": switch, "port": port, "registered": [1]}
            assert answer | place == answer

    run(body)


def test_registering_the_same_worker_again_changes_nothing(
    serving: Serving, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await create_job(client, aggregation=aggregation)
            first = await client.post("/jobs/1/workers", json=worker(0))
            again = await client.post("/jobs/1/workers", json=worker(0))
            assert (first.status_code, first.json()) == (200, again.json())

    run(body)


@pytest.mark.parametrize(
    ("aggregation", "whose", "needed"),
    [
        ("leased", "switch", 1072),
        ("shared", "job", 1080),
        ("server", "job", 1072),
    ],  # 1080: with a set of workers
)
def test_a_path_must_take_a_data_packet(
    serving: Serving, aggregation: Aggregation, whose: str, needed: int
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            await create_job(client, aggregation=aggregation)
            answer = await client.post("/jobs/1/workers", json=worker(1, mtu=needed - 1))
            assert (answer.status_code, answer.json()["detail"]) == (
                422,
                f"mtu is {needed - 1}, but a DATA packet of this {whose} needs {needed} bytes (WORDS = 4): give every "
                "link on the way a larger MTU, or run the P4 program compiled with fewer WORDS",
            )
            for mtu in (needed, 9000, None):
                answer = await client.post("/jobs/1/workers", json=worker(1, mtu=mtu))
                assert (answer.status_code, answer.json()["registered"]) == (200, [1])

    run(body)


async def refuse(
    serving: Serving, aggregation: Aggregation, changes: dict[str, object], status: int, detail: str
) -> None:
    """A registration that is as that of rank 0 but for `changes` is refused and changes nothing."""
    async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
        await create_job(client, aggregation=aggregation)
        await client.post("/jobs/1/workers", json=worker(0))
        before = (await client.get("/jobs")).json()
        answer = await client.post("/jobs/1/workers", json=worker(0) | changes)
        problem = answer.json()
        assert (answer.status_code, problem.get("status")) == (status, status), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert detail in problem["detail"]
        assert problem["type"].startswith("urn:inagg:")
        assert problem["title"]
        assert (await client.get("/jobs")).json() == before


@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        ({"ip": "10.0.0.9"}, 409, "rank 0 of job 1 is already registered by a worker at another address"),
        ({"rank": 1, "ip": "10.0.0.1"}, 409, "rank 0 of job 1 already has this address and UDP port"),
        ({"rank": 2}, 422, "rank is 2; the ranks of job 1 are 0 to 1"),
        ({"rank": -1}, 422, "rank: Input should be greater than or equal to 0"),
        ({"rank": "1"}, 422, "body.rank: Input should be a valid integer"),
        ({"rank": True}, 422, "body.rank: Input should be a valid integer"),
        ({"ip": "10.0.0"}, 422, "body.ip"),
        ({"ip": "224.0.0.1"}, 422, "224.0.0.1 is not a host's address"),
        ({"ip": "0.0.0.0"}, 422, "0.0.0.0 is not a host's address"),
        ({"mac": "02-00-00-00-00-01"}, 422, "is not a MAC address such as"),
        ({"mac": "01:00:5e:00:00:01"}, 422, "01:00:5e:00:00:01 is not a station's address"),
        ({"mac": "00:00:00:00:00:00"}, 422, "is not a station's address"),
        ({"udp_port": 0}, 422, "body.udp_port"),
        ({"udp_port": 18753}, 422, "udp_port 18753 is reserved for the aggregator"),
        ({"server_udp_port": 0}, 422, "body.server_udp_port"),
        ({"server_udp_port": 18753}, 422, "server_udp_port 18753 is reserved for the aggregator"),
        ({"ip": "10.0.0.253"}, 422, "ip is the aggregator's own"),
        ({"udp_port": 65536}, 422, "body.udp_port"),
        ({"mtu": 67}, 422, "body.mtu"),
        ({"mtu": "1500"}, 422, "body.mtu"),
        ({"colour": "red"}, 422, "body.colour: Extra inputs are not permitted"),
    ],
)
def test_a_bad_registration_is_refused_and_changes_nothing(
    serving: Serving, aggregation: Aggregation, changes: dict[str, object], status: int, detail: str
) -> None:
    run(lambda: refuse(serving, aggregation, changes, status, detail))


@on_switches
@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"ip": "10.0.0.9", "port": 7}, "port is 7; the switch's ports are [1, 2, 3, 4, 255]"),
        ({"port": 7}, "but the controller's --host options or topology file name 1 for this ip"),
        ({"ip": "10.0.0.9", "port": None}, "port is missing"),
        ({"mac": None}, "mac is missing: the switch needs it"),
        ({"mac": "02:49:41:00:00:01"}, "mac is the aggregator's own"),
        ({"ip": "10.0.0.3", "port": 3}, "mac is not the one that the controller's --host"),
        ({"mac": "02:00:00:00:00:bb"}, "mac is the one that the controller's --host"),
    ],
)
def test_a_worker_that_the_switch_could_not_reach_is_refused(
    serving: Serving, aggregation: Aggregation, changes: dict[str, object], detail: str
) -> None:
    run(lambda: refuse(serving, aggregation, changes, 422, detail))


@with_servers
@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        (
            {"server_udp_port": None},
            422,
            "server_udp_port is missing: rank 0 of job 1 runs one of its servers",
        ),
        ({"server_udp_port": 4000}, 422, "server_udp_port and udp_port are both 4000"),
        (
            {"rank": 1, "udp_port": 5000, "server_udp_port": 5001},
            409,
            "the server of rank 0 of job 1 already",
        ),
        ({"rank": 1, "udp_port": 4001}, 409, "the server of rank 0 of job 1 already has this address"),
    ],
)
def test_a_worker_whose_server_could_not_be_reached_is_refused(
    serving: Serving, aggregation: Aggregation, changes: dict[str, object], status: int, detail: str
) -> None:
    run(lambda: refuse(serving, aggregation, changes, status, detail))


def test_a_job_that_runs_or_has_ended_takes_no_new_worker(serving: Serving, aggregation: Aggregation) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation=aggregation)
            stranger = worker(0, ip="10.0.0.7")
            assert (await client.post(f"/jobs/{number}/workers", json=stranger)).status_code == 409
            await client.delete(f"/jobs/{number}")
            answer = await client.post(f"/jobs/{number}/workers", json=worker(0))
            assert (answer.status_code, answer.json()["detail"]) == (
                409,
                "job 1 has failed (ended on request)",
            )

    run(body)


# Waiting


def test_a_wait_for_the_registration_ends_with_it_and_one_for_the_run_with_that(
    serving: Serving, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _), asyncio.timeout(10):
            await create_job(client, aggregation=aggregation)
            waits = {
                wait: asyncio.create_task(client.get("/jobs/1", params={"wait": wait, "timeout_s": 60}))
                for wait in ("registered", "running")
            }
            await client.post("/jobs/1/workers", json=worker(0))
            await asyncio.sleep(0.01)
            assert not any(wait.done() for wait in waits.values())
            servers = (await client.post("/jobs/1/workers", json=worker(1))).json()["servers"]
            registered = (await waits["registered"]).json()
            assert (registered["registered"], registered["servers"]) == ([0, 1], servers)
            for server in servers:
                assert not waits["running"].done()
                await client.post(f"/jobs/1/workers/{server['rank']}/serving")
            assert (await waits["running"]).json()["state"] == "running"
            late = await client.get("/jobs/1", params={"wait": "registered", "timeout_s": 60})
            assert late.json()["state"] == "running"

    run(body)


@pytest.mark.parametrize("wait", ["registered", "running"])
def test_a_wait_ends_with_the_job_and_with_its_time(
    serving: Serving, aggregation: Aggregation, wait: str
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _), asyncio.timeout(10):
            await create_job(client, aggregation=aggregation)
            answer = await client.get("/jobs/1", params={"wait": wait, "timeout_s": 0.01})
            assert (answer.json()["state"], answer.json()["registered"]) == ("joining", [])
            waiting = asyncio.create_task(client.get("/jobs/1", params={"wait": wait, "timeout_s": 60}))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await client.delete("/jobs/1")
            assert (await waiting).json()["state"] == "failed"

    run(body)


# All else


def test_health_tells_the_programs_properties(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            assert (await client.get("/health")).json() == {
                "switch": "connected",
                "switch_error": None,
                "words": 4,
                "slot_versions": 64,
                "free_slot_versions": 64,
                "shared_slots": 0,
                "aggregator": {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753},
                "jobs": 0,
                "switches": [
                    {
                        "name": "s1",
                        "state": "connected",
                        "error": None,
                        "slot_versions": 64,
                        "free_slot_versions": 64,
                        "aggregator": {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753},
                        "refusals": [],
                    }
                ],
                "links": [],
                "servers": [],
            }

    run(body)


def test_unknown_jobs_and_paths_are_not_found_and_wrong_methods_refused(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            for method, path, status in [
                ("GET", "/jobs/5", 404),
                ("DELETE", "/jobs/5", 404),
                ("POST", "/jobs/5/unicast", 404),
                ("POST", "/jobs/5/workers/0/heartbeat", 404),
                ("GET", "/nothing", 404),
                ("PUT", "/jobs", 405),
            ]:
                answer = await client.request(method, path, json=None)
                assert (answer.status_code, answer.json()["status"]) == (status, status)

    run(body)


def test_a_wrong_method_is_answered_with_all_that_there_are(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            for method, path, allowed in [
                ("PUT", "/jobs", "GET, POST"),
                ("PUT", "/jobs/5", "DELETE, GET"),
                ("GET", "/jobs/5/unicast", "POST"),
                ("POST", "/loss", "DELETE, GET, PUT"),
                ("PATCH", "/jobs/5/workers/0", "DELETE"),
                ("POST", "/metrics", "GET"),
            ]:
                answer = await client.request(method, path)
                assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path
            assert (await client.post("/docs")).status_code == 405

    run(body)
