# SPDX-License-Identifier: Apache-2.0
"""Job classes in the HTTP API: requests, answers, refusals and metrics."""

import json
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inagg_controller.configuration import parse_job_classes
from tests.controller.serving import SHARED_SLOTS, Serving, add_server, ask_and_leave, run, start_job


def quotas(*classes: str) -> dict[str, Any]:
    """The limits of a controller with these --job-class."""
    return {"classes": parse_job_classes(classes), "shared_slots": SHARED_SLOTS}


async def create(client: httpx.AsyncClient, **changes: object) -> httpx.Response:
    return await client.post("/jobs", json={"workers": 2, "slots": 4, "job_class": "batch", **changes})


@pytest.mark.parametrize("aggregation", ["leased", "shared", "server", "auto"])
def test_a_job_says_its_class_and_keeps_it(serving: Serving, aggregation: str) -> None:
    async def body() -> None:
        async with serving(**quotas("batch")) as (client, _, _):
            job = (await create(client, aggregation=aggregation)).json()
            assert job["job_class"] == "batch"
            assert (await client.get(f"/jobs/{job['id']}")).json()["job_class"] == "batch"
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            found = [each["job_class"] for each in (await client.get("/jobs")).json()["jobs"]]
            assert found == ["batch", "default"]

    run(body)


@pytest.mark.parametrize("aggregation", ["leased", "shared", "server", "auto"])
def test_an_unknown_class_is_an_invalid_request(serving: Serving, aggregation: str) -> None:
    async def body() -> None:
        async with serving(**quotas("batch")) as (client, service, _):
            answer = await create(client, job_class="bulk", aggregation=aggregation)
            assert (answer.status_code, answer.json()["detail"]) == (
                422,
                "job_class is bulk; the classes of this controller are batch, default (--job-class)",
            )
            assert service.jobs.jobs == {}

    run(body)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a,b", "x" * 65, 7])
def test_what_is_no_name_of_a_class_is_refused(serving: Serving, name: object) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            answer = await create(client, job_class=name)
            assert (answer.status_code, "body.job_class" in answer.json()["detail"]) == (422, True)

    run(body)


def test_a_quota_that_is_used_up_is_503_and_names_the_quota_and_the_class(serving: Serving) -> None:
    async def body() -> None:
        async with serving(**quotas("batch,jobs=1")) as (client, _, _):
            assert (await create(client)).status_code == 201
            answer = await create(client)
            assert (answer.status_code, answer.json()["detail"]) == (
                503,
                "the class batch is full: its quota is jobs=1; wait until one ends",
            )

    run(body)


def test_a_class_that_is_full_is_said_once_with_auto(serving: Serving) -> None:
    async def body() -> None:
        async with serving(**quotas("batch,jobs=0")) as (client, _, _):
            answer = await create(client, aggregation="auto")
            assert (answer.status_code, answer.json()["detail"]) == (
                501,  # none of the three ways will ever have room
                "the class batch is full: its quota is jobs=0; set another job_class",
            )

    run(body)


@pytest.mark.parametrize(
    ("quota", "found"),
    [
        ("aggregation=shared+server", ["shared", "shared"]),
        ("slots=4", ["leased", "shared"]),
        ("slots=4,priority=6", ["leased", "server"]),
        ("aggregation=server", ["server", "server"]),
    ],
)
def test_auto_takes_the_first_way_that_the_quotas_permit(
    serving: Serving, quota: str, found: list[str]
) -> None:
    async def body() -> None:
        async with serving(**quotas(f"batch,{quota}")) as (client, _, _):
            jobs = [(await create(client, aggregation="auto", priority=7)).json() for _ in found]
            assert [job["aggregation"] for job in jobs] == found

    run(body)


def test_auto_has_the_quotas_reasons_of_all_ways(serving: Serving) -> None:
    async def body() -> None:
        async with serving(**quotas("batch,slots=0,priority=6,aggregation=leased+shared")) as (client, _, _):
            answer = await create(client, aggregation="auto", priority=7)
            first, second, third = answer.json()["detail"].split("; on ")
            assert answer.status_code == 503
            assert first.startswith(
                "the jobs of the class batch have 0 slots of switch s1: its quota is slots=0"
            )
            assert second.startswith("shared slots: priority is 7, too high for a job of the class batch")
            assert third.startswith("servers: aggregation = server is not for jobs of the class batch")

    run(body)


def test_a_new_job_waits_for_a_place_that_is_about_to_be_free(serving: Serving) -> None:
    async def body() -> None:
        async with serving(**quotas("default,jobs=1,slots=4")) as (client, service, _):
            number = await start_job(client)
            assert service.jobs.job(number).state == "running"
            await client.delete(f"/jobs/{number}")
            assert (
                service.jobs.held_by(service.jobs.classes["default"]).jobs == 1
            )  # its entries are being removed
            answer = await client.post("/jobs", json={"workers": 2, "slots": 4, "aggregation": "server"})
            assert answer.status_code == 201, answer.text

    run(body)


def test_a_client_that_leaves_while_it_waits_for_room_leaves_no_job(serving: Serving) -> None:
    asked = json.dumps({"workers": 2, "slots": 4}).encode()

    async def wait() -> None:
        async with serving(**quotas("default,jobs=1")) as (client, service, _):
            number = await start_job(client)
            await client.delete(f"/jobs/{number}")
            await ask_and_leave(service, "POST", "/jobs", body=asked)
            assert [job.state for job in service.jobs.jobs.values()] == ["failed", "failed"]
            assert await start_job(client)  # the place is free

    run(wait)


def test_metrics_have_what_each_class_holds_and_its_quotas(serving: Serving) -> None:
    async def body() -> str:
        async with serving(**quotas("batch,jobs=4,slots=8,memory=1GiB")) as (client, _, _):
            await add_server(client)
            await create(client)
            await create(client, aggregation="server", servers="registered")
            return (await client.get("/metrics")).text

    found = {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(run(body))
        for sample in family.samples
        if sample.name.startswith("inagg_class_")
    }
    assert found == {
        ("inagg_class_jobs", "batch"): 2,
        ("inagg_class_jobs", "default"): 0,
        ("inagg_class_slots", "batch", "s1"): 4,
        ("inagg_class_slots", "default", "s1"): 0,
        ("inagg_class_memory_bytes", "batch"): 8864,
        ("inagg_class_memory_bytes", "default"): 0,
        ("inagg_class_quota", "batch", "jobs"): 4,
        ("inagg_class_quota", "batch", "slots"): 8,
        ("inagg_class_quota", "batch", "memory"): 1 << 30,
    }
