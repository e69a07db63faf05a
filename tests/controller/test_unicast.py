# SPDX-License-Identifier: Apache-2.0
"""Results to a job's group address, and the change to each worker's own, over the HTTP API. Virtual time."""

import logging
from typing import Any

import httpx
import pytest

from inagg.errors import ControllerRefusedError
from inagg.membership.control import ControlClient
from inagg_contract.aggregation import Aggregation
from inagg_controller.switch.entries import RECEIVER, MulticastGroup
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import ON_SWITCHES, SHARED_SLOTS, Serving, run, settle, start_job, worker

FIRST = 0xEFC00000  # 239.192.0.0
GROUP = 2  # of the first job
TO_THE_GROUP = ((1, 256), (2, 256))
TO_EACH = ((1, 1), (2, 2))
ENDPOINT = {"ip": "239.192.0.1", "udp_port": 18753}


def modified(switch: MemorySwitch) -> list[object]:
    return [entity for verb, entity in switch.calls if verb == "modify"]


async def unicast(client: httpx.AsyncClient, number: int) -> Any:
    answer = await client.post(f"/jobs/{number}/unicast")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_job_says_where_its_results_go(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(multicast=FIRST) as (client, _, _):
            number = await start_job(client)
            assert (await client.get(f"/jobs/{number}")).json()["results"] == ENDPOINT
            assert (await client.get("/jobs")).json()["jobs"][0]["results"] == ENDPOINT
            assert memory_switch.replicas(GROUP) == TO_THE_GROUP
            assert len(memory_switch.in_table(RECEIVER)) == 3

    run(body)


@pytest.mark.parametrize(("workers", "multicast"), [(1, FIRST), (2, None)])
def test_a_job_of_one_worker_or_of_a_controller_without_multicast_has_no_group_address(
    serving: Serving, memory_switch: MemorySwitch, workers: int, multicast: int | None
) -> None:
    async def body() -> None:
        async with serving(multicast=multicast) as (client, _, _):
            number = await start_job(client, workers)
            assert (await client.get(f"/jobs/{number}")).json()["results"] is None
            assert memory_switch.replicas(GROUP) == TO_EACH[:workers]
            assert (await unicast(client, number))["state"] == "running"
            assert modified(memory_switch) == []

    run(body)


@pytest.mark.parametrize("aggregation", ON_SWITCHES)
def test_the_jobs_results_go_to_each_worker_once_a_rank_has_asked(
    serving: Serving,
    memory_switch: MemorySwitch,
    caplog: pytest.LogCaptureFixture,
    aggregation: Aggregation,
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS, multicast=FIRST) as (client, _, _):
            number = await start_job(client, aggregation=aggregation)
            job = await unicast(client, number)
            assert (job["results"], job["state"]) == (None, "running")
            await settle(lambda: memory_switch.replicas(GROUP) == TO_EACH)
            assert await unicast(client, number) == job  # another rank asks
            assert (await client.get(f"/jobs/{number}")).json()["results"] is None
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1] and memory_switch.in_table(RECEIVER) == [])

    with caplog.at_level(logging.WARNING):
        run(body)
    assert modified(memory_switch) == [MulticastGroup(GROUP, TO_EACH)]
    warnings = [record.getMessage() for record in caplog.records if "multicast" in record.getMessage()]
    assert warnings == ["job 1: multicast does not reach all workers; results are sent to each"]


def test_a_rank_may_ask_before_the_last_one_has_registered(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(multicast=FIRST) as (client, _, _):
            number = (await client.post("/jobs", json={"workers": 2, "slots": 4})).json()["id"]
            await client.post(f"/jobs/{number}/workers", json=worker(0))
            assert (await unicast(client, number))["results"] is None
            await client.post(f"/jobs/{number}/workers", json=worker(1))
            await settle(lambda: GROUP in memory_switch.groups)
            assert memory_switch.replicas(GROUP) == TO_EACH
            assert modified(memory_switch) == []

    run(body)


def test_a_job_that_has_ended_does_not_change(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving(multicast=FIRST) as (client, _, _):
            number = await start_job(client)
            ended = (await client.delete(f"/jobs/{number}")).json()
            assert await unicast(client, number) == ended
            await settle(lambda: memory_switch.groups == [1])
            assert modified(memory_switch) == []

    run(body)


def test_a_change_that_the_switch_refuses_fails_the_job(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(multicast=FIRST) as (client, _, _):
            number = await start_job(client)
            memory_switch.refuse = lambda entity: isinstance(entity, MulticastGroup)
            await unicast(client, number)
            await settle(lambda: memory_switch.groups == [1])
            job = (await client.get(f"/jobs/{number}")).json()
            assert (job["state"], job["reason"]) == (
                "failed",
                "the switch refused to copy results to each worker: the switch is full",
            )

    run(body)


def test_the_ranks_client_asks_with_the_jobs_secret() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(404, json={"detail": "there is no job 7"})

    with ControlClient("http://controller", transport=httpx.MockTransport(answer)) as client:
        client.learn_secret(7, "of-job-7")
        with pytest.raises(ControllerRefusedError, match="there is no job 7"):
            client.unicast(7)
    (request,) = requests
    assert (request.method, request.url.path) == ("POST", "/jobs/7/unicast")
    assert request.headers["Authorization"] == "Bearer of-job-7"
