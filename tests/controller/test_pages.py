# SPDX-License-Identifier: Apache-2.0
"""Pages for people and Prometheus: /metrics, /docs, --version, docs/controller-api.md."""

import asyncio
import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inagg_controller.http.api import description
from inagg_controller.http.reference import reference_markdown
from inagg_controller.switch.client import Count
from tests import ROOT
from tests.controller.launching import Launcher, read_line
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import OPERATORS_TOKEN, Serving, run

MEMBER = {"mac": "02:00:00:00:00:01", "udp_port": 4000}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_of_jobs_ranks_slots_and_the_switchs_counters(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> Any:
        async with serving() as (client, _, clock):
            job = {"workers": 2, "slots": 4, "name": job_name}
            await client.post("/jobs", json=job)
            for rank in range(2):
                await client.post(
                    "/jobs/1/workers",
                    json={
                        "rank": rank,
                        "ip": f"10.0.0.{rank + 1}",
                        "port": rank + 1,
                        "host": f"h{rank + 1}",
                        **MEMBER,
                    },
                )
            await client.get("/jobs/1", params={"wait": "running"})
            memory_switch.admitted = {(1, 0): Count(5, 500)}
            await client.put("/loss", json={"port": 1, "direction": "egress", "probability": 0.5})
            clock.now = 0.5
            await client.post("/jobs/1/workers/0/heartbeat", json={"sums": 3, "waited_s": 0.25})
            await client.get("/jobs/9")
            await client.get("/jobs/9")
            return (await client.get("/metrics")).text

    def rank_labels(rank: int) -> dict[str, str]:
        where = {"rank": str(rank), "host": f"h{rank + 1}", "address": f"10.0.0.{rank + 1}"}
        return {"inagg_job": "1", "name": job_name, **where}

    found = samples(run(body))
    for name, labels, value in [
        ("inagg_controller_info", {"version": version("inagg")}, 1),
        ("inagg_switch_connected", {"switch": "s1"}, 1),
        ("inagg_switch_pipeline_pushes_total", {"switch": "s1"}, 1),
        ("inagg_pool_slot_versions", {"switch": "s1", "state": "leased"}, 8),
        ("inagg_pool_slot_versions", {"switch": "s1", "state": "free"}, 56),
        ("inagg_shared_slots", {"switch": "s1"}, 0),
        ("inagg_jobs", {"state": "running", "aggregation": "leased"}, 1),
        ("inagg_jobs", {"state": "running", "aggregation": "shared"}, 0),
        ("inagg_jobs", {"state": "running", "aggregation": "server"}, 0),
        ("inagg_jobs", {"state": "failed", "aggregation": "leased"}, 0),
        ("inagg_job_slots", {"inagg_job": "1", "name": job_name}, 4),
        ("inagg_job_ranks", {"inagg_job": "1", "name": job_name, "state": "present"}, 2),
        ("inagg_job_ranks", {"inagg_job": "1", "name": job_name, "state": "missing"}, 0),
        ("inagg_rank_heartbeat_age_seconds", rank_labels(0), 0),
        ("inagg_rank_heartbeat_age_seconds", rank_labels(1), 0.5),
        ("inagg_rank_sums_total", rank_labels(0), 3),
        ("inagg_rank_waited_seconds_total", rank_labels(0), 0.25),
        ("inagg_rank_admitted_packets_total", rank_labels(0), 5),
        ("inagg_rank_admitted_bytes_total", rank_labels(0), 500),
        ("inagg_switch_packets_total", {"switch": "s1", "counter": "started", "port": "2"}, 2),
        ("inagg_switch_bytes_total", {"switch": "s1", "counter": "started", "port": "2"}, 200),
        ("inagg_switch_packets_total", {"switch": "s1", "counter": "source_refused", "port": "2"}, 0),
        (
            "inagg_loss_probability",
            {"switch": "s1", "port": "1", "direction": "egress", "traffic": "other"},
            0.5,
        ),
        ("inagg_api_refusals_total", {"status": "404"}, 2),
    ]:
        assert found[name, frozenset(labels.items())] == value, (name, labels)


job_name = 'a "name" of <any> {kind}'


def test_metrics_are_there_without_a_switch_as_well(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> Any:
        async with serving() as (client, service, _):
            memory_switch.away = True
            memory_switch.restart()
            while service.switches["s1"].connected:
                await asyncio.sleep(0.001)
            return await client.get("/metrics")

    answer = run(body)
    found = samples(answer.text)
    assert answer.status_code == 200
    assert found["inagg_switch_connected", frozenset({("switch", "s1")})] == 0
    assert not any(name.startswith("inagg_switch_packets") for name, _ in found)


def test_metrics_of_the_real_process_count_its_connections_and_memory(
    launch: Launcher, free_port: int
) -> None:
    assert read_line(launch()) == "ready"
    url = f"http://127.0.0.1:{free_port}/metrics"
    assert httpx.get(url, trust_env=False).status_code == 401
    operator = {"Authorization": f"Bearer {OPERATORS_TOKEN}"}
    answer = httpx.get(url, headers=operator, trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain")
    found = samples(answer.text)
    assert found["inagg_api_connections", frozenset()] >= 1
    assert found["inagg_api_refusals_total", frozenset({("status", "401")})] == 1
    assert found["process_resident_memory_bytes", frozenset()] > 1 << 20


def test_the_apis_documentation_is_one_page_with_every_operation_and_loads_nothing(serving: Serving) -> None:
    async def body() -> Any:
        async with serving() as (client, _, _):
            return await client.get("/docs"), (await client.get("/openapi.json")).json()

    page, description = run(body)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert re.findall(r"(?:src|href)\s*=\s*\"([^\"]*)", page.text) == ["/openapi.json"]
    assert "<script" not in page.text
    assert "@import" not in page.text
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert re.search(rf"{method.upper()}</span> {re.escape(path)}</h2>", page.text)
            assert operation["description"], (method, path)
    for name in ("Beat", "JobStatus", "NewWorker"):
        assert f'id="{name}"' in page.text


def test_the_description_has_the_bounds_of_a_job(serving: Serving) -> None:
    async def body() -> Any:
        async with serving() as (client, _, _):
            return (await client.get("/openapi.json")).json()["components"]["schemas"]["NewJob"]["properties"]

    job = run(body)
    assert (job["workers"]["minimum"], job["workers"]["maximum"], job["slots"]["minimum"]) == (1, 4096, 2)


def test_the_documentation_says_which_secret_each_operation_needs(serving: Serving) -> None:
    async def body() -> Any:
        async with serving() as (client, _, _):
            return (await client.get("/openapi.json")).json()["paths"]

    needed = {
        f"{method.upper()} {path}": [name for entry in operation.get("security", []) for name in entry]
        for path, methods in run(body).items()
        for method, operation in methods.items()
    }
    assert {request for request, secrets in needed.items() if not secrets} == {
        "GET /health",
        "POST /heartbeats",  # each beat has a secret
    }
    assert needed.pop("POST /jobs") == ["tenant's token, if the controller has tenants"]
    for request in ("GET /overview", "GET /events"):
        assert needed.pop(request) == ["operator's token for more than health"]
    for request, secrets in needed.items():
        if secrets:
            expected = "secret of the job" if "/jobs/{number}" in request else "operator's token"
            assert secrets == [expected], request


@pytest.mark.parametrize("command", [["-m", "inagg_controller"]])
def test_it_tells_its_version(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"inagg-controller {version('inagg')}\n", "")


def test_the_api_page_of_the_documentation_is_the_apis_own_description() -> None:
    page = (ROOT / "docs" / "controller-api.md").read_text()
    assert page == reference_markdown(description()), (
        "python -m inagg_controller.http > docs/controller-api.md"
    )


def test_the_documentation_names_every_metric_and_no_other(serving: Serving) -> None:
    async def body() -> Any:
        async with serving() as (client, _, _):
            return (await client.get("/metrics")).text

    ours = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(run(body))
        if not family.name.startswith("process_")
    }
    page = (ROOT / "docs" / "counters.md").read_text()
    assert set(re.findall(r"`(inagg_\w+)`", page)) - {"inagg_job"} == ours  # a label
