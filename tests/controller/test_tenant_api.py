# SPDX-License-Identifier: Apache-2.0
"""Tenants in the HTTP API: tokens, refusals, limits of rates, what answers and metrics show."""

import logging
from typing import Any

import httpx
import pytest

from inagg_controller.configuration import parse_job_classes
from inagg_controller.jobs.tenants import Tenant, Tenants, digest_of
from inagg_controller.service import Service
from tests.controller.serving import (
    OPERATORS_TOKEN,
    SHARED_SLOTS,
    Serving,
    asking,
    metrics,
    run,
    worker,
)

TOKEN = "the-token-of-vision"
QUOTAS: dict[str, Any] = {"classes": parse_job_classes(["batch", "urgent"]), "shared_slots": SHARED_SLOTS}
ASKED = {"workers": 2, "slots": 4}


def vision(**fields: Any) -> Tenant:
    given = {"token_sha256": digest_of(TOKEN), "classes": ["batch", "urgent"], **fields}
    return Tenant.model_validate({"name": "vision", **given})


async def create(service: Service, token: str, host: str = "127.0.0.1", **fields: Any) -> httpx.Response:
    async with asking(service, host, token) as client:
        if not token:
            del client.headers["Authorization"]
        return await client.post("/jobs", json=ASKED | fields)


@pytest.mark.parametrize("aggregation", ["leased", "shared", "server", "auto"])
def test_a_job_is_of_the_tenant_whose_token_creates_it(serving: Serving, aggregation: str) -> None:
    async def body() -> None:
        async with serving(tenants=Tenants([vision()]), **QUOTAS) as (operator, service, _):
            first = await create(service, TOKEN, aggregation=aggregation)
            second = await create(service, TOKEN, aggregation=aggregation, job_class="urgent")
            third = await create(service, OPERATORS_TOKEN, aggregation=aggregation)
            found = [(job["tenant"], job["job_class"]) for job in (first.json(), second.json(), third.json())]
            assert found == [("vision", "batch"), ("vision", "urgent"), (None, "default")]
            listed = (await operator.get("/jobs")).json()["jobs"]
            assert [(job["tenant"], job["job_class"]) for job in listed] == found

    run(body)


def test_a_key_finds_only_jobs_of_the_same_tenant(serving: Serving) -> None:
    async def body() -> None:
        async with serving(tenants=Tenants([vision()]), **QUOTAS) as (_, service, _):
            made = []
            for token in (TOKEN, OPERATORS_TOKEN, TOKEN):
                async with asking(service, "127.0.0.1", token) as client:
                    client.headers["Idempotency-Key"] = "one"
                    made.append((await client.post("/jobs", json=ASKED)).json()["id"])
            assert made == [1, 2, 1]

    run(body)


def test_a_creation_that_is_repeated_counts_once(serving: Serving) -> None:
    async def body() -> None:
        tenants = Tenants([vision(creations_per_min=1)])
        async with (
            serving(tenants=tenants, **QUOTAS) as (_, service, _),
            asking(service, "127.0.0.1", TOKEN) as client,
        ):
            client.headers["Idempotency-Key"] = "one"
            for _ in range(2):
                assert (await client.post("/jobs", json=ASKED)).json()["id"] == 1
            client.headers["Idempotency-Key"] = "two"
            assert (await client.post("/jobs", json=ASKED)).status_code == 429

    run(body)


def test_without_tenants_everybody_creates_jobs_whatever_token_they_show(serving: Serving) -> None:
    async def body() -> None:
        async with serving(**QUOTAS) as (_, service, _):
            for token in ("", TOKEN):
                job = (await create(service, token)).json()
                assert (job["tenant"], job["job_class"]) == (None, "default")

    run(body)


@pytest.mark.parametrize(
    ("token", "status", "kind", "detail"),
    [
        (
            "",
            401,
            "unauthorized",
            "POST /jobs needs the token of a tenant (controller_token, INAGG_CONTROLLER_TOK",
        ),
        (
            "wrong",
            403,
            "forbidden",
            "this is not the token of a tenant of this controller, which the operator give",
        ),
        (digest_of(TOKEN), 403, "forbidden", "this is not the token of a tenant of this controller"),
    ],
)
def test_strangers_create_no_jobs(serving: Serving, token: str, status: int, kind: str, detail: str) -> None:
    async def body() -> None:
        async with serving(tenants=Tenants([vision()]), **QUOTAS) as (_, service, _):
            answer = await create(service, token)
            problem = answer.json()
            assert (answer.status_code, problem["type"]) == (status, f"urn:inagg:{kind}")
            assert problem["detail"].startswith(detail)
            assert (token or "no token") not in answer.text
            assert service.jobs.jobs == {}

    run(body)


@pytest.mark.parametrize("aggregation", ["leased", "shared", "server", "auto"])
def test_a_class_is_a_right_that_the_token_has(serving: Serving, aggregation: str) -> None:
    async def body() -> None:
        async with serving(tenants=Tenants([vision()]), **QUOTAS) as (_, service, _):
            answer = await create(service, TOKEN, job_class="default", aggregation=aggregation)
            problem = answer.json()
            assert (answer.status_code, problem["type"]) == (403, "urn:inagg:forbidden-class")
            assert (
                problem["detail"]
                == "job_class is default; the classes of the tenant vision are batch, urgent"
            )
            assert service.jobs.jobs == {}

    run(body)


def test_a_tenants_token_is_good_for_nothing_but_its_jobs_creation(serving: Serving) -> None:
    async def body() -> None:
        async with serving(tenants=Tenants([vision()]), **QUOTAS) as (operator, service, _):
            number = (await operator.post("/jobs", json=ASKED)).json()["id"]
            async with asking(service, "127.0.0.1", TOKEN) as client:
                for method, path in [
                    ("GET", f"/jobs/{number}"),
                    ("DELETE", f"/jobs/{number}"),
                    ("GET", "/jobs"),
                    ("GET", "/metrics"),
                    ("POST", "/servers"),
                ]:
                    assert (await client.request(method, path, json=None)).status_code == 403

    run(body)


def test_too_many_requests_wait_and_those_of_ranks_do_not_count(serving: Serving) -> None:
    async def body() -> None:
        tenants = Tenants([vision(requests_per_s=2)])
        async with (
            serving(tenants=tenants, **QUOTAS) as (_, service, _),
            asking(service, "127.0.0.1", TOKEN) as client,
        ):
            job = (await client.post("/jobs", json=ASKED)).json()
            assert (await client.post("/jobs", json=ASKED | {"job_class": "default"})).status_code == 403
            answer = await client.post("/jobs", json=ASKED)
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            problem = answer.json()
            assert problem["type"] == "urn:inagg:too-many-requests"
            assert problem["detail"] == (
                "the tenant vision asks too often: its limit is requests_per_s=2; ask again in 1 s"
            )
            client.headers["Authorization"] = f"Bearer {job['secret']}"
            for rank in (0, 1):
                answer = await client.post(f"/jobs/{job['id']}/workers", json=worker(rank))
                assert answer.status_code == 200, answer.text
            for _ in range(20):
                assert (
                    await client.post(f"/jobs/{job['id']}/workers/0/heartbeat", json={})
                ).status_code == 200
            client.headers["Authorization"] = f"Bearer {OPERATORS_TOKEN}"
            assert (await metrics(client))["inagg_api_refusals_total", "429"] == 1

    run(body)


def test_only_jobs_that_are_created_count_for_their_limit(serving: Serving) -> None:
    async def body() -> None:
        tenants = Tenants([vision(creations_per_min=2, jobs=1)])
        async with (
            serving(tenants=tenants, **QUOTAS) as (_, service, _),
            asking(service, "127.0.0.1", TOKEN) as client,
        ):
            first = await client.post("/jobs", json=ASKED)
            for _ in range(3):
                assert (await client.post("/jobs", json=ASKED)).status_code == 503
            service.end(first.json()["id"])
            assert (await client.post("/jobs", json=ASKED)).status_code == 201
            answer = await client.post("/jobs", json=ASKED)
            assert (answer.status_code, 20 <= int(answer.headers["Retry-After"]) <= 30) == (429, True)
            assert "its limit is creations_per_min=2" in answer.json()["detail"]
            client.headers["Authorization"] = f"Bearer {OPERATORS_TOKEN}"
            assert (await client.post("/jobs", json=ASKED)).status_code == 201

    run(body)


def test_a_token_that_came_without_tls_is_in_the_log_once(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with (
            serving(tenants=Tenants([vision()]), **QUOTAS) as (_, service, _),
            asking(service, "10.0.0.1", TOKEN) as there,
            asking(service, "127.0.0.1", TOKEN) as here,
        ):
            with caplog.at_level(logging.WARNING):
                await here.post("/jobs", json=ASKED)
                assert "without TLS" not in caplog.text
                await there.post("https://controller/jobs", json=ASKED)
                assert "without TLS" not in caplog.text
                for _ in range(3):
                    await there.post("/jobs", json=ASKED)
        assert caplog.text.count("the token of the tenant vision has come from 10.0.0.1 without TLS") == 1
        assert TOKEN not in caplog.text

    run(body)


def test_metrics_have_what_each_tenant_holds_and_its_quotas(serving: Serving) -> None:
    async def body() -> None:
        async with serving(tenants=Tenants([vision(jobs=4, slots=8)]), **QUOTAS) as (operator, service, _):
            assert (await create(service, TOKEN)).status_code == 201
            assert (await create(service, OPERATORS_TOKEN)).status_code == 201
            found = {key: value for key, value in (await metrics(operator)).items() if "tenant" in key[0]}
            assert found == {
                ("inagg_tenant_jobs", "vision"): 1,
                ("inagg_tenant_slots", "s1", "vision"): 4,
                ("inagg_tenant_memory_bytes", "vision"): 0,
                ("inagg_tenant_quota", "jobs", "vision"): 4,
                ("inagg_tenant_quota", "slots", "vision"): 8,
            }

    run(body)


def test_a_tenant_that_is_gone_creates_no_more_jobs_and_its_job_is_shown_as_before(serving: Serving) -> None:
    async def body() -> None:
        tenants = Tenants([vision()])
        async with serving(tenants=tenants, **QUOTAS) as (operator, service, _):
            job = (await create(service, TOKEN)).json()
            tenants.replace([Tenant(name="text", token_sha256=(digest_of("other"),), classes=("batch",))])
            assert (await create(service, TOKEN)).status_code == 403
            async with asking(service, "127.0.0.1", job["secret"]) as client:
                assert (await client.post(f"/jobs/{job['id']}/workers", json=worker(0))).status_code == 200
            assert (await operator.get(f"/jobs/{job['id']}")).json()["tenant"] == "vision"

    run(body)
