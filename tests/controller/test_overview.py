# SPDX-License-Identifier: Apache-2.0
"""GET /overview, GET /events and the page /live: what they give, to whom, and until when."""

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import pytest

from inagg_controller.http.api import create_app
from inagg_controller.http.overviews import _MOST_LISTENERS, Overviews
from inagg_controller.logs import RecentLines
from inagg_controller.switch.client import Count, SlotVersion
from tests.controller.launching import Launcher, read_line
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import (
    OPERATORS_TOKEN,
    Clock,
    Serving,
    asking,
    run,
    settle,
    start_job,
)
from tests.waiting import wait_until

TRAFFIC = {"packets": 40, "retransmits": 2, "chunks": 30, "window": 4, "window_limit": 8, "rtt_s": 0.001}


def as_operator() -> dict[str, str]:
    return {"Authorization": f"Bearer {OPERATORS_TOKEN}"}


def test_an_overview_has_jobs_ranks_slots_and_traffic(serving: Serving, memory_switch: MemorySwitch) -> None:
    memory_switch.admitted = {(1, 0): Count(5, 500)}

    async def body() -> Any:
        async with serving() as (client, _, clock):
            number = await start_job(client, name="train.py")
            clock.now = 0.5
            beat = {"sums": 3, "waited_s": 0.25, "traffic": TRAFFIC}
            assert (await client.post(f"/jobs/{number}/workers/0/heartbeat", json=beat)).status_code == 200
            return (await client.get("/overview")).json()

    found = run(body)
    (job,) = found["jobs"]
    assert found["operators"] is True
    assert found["health"]["switches"][0]["free_slot_versions"] == 56
    assert (job["id"], job["name"], job["state"], job["title"], job["age_s"]) == (
        1,
        "train.py",
        "running",
        "s1",
        0.5,
    )
    (lease,) = job["leases"]
    assert (lease["switch"], lease["first"], lease["count"]) == ("s1", 0, 8)
    assert [(way["title"], way["reason"], way["ago_s"]) for way in job["ways"]] == [("s1", "", 0.5)]
    first, second = job["ranks"]
    assert (first["at"], first["state"], first["heartbeat_age_s"], first["bytes"]) == (
        "s1:1",
        "joined",
        0.0,
        500,
    )
    assert (first["waits"]["sums"], first["waits"]["waited_s"], first["traffic"]) == (3, 0.25, TRAFFIC)
    assert (second["heartbeat_age_s"], second["traffic"], second["bytes"]) == (0.5, None, None)
    assert found["hosts"][0] == {"name": "h1", "ip": "10.0.0.1", "at": "s1:1"}
    assert found["ports"] == [
        {"switch": "s1", "port": 1, "received": 100, "results_sent": 0},
        {"switch": "s1", "port": 2, "received": 200, "results_sent": 0},
    ]


def test_an_overview_names_ranks_that_were_late_since_somebody_watches(serving: Serving) -> None:
    async def body() -> Any:
        async with serving() as (client, service, _):
            number = await start_job(client)
            clock = Clock()
            overviews = Overviews(service, RecentLines(), clock)

            async def late(now: float, *waits: tuple[int, float]) -> Any:
                for rank, (sums, waited_s) in enumerate(waits):
                    beat = {"sums": sums, "waited_s": waited_s, "rtt_s": 0.001}
                    await client.post(f"/jobs/{number}/workers/{rank}/heartbeat", json=beat)
                clock.now = now
                (job,) = (await overviews.latest(operators=True)).overview.jobs
                return [(each.rank, round(each.late_s, 6), each.cause) for each in job.late]

            return [
                await late(0.0, (10, 5.0), (10, 0.0)),
                await late(1.0, (20, 5.0), (20, 1.0)),
                await late(2.0, (5, 0.1), (30, 1.0)),  # it has begun to count anew
                await late(20.0, (5, 9.0), (30, 1.0)),
            ]

    assert run(body) == [[], [(0, 0.1, "computation")], [], []]


def test_an_overview_has_what_slots_hold(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> Any:
        async with serving() as (client, service, _):
            epoch = service.jobs.job(await start_job(client)).placement.epoch
            memory_switch.slots = {
                0: SlotVersion(epoch, 0b11),
                1: SlotVersion(epoch, 0b10),
                2: SlotVersion(epoch - 1, 1),
            }
            return (await client.get("/overview")).json()["jobs"][0]["leases"]

    (lease,) = run(body)
    assert (lease["members"], lease["contributions"]) == (2, [2, 1, 0, 0, 0, 0, 0, 0])


def test_a_switch_that_hides_its_slots_is_asked_once_a_connection(
    serving: Serving, memory_switch: MemorySwitch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory_switch.hides_slots = True

    async def body() -> Any:
        async with serving() as (client, service, _):
            await start_job(client)
            clock = Clock()
            overviews = Overviews(service, RecentLines(), clock)

            async def contributions() -> Any:
                clock.now += 1
                return [
                    each.leases[0].contributions
                    for each in (await overviews.latest(operators=True)).overview.jobs
                ]

            hidden = [await contributions(), await contributions()]
            memory_switch.hides_slots = False
            hidden.append(await contributions())
            connection = service.switches["s1"].connection
            memory_switch.restart()
            await settle(lambda: connection.connects == 2 and connection.state == "connected")
            number = await start_job(client)
            clock.now += 1
            found = (await overviews.latest(operators=True)).overview
            (job,) = (each for each in found.jobs if each.id == number)
            return hidden, job.leases[0].contributions

    assert run(body) == ([[()], [()], [()]], (0,) * 8)
    assert [each.message for each in caplog.records if "does not show its slots" in each.message] == [
        "switch s1 does not show its slots: the switch is full"
    ]


def test_strangers_see_health_alone_and_wrong_tokens_are_refused(serving: Serving) -> None:
    async def body() -> Any:
        async with serving() as (client, service, _):
            await start_job(client)
            async with asking(service, "10.0.0.9") as stranger:
                del stranger.headers["Authorization"]
                seen = (await stranger.get("/overview")).json()
                health = (await stranger.get("/health")).json()
            async with asking(service, "10.0.0.9", "wrong") as other:
                return (
                    seen,
                    health,
                    [(await other.get(path)).status_code for path in ("/overview", "/events")],
                )

    seen, health, refusals = run(body)
    assert seen["operators"] is False
    assert seen["health"] == health
    assert [seen[name] for name in ("jobs", "hosts", "ports", "log")] == [[], [], [], []]
    assert refusals == [403, 403]


def test_overviews_of_one_second_are_read_and_written_once(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    reads: list[Any] = []
    read_counters = memory_switch.read_counters

    def counted(ports: Any, names: Any = None) -> Any:
        reads.append(names)
        return read_counters(ports, names)

    async def body() -> list[int]:
        async with serving() as (_, service, _):
            memory_switch.read_counters = counted  # type: ignore[method-assign]
            clock = Clock()
            overviews = Overviews(service, RecentLines(), clock)
            counts = []
            for now in (0.0, 0.5, 1.0):
                clock.now = now
                made = await asyncio.gather(*(overviews.latest(operators=True) for _ in range(20)))
                assert len({id(each.text()) for each in made}) == 1
                counts.append(sum("started" in (names or ()) for names in reads))
            return counts

    assert run(body) == [1, 1, 2]


@pytest.mark.parametrize("operators", [False, True])
def test_so_many_listen_at_a_time(serving: Serving, monkeypatch: pytest.MonkeyPatch, operators: bool) -> None:
    monkeypatch.setitem(_MOST_LISTENERS, operators, 1)

    async def body() -> Any:
        async with serving() as (_, service, _):
            app = create_app(service, OPERATORS_TOKEN)
            headers = as_operator() if operators else {}
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://c", headers=headers) as one:
                both = [asyncio.ensure_future(one.get("/events")) for _ in range(2)]
                (refused,), (listening,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                service.stop_waiting()  # ends the stream
                first = (await listening).status_code
                return refused.result().json(), first, (await one.get("/events")).status_code

    refusal, first, after = run(body)
    assert (refusal["status"], first, after) == (503, 200, 200)
    assert "the operator's token, the limit" in refusal["detail"]


def test_the_log_keeps_its_last_lines() -> None:
    lines = RecentLines()
    with lines.listening():
        for number in range(300):
            logging.getLogger("inagg_controller.service").warning("line\n%d", number)
    logging.getLogger("inagg_controller.service").warning("after it")
    assert [line.text for line in lines.after(298)] == ["line\\n298", "line\\n299"]
    assert len(lines.after(0)) == 200


def test_a_line_that_cannot_be_written_does_not_reach_who_logs(capsys: pytest.CaptureFixture[str]) -> None:
    lines = RecentLines()
    lines.emit(logging.makeLogRecord({"msg": "%d jobs", "args": ("two",)}))
    assert lines.after(0) == []
    assert "TypeError: %d format" in capsys.readouterr().err


def events_of(answer: httpx.Response) -> Any:
    """The documents of a stream of events."""
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_events_come_each_second_with_new_lines_of_the_log_until_the_controller_ends(
    launch: Launcher, free_port: int
) -> None:
    process = launch(log_level="info")
    assert read_line(process) == "ready"
    url = f"http://127.0.0.1:{free_port}"
    with (
        httpx.Client(base_url=url, trust_env=False, timeout=10) as client,
        client.stream("GET", "/events", headers=as_operator()) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer)
        before = next(events)
        httpx.post(f"{url}/jobs", json={"workers": 2, "slots": 4, "name": "mine"}, trust_env=False)
        after = next(event for event in events if event["jobs"])
        assert before["at"] < after["at"]
        assert any("job 1 (mine)" in line["text"] for line in after["log"])
        assert not {line["text"] for line in before["log"]} & {line["text"] for line in after["log"]}
        process.terminate()
        assert all(event["jobs"] for event in events)  # the stream ends, whole
    wait_until(lambda: process.poll() is not None, "the controller ends")
    assert process.returncode == 0


@pytest.mark.parametrize("path", ["/live", "/live/page.css", "/live/page.js"])
def test_the_page_loads_nothing_from_elsewhere(serving: Serving, path: str) -> None:
    async def body() -> httpx.Response:
        async with serving() as (_, service, _), asking(service, "10.0.0.9") as stranger:
            return await stranger.get(path, params={"body": "injected", "kind": "text/plain"})

    answer = run(body)
    assert answer.status_code == 200
    assert "injected" not in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'" in policy  # neither scripts within the page
    assert "unsafe" not in policy
    assert [each for each in re.findall(r"https?://[^\s\"']+", answer.text) if "www.w3.org" not in each] == []
