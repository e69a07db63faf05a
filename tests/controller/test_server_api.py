# SPDX-License-Identifier: Apache-2.0
"""The HTTP API for jobs on servers: requests, answers and refusals, with and without a switch."""

import asyncio
from functools import partial

import pytest

from inagg_controller import service as service_module
from inagg_controller.fabric.topology import Topology
from tests.controller.server_tables import FOUR_SLOTS
from tests.controller.serving import (
    SERVER,
    Serving,
    add_server,
    beat,
    create_job,
    metrics,
    register_ranks,
    run,
    worker,
)


@pytest.fixture
def switchless() -> Serving:
    return Serving({}, Topology(()))


def served(rank: int, **changes: object) -> dict[str, object]:
    """The document that registers a rank of a job on servers."""
    return {"rank": rank, "ip": f"10.0.0.{rank + 1}", "udp_port": 4000, "server_udp_port": 5000, **changes}


create = partial(create_job, aggregation="server")
join = partial(register_ranks, document=served)


def test_a_job_with_colocated_servers_runs_when_all_serve(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            job = await create(client, hosts=["10.0.0.1", "10.0.0.2"])
            known: dict[str, object] = {
                "aggregation": "server",
                "aggregator": None,
                "results": None,
                "tree": [],
                "counters": None,
            }
            nothing = {"servers": [], "members": [], "serving": [], "state": "joining"}
            assert job | known | nothing == job
            first = (await client.post("/jobs/1/workers", json=served(0, rack="r1"))).json()
            place = {"rank": 0, "member": 0, "switch": None, "port": None}
            assert first | known | nothing | place | {"registered": [0]} == first
            second = (await client.post("/jobs/1/workers", json=served(1))).json()
            assert second["servers"] == [
                {"name": "rank 0", "ip": "10.0.0.1", "udp_port": 5000, "rank": 0},
                {"name": "rank 1", "ip": "10.0.0.2", "udp_port": 5000, "rank": 1},
            ]
            assert second["members"] == [
                {"rank": 0, "ip": "10.0.0.1", "udp_port": 4000, "rack": "r1"},
                {"rank": 1, "ip": "10.0.0.2", "udp_port": 4000, "rack": ""},
            ]
            assert (second["rank"], second["member"]) == (1, 1)
            answer = await client.post("/jobs/1/workers/1/serving")
            assert (answer.status_code, answer.json()["serving"], answer.json()["state"]) == (
                200,
                [1],
                "joining",
            )
            answer = await client.post("/jobs/1/workers/0/serving")
            assert (answer.json()["serving"], answer.json()["state"]) == ([0, 1], "running")
            assert (await client.get("/jobs/1")).json()["counters"] is None

    run(body)


@pytest.mark.usefixtures("patient")
def test_a_server_gets_its_orders_as_soon_as_they_differ_from_what_it_serves(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _), asyncio.timeout(10):
            answer = await client.post("/servers", json=SERVER)
            assert answer.json() == {
                "instance": 1,
                "heartbeat_interval_s": 1.0,
                "heartbeat_timeout_s": 5.0,
            }
            job = await create(client, servers="registered")
            parked = asyncio.create_task(beat(client, 1))
            await client.post("/jobs/1/workers", json=served(0))
            await asyncio.sleep(0.01)
            assert not parked.done()
            registered = (await client.post("/jobs/1/workers", json=served(1))).json()
            assert registered["servers"] == [
                {"name": "big", "ip": "10.0.1.1", "udp_port": 18754, "rank": None}
            ]
            orders = {
                "jobs": [
                    {
                        "id": 1,
                        "epoch": job["epoch"],
                        "first_chunk": job["first_chunk"],
                        "slots": 4,
                        "words": 4,
                        "index": 0,
                        "servers": 1,
                        "workers": registered["members"],
                        "relay": None,
                    }
                ]
            }
            assert (await parked).json() == orders
            assert (await beat(client, 1)).json() == orders  # the answer was lost
            parked = asyncio.create_task(beat(client, 1, job))
            waiting = await client.get("/jobs/1", params={"wait": "running"})
            assert (waiting.json()["state"], waiting.json()["serving"]) == ("running", [0])
            assert not parked.done()
            await client.delete("/jobs/1")
            assert (await parked).json() == {"jobs": []}

    run(body)


def test_a_heartbeat_with_nothing_new_is_answered_after_the_interval(
    switchless: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "INTERVAL_S", 0.05)

    async def body() -> None:
        async with switchless() as (client, _, _), asyncio.timeout(10):
            instance = await add_server(client)
            job = await create(client, servers="registered")
            await join(client, 1)
            loop = asyncio.get_running_loop()
            start = loop.time()
            answer = await beat(client, instance, job)
            assert [each["id"] for each in answer.json()["jobs"]] == [1]
            assert loop.time() - start >= 0.05

    run(body)


@pytest.mark.usefixtures("patient")
def test_each_server_of_a_job_has_its_index(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _), asyncio.timeout(10):
            for number in (1, 2):
                await add_server(client, name=f"s{number}", udp_port=18754 + number)
            await create(client, servers="registered")
            await join(client, 1)
            for number in (1, 2):
                (order,) = (await beat(client, number, name=f"s{number}")).json()["jobs"]
                assert (order["index"], order["servers"]) == (number - 1, 2)

    run(body)


@pytest.mark.usefixtures("patient")
def test_a_job_that_a_server_refuses_fails_for_its_workers(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _), asyncio.timeout(10):
            instance = await add_server(client)
            job = await create(client, servers="registered")
            await join(client, 1)
            refused = [{"id": job["id"], "epoch": job["epoch"], "reason": "no memory to lock"}]
            parked = asyncio.create_task(beat(client, instance, refused=refused))
            answer = await client.get("/jobs/1", params={"wait": "running", "timeout_s": 60})
            assert (answer.json()["state"], answer.json()["reason"]) == (
                "failed",
                "server big: no memory to lock",
            )
            await asyncio.sleep(0.01)
            assert not parked.done()  # a refused job is no difference
            parked.cancel()

    run(body)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["restart", "stop", "loss"])
def test_a_waiting_heartbeat_of_a_server_that_is_gone_is_answered_with_404(
    switchless: Serving, way: str
) -> None:
    async def body() -> None:
        async with switchless() as (client, service, clock), asyncio.timeout(10):
            instance = await add_server(client)
            job = await create(client, servers="registered")
            await join(client, 1)
            parked = asyncio.create_task(beat(client, instance, job))
            await client.get("/jobs/1", params={"wait": "running"})
            if way == "restart":
                assert await add_server(client) == instance + 1
                reason = "server big was started again: the sums in its memory are gone"
            elif way == "stop":
                answer = await client.delete("/servers/big", params={"instance": instance})
                assert (answer.status_code, answer.json()["servers"]) == (200, [])
                reason = "server big was stopped"
            else:
                while service.jobs.servers.by_name:
                    clock.now += 0.1
                    await asyncio.sleep(0.001)
                    service.jobs.tick(clock.now)
                reason = "server big at 10.0.1.1:18754 was lost: no heartbeat for 5 s"
            answer = await parked
            assert (answer.status_code, answer.json()["type"]) == (404, "urn:inagg:unknown-server")
            assert (await client.get("/jobs/1")).json()["reason"] == reason

    run(body)


def test_requests_of_unknown_servers_are_refused(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            instance = await add_server(client)
            for answer in (
                await beat(client, instance, name="other"),
                await beat(client, instance + 1),
                await client.delete("/servers/other", params={"instance": instance}),
                await client.delete("/servers/big", params={"instance": instance + 1}),
            ):
                assert (answer.status_code, answer.json()["title"]) == (404, "Unknown server")
                assert "register it again" in answer.json()["detail"]
            assert (await client.delete("/servers/big")).status_code == 422  # without an instance
            assert len((await client.get("/health")).json()["servers"]) == 1

    run(body)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"name": ""}, "body.name"),
        ({"name": "rank 0"}, "body.name"),
        ({"name": "x" * 65}, "body.name"),
        ({"ip": "224.0.0.1"}, "body.ip"),
        ({"udp_port": 18753}, "udp_port 18753 is reserved for the aggregator"),
        ({"memory": -1}, "body.memory"),
        ({"words": 4}, "body.words: Extra inputs are not permitted"),
    ],
)
def test_a_bad_server_is_refused(switchless: Serving, changes: dict[str, object], detail: str) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            answer = await client.post("/servers", json=SERVER | changes)
            assert (answer.status_code, detail in answer.json()["detail"]) == (422, True), answer.text
            assert (await client.get("/health")).json()["servers"] == []

    run(body)


def test_without_a_switch_a_path_that_is_too_narrow_needs_a_larger_mtu_or_fewer_words(
    switchless: Serving,
) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            await create(client)
            answer = await client.post("/jobs/1/workers", json=served(0, mtu=1071))
            assert (answer.status_code, answer.json()["detail"]) == (
                422,
                "mtu is 1071, but a DATA packet of this job needs 1072 bytes (WORDS = 4): give every link on the way a "
                "larger MTU, or start the controller with fewer --words",
            )

    run(body)


def test_mac_and_port_of_a_worker_are_not_used_in_a_job_on_servers(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await create(client)
            answer = await client.post("/jobs/1/workers", json=served(0, mac="02:49:41:00:00:01", port=509))
            assert (answer.status_code, answer.json()["port"]) == (200, None)
            again = await client.post("/jobs/1/workers", json=served(0))
            assert again.json() == answer.json()

    run(body)


def test_with_a_switch_a_server_job_runs_beside_one_on_the_switch(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            job = await create(client)
            answer = await client.post("/jobs/1/workers", json=served(0, ip="10.0.0.253"))
            assert (answer.status_code, answer.json()["detail"]) == (422, "ip is the aggregator's own")
            answer = await client.post("/jobs/1/workers", json=served(0, mtu=1071))
            assert "or run the P4 program compiled with fewer WORDS" in answer.json()["detail"]
            await join(client, job["id"])
            for rank in range(2):
                await client.post(f"/jobs/1/workers/{rank}/serving")
            await client.post("/jobs", json={"workers": 1, "slots": 4})
            await client.post("/jobs/2/workers", json=worker(0))
            await client.get("/jobs/2", params={"wait": "running"})
            jobs = (await client.get("/jobs")).json()["jobs"]
            assert [(each["aggregation"], each["state"]) for each in jobs] == [
                ("server", "running"),
                ("leased", "running"),
            ]
            assert service.jobs.switches.pools["s1"].free == 64 - 8

    run(body)


@pytest.mark.parametrize(
    ("new", "status", "detail"),
    [
        ({"aggregation": "leased"}, 501, "this controller has no switch; aggregation = server needs none"),
        ({"aggregation": "leased", "hosts": ["10.0.0.1", "10.0.0.2"]}, 501, "this controller has no switch"),
        ({"servers": "none"}, 422, "body.servers"),
        ({"aggregation": "switch"}, 422, "body.aggregation"),
    ],
)
def test_a_job_that_cannot_be_is_refused(
    switchless: Serving, new: dict[str, object], status: int, detail: str
) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            document = {"workers": 2, "slots": 4, "aggregation": "server"} | new
            answer = await client.post("/jobs", json=document)
            assert (answer.status_code, detail in answer.json()["detail"]) == (status, True), answer.text
            assert (await client.get("/jobs")).json() == {"jobs": []}

    run(body)


@pytest.mark.usefixtures("patient")
def test_a_new_job_waits_briefly_for_memory_that_becomes_free(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _), asyncio.timeout(10):
            instance = await add_server(client, memory=FOUR_SLOTS)
            job = await create(client, servers="registered")
            await join(client, 1)
            await client.delete("/jobs/1")
            creation = asyncio.create_task(create(client, servers="registered"))
            await asyncio.sleep(0.01)
            assert not creation.done()
            await beat(client, instance, job)
            parked = asyncio.create_task(beat(client, instance))
            assert (await creation)["slots"] == 4
            parked.cancel()

    run(body)


def test_health_tells_of_servers_and_of_no_switch(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            await add_server(client)
            await create(client, servers="registered")
            assert (await client.get("/health")).json() == {
                "switch": "none",
                "switch_error": None,
                "words": 4,
                "slot_versions": 0,
                "free_slot_versions": 0,
                "shared_slots": 0,
                "aggregator": None,
                "jobs": 1,
                "switches": [],
                "links": [],
                "servers": [
                    {
                        "name": "big",
                        "ip": "10.0.1.1",
                        "udp_port": 18754,
                        "memory": 1 << 20,
                        "free_memory": (1 << 20) - FOUR_SLOTS,
                        "jobs": 0,
                        "unknown": 0,
                    }
                ],
            }
            await join(client, 1)
            (server,) = (await client.get("/health")).json()["servers"]
            assert server["jobs"] == 1

    run(body)


def test_datagrams_that_a_server_does_not_know_are_shown(switchless: Serving, patient: None) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            instance = await add_server(client)
            await create(client, servers="registered")
            await join(client, 1)  # so that the heartbeat is answered at once: there is a job to serve
            beat = {"instance": instance, "unknown": 3}
            assert (await client.post("/servers/big/heartbeat", json=beat)).status_code == 200
            (server,) = (await client.get("/health")).json()["servers"]
            assert server["unknown"] == 3
            metrics = (await client.get("/metrics")).text
            assert 'inagg_server_unknown_packets_total{server="big"} 3.0' in metrics

    run(body)


def test_without_a_switch_there_are_no_counters_and_no_loss(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            assert (await client.get("/counters")).json() == {}
            assert (await client.get("/loss")).json() == {"loss": []}
            assert (await client.delete("/loss")).json() == {"loss": []}
            for switch in ({}, {"switch": "s1"}):
                loss = {"port": 1, "direction": "ingress", "probability": 0.5} | switch
                answer = await client.put("/loss", json=loss)
                assert (answer.status_code, answer.json()["detail"]) == (503, "this controller has no switch")

    run(body)


def test_metrics_count_servers_their_memory_and_jobs(switchless: Serving) -> None:
    async def body() -> dict[tuple[str, ...], float]:
        async with switchless() as (client, _, _):
            await add_server(client)
            await create(client, servers="registered")
            await join(client, 1)
            return await metrics(client)

    found = run(body)
    assert found["inagg_servers",] == 1
    assert found["inagg_server_memory_bytes", "big", "leased"] == FOUR_SLOTS
    assert found["inagg_server_memory_bytes", "big", "free"] == (1 << 20) - FOUR_SLOTS
    assert found["inagg_server_jobs", "big"] == 1
    assert found["inagg_jobs", "joining", "server"] == 1
    assert found["inagg_jobs", "joining", "leased"] == 0


def test_a_heartbeat_may_list_thousands_of_jobs(switchless: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "INTERVAL_S", 0.01)

    async def body() -> None:
        async with switchless() as (client, _, _):
            instance = await add_server(client)
            many = [{"id": number, "epoch": 4294967295} for number in range(1, 10001)]
            assert (await beat(client, instance, *many)).json() == {"jobs": []}

    run(body)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/servers", SERVER | {"name": "other"}),
        ("POST", "/servers/big/heartbeat", {"instance": 1}),
        ("DELETE", "/servers/big?instance=1", None),
    ],
)
def test_only_the_operator_may_act_for_servers(
    switchless: Serving, method: str, path: str, body: dict[str, object] | None
) -> None:
    async def test() -> None:
        async with switchless() as (client, _, _):
            await add_server(client)
            secret = (await create(client))["secret"]
            del client.headers["Authorization"]
            for headers, status in (({}, 401), ({"Authorization": f"Bearer {secret}"}, 403)):
                answer = await client.request(method, path, json=body, headers=headers)
                assert (answer.status_code, answer.json()["status"]) == (status, status)
            assert [one["name"] for one in (await client.get("/health")).json()["servers"]] == ["big"]

    run(test)


def test_only_who_has_the_jobs_secret_may_say_that_a_rank_serves_it(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            job, other = await create(client), await create(client)
            await join(client, job["id"])
            del client.headers["Authorization"]
            for secret, status in ((None, 401), (other["secret"], 403), (job["secret"], 200)):
                headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
                answer = await client.post("/jobs/1/workers/0/serving", headers=headers)
                assert answer.status_code == status

    run(body)


@pytest.mark.parametrize(("servers", "rank"), [("colocated", 2), ("registered", 0)])
def test_a_rank_that_serves_nothing_cannot_say_that_it_does(
    switchless: Serving, servers: str, rank: int
) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            await add_server(client)
            await create(client, workers=3, slots=2, servers=servers)
            await join(client, 1, workers=3)
            answer = await client.post(f"/jobs/1/workers/{rank}/serving")
            assert (answer.status_code, answer.json()["detail"]) == (
                409,
                f"rank {rank} of job 1 runs no server of it",
            )

    run(body)


@pytest.mark.usefixtures("patient")
def test_the_controller_ends_at_once_while_a_heartbeat_waits(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, service, _), asyncio.timeout(10):
            instance = await add_server(client)
            parked = asyncio.create_task(beat(client, instance))
            await asyncio.sleep(0.01)
            assert not parked.done()
            service.stop_waiting()
            assert (await parked).json() == {"jobs": []}

    run(body)


@pytest.mark.parametrize("switch_is_there", [True, False])
def test_auto_is_slots_while_there_are_some_and_servers_then(
    serving: Serving, switchless: Serving, switch_is_there: bool
) -> None:
    async def body() -> None:
        async with (serving if switch_is_there else switchless)() as (client, _, _):
            found = [(await create(client, aggregation="auto", slots=32))["aggregation"] for _ in range(40)]
            slots = found.index("server")
            assert found == ["leased"] * slots + ["server"] * (40 - slots)
            assert (slots > 0) == switch_is_there

    run(body)


def test_auto_that_finds_nothing_says_every_reason_once(switchless: Serving) -> None:
    async def body() -> None:
        async with switchless() as (client, _, _):
            asked = {"workers": 2, "slots": 4, "aggregation": "auto", "servers": "registered"}
            answer = await client.post("/jobs", json=asked)
            assert answer.status_code == 503
            first, second = answer.json()["detail"].split("; on ")  # the first two ways have the same reason
            assert first == "this controller has no switch; aggregation = server needs none"
            assert second.startswith("servers: no aggregation server has registered")

    run(body)
