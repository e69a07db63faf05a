# SPDX-License-Identifier: Apache-2.0
"""Where the chunks of jobs with servers were summed: reports of servers, and what the API makes of them."""

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inagg_controller.errors import ConflictError
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.servers import Summed
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.client import Count
from tests.controller.memory_switch import MemorySwitch
from tests.controller.server_tables import add_server, beat, colocated, join, registered, table_without_switch
from tests.controller.serving import SHARED_SLOTS, Serving, run, settle, start_job
from tests.controller.tables import new_table, running

SOME = {"switches": 5, "both": 2, "servers": 1}


def served(table: JobTable) -> Job:
    """A running job of two workers with a server in the process of each."""
    job = join(table, colocated(table))
    for rank in range(2):
        table.serve(job.id, rank, 0.0)
    assert job.state == "running"
    return job


def report(table: JobTable, job: Job, rank: int, *summed: int) -> None:
    table.heartbeat(job.id, rank, 0.0, Report(0, summed=Summed(*summed)))


def test_a_job_without_servers_has_no_chunks() -> None:
    assert running(new_table()).summed is None


def test_the_chunks_of_colocated_servers_add_up() -> None:
    table = table_without_switch()
    job = served(table)
    assert job.summed == (0, 0, 0)
    report(table, job, 0, 5, 2, 1)
    report(table, job, 1, 10, 0, 3)
    assert job.summed == (15, 2, 4)
    report(table, job, 1, 11, 1, 3)
    assert job.summed == (16, 3, 4)


def test_reports_that_come_late_or_twice_change_nothing() -> None:
    table = table_without_switch()
    job = served(table)
    for summed in [(5, 2, 1), (5, 2, 1), (4, 2, 0), (0, 0, 0)]:
        report(table, job, 0, *summed)
        table.heartbeat(job.id, 0, 0.0)
        assert job.summed == (5, 2, 1)


def test_chunks_of_a_rank_that_runs_no_server_are_refused_and_change_nothing() -> None:
    table = table_without_switch()
    job = colocated(table, workers=3, slots=2)
    join(table, job)
    with pytest.raises(ConflictError, match="rank 2 of job 1 runs no server of it"):
        table.heartbeat(job.id, 2, 7.0, Report(3, summed=Summed(1, 0, 0)))
    assert (job.summed, job.liveness.last_seen[2], job.liveness.beating, job.waits) == (
        (0, 0, 0),
        0.0,
        set(),
        {},
    )
    table = new_table()
    job = running(table)
    with pytest.raises(ConflictError, match="rank 0 of job 1 runs no server of it"):
        table.heartbeat(job.id, 0, 7.0, Report(3, summed=Summed(1, 0, 0)))


def test_registered_servers_report_for_each_of_their_jobs() -> None:
    table = table_without_switch()
    servers = [add_server(table, name) for name in "ab"]
    jobs = [join(table, registered(table)) for _ in range(2)]
    for number, server in enumerate(servers):
        counted = {job.placement.key: Summed(10 * job.id + number, number, 1) for job in jobs}
        table.servers.heartbeat(
            server.name, server.instance, 0.0, [job.placement.key for job in jobs], counted=counted
        )
    assert [job.summed for job in jobs] == [(21, 1, 2), (41, 1, 2)]


def test_the_last_report_about_an_ended_job_counts() -> None:
    table = table_without_switch()
    server = add_server(table)
    job = join(table, registered(table))
    beat(table, server, job)
    for rank in range(2):
        table.leave(job.id, rank, 0.0)
    assert job.state == "finished"
    table.servers.heartbeat("a", server.instance, 0.0, counted={job.placement.key: Summed(7, 0, 0)})
    assert (job.summed, job.holds_resources) == ((7, 0, 0), False)
    # Later ones are about nothing that the server has.
    table.servers.heartbeat("a", server.instance, 0.0, counted={job.placement.key: Summed(9, 0, 0)})
    assert job.summed == (7, 0, 0)


async def status(client: httpx.AsyncClient, number: int) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/jobs/{number}")).json()
    return found


def test_status_and_heartbeats_tell_the_jobs_chunks(serving: Serving) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation="shared")
            nothing = {"switches": 0, "both": 0, "servers": 0}
            assert (await status(client, number))["chunks"] == nothing
            for rank in range(2):
                path = f"/jobs/{number}/workers/{rank}/heartbeat"
                answer = (await client.post(path, json={"chunks": SOME})).json()
            total = {"switches": 10, "both": 4, "servers": 2}
            assert answer["chunks"] == total
            assert (await status(client, number))["chunks"] == total
            assert (await client.get("/jobs")).json()["jobs"][0]["chunks"] == total
            leased = await start_job(client)
            assert (await client.post(f"/jobs/{leased}/workers/0/heartbeat")).json()["chunks"] is None
            found = await status(client, leased)
            assert (found["chunks"], found["displaced"]) == (None, None)

    run(body)


@pytest.mark.parametrize(
    ("chunks", "field"),
    [
        ({**SOME, "switches": -1}, "body.chunks.switches"),
        ({**SOME, "both": 1.5}, "body.chunks.both"),
        ({**SOME, "servers": 1 << 63}, "body.chunks.servers"),
        ({"switches": 1, "both": 0}, "body.chunks.servers"),
        ({**SOME, "gloo": 1}, "body.chunks.gloo"),
    ],
)
def test_chunks_that_cannot_be_are_refused(serving: Serving, chunks: dict[str, object], field: str) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, service, _):
            number = await start_job(client, aggregation="shared")
            answer = await client.post(f"/jobs/{number}/workers/0/heartbeat", json={"chunks": chunks})
            assert (answer.status_code, field in answer.json()["detail"]) == (422, True), answer.text
            assert service.jobs.job(number).summed == (0, 0, 0)

    run(body)


def test_a_registered_server_reports_through_the_api() -> None:
    async def body() -> None:
        async with Serving({}, Topology(()))() as (client, _, _):
            server = {"name": "big", "ip": "10.0.1.1", "udp_port": 18754, "memory": 1 << 20}
            instance = (await client.post("/servers", json=server)).json()["instance"]
            asked = {"workers": 1, "slots": 4, "aggregation": "server", "servers": "registered"}
            job = (await client.post("/jobs", json=asked)).json()
            worker = {"rank": 0, "ip": "10.0.0.1", "udp_port": 4000}
            await client.post("/jobs/1/workers", json=worker)
            key = {"id": job["id"], "epoch": job["epoch"]}
            other = {"id": 99, "epoch": 1}  # one that the controller has forgotten
            counted = [{**each, "chunks": SOME} for each in (key, other)]
            document = {"instance": instance, "serving": [], "counted": counted}
            answer = await client.post("/servers/big/heartbeat", json=document)
            assert answer.status_code == 200, answer.text
            assert (await status(client, 1))["chunks"] == SOME

    run(body)


def test_evictions_and_expiries_are_told_by_job_until_its_end_and_after(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation="shared")
            assert (await status(client, number))["displaced"] is None
            memory_switch.displaced = {
                (number, False): Count(3, 300),
                (number, True): Count(4, 400),
                (99, True): Count(9, 900),
            }
            expected = {"evicted": 3, "expired": 4}
            assert (await status(client, number))["displaced"] == expected
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1])
            memory_switch.displaced = {}
            assert (await status(client, number))["displaced"] == expected

    run(body)


def test_metrics_have_chunks_and_displaced_sums_by_job(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> tuple[int, str]:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation="shared")
            await client.post(f"/jobs/{number}/workers/1/heartbeat", json={"chunks": SOME})
            memory_switch.displaced = {(number, False): Count(3, 300), (number, True): Count(4, 400)}
            return number, (await client.get("/metrics")).text

    number, text = run(body)
    found = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    job = {"inagg_job": str(number)}
    for place, count in SOME.items():
        labels = job | {"name": "", "summed_in": place}
        assert ("inagg_job_chunks_total", labels, count) in found
    for cause, count in (("evicted", 3), ("expired", 4)):
        labels = job | {"name": "", "switch": "s1", "cause": cause}
        assert ("inagg_job_displaced_total", labels, count) in found
