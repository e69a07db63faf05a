# SPDX-License-Identifier: Apache-2.0
"""Running jobs, seen through the HTTP API: lost ranks, time-outs, waiting requests, a failing switch. Virtual time."""

import asyncio
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from inagg_contract.aggregation import AGGREGATIONS, Aggregation
from inagg_controller.jobs.limits import Policy
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import ADMISSION, QUEUE, RECEIVER
from tests.controller.memory_switch import MemorySwitch
from tests.controller.serving import (
    ON_SWITCHES,
    OPERATORS_TOKEN,
    SHARED_SLOTS,
    STAR,
    Serving,
    ask_and_leave,
    create_job,
    run,
    settle,
    start_job,
    worker,
)


def test_receivers_and_group_are_in_before_the_first_admission_and_out_after_the_last(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            memory_switch.calls.clear()
            number = await start_job(client)
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1] and not memory_switch.in_table(RECEIVER))

    run(body)
    order = [(verb, getattr(entity, "table", "group")) for verb, entity in memory_switch.calls]
    assert order == [
        *[("insert", RECEIVER)] * 2,
        ("insert", "group"),
        *[("insert", ADMISSION)] * 2,
        *[("remove", ADMISSION)] * 2,
        ("remove", "group"),
        *[("remove", RECEIVER)] * 2,
    ]


def test_a_silent_rank_is_lost_its_job_fails_and_its_entries_go(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(Policy(heartbeat_timeout_s=3.0)) as (client, service, clock):
            number = await start_job(client)
            for clock.now in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
                service.jobs.tick(clock())
                beat = await client.post(f"/jobs/{number}/workers/0/heartbeat", json={})
                assert beat.status_code == 200
            await settle(lambda: memory_switch.groups == [1] and not memory_switch.in_table(RECEIVER))
            beat = await client.post(f"/jobs/{number}/workers/0/heartbeat")
            silent = "no heartbeat for 3 s: its process is stopped, or its host is down or cut off"
            assert beat.json() == {
                "state": "failed",
                "lost": [{"rank": 1, "reason": silent}],
                "reason": f"rank 1 (10.0.0.2): {silent}",
                "mismatch": None,
                "ask": None,
                "waits": {
                    "0": {"sums": 0, "waited_s": 0.0, "longest_wait": None, "loading_s": 0.0, "rtt_s": 0.0}
                },
                "chunks": None,
                "lost_way": None,
                "lost_why": None,
            }
            assert memory_switch.in_table(ADMISSION) == memory_switch.in_table(RECEIVER) == []
            assert (await client.get("/health")).json()["free_slot_versions"] == 64

    run(body)


def test_leaving_one_after_another_finishes_a_job_and_the_rest_are_told_meanwhile(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            await client.delete(f"/jobs/{number}/workers/1")
            beat = (await client.post(f"/jobs/{number}/workers/0/heartbeat")).json()
            assert beat == {
                "state": "running",
                "lost": [{"rank": 1, "reason": "left"}],
                "reason": None,
                "mismatch": None,
                "ask": None,
                "waits": {},
                "chunks": None,
                "lost_way": None,
                "lost_why": None,
            }
            longest = {"collective": 2, "waited_s": 0.25}
            waits = {"sums": 3, "waited_s": 0.5, "longest_wait": longest, "loading_s": 0.25, "rtt_s": 0.5}
            told = await client.post(f"/jobs/{number}/workers/0/heartbeat", json=waits)
            assert told.json()["waits"] == {"0": waits}
            assert len(memory_switch.in_table(ADMISSION)) == 2
            again = await client.delete(f"/jobs/{number}/workers/1")
            assert again.status_code == 200
            job = (await client.delete(f"/jobs/{number}/workers/0")).json()
            assert (job["state"], job["lost"], job["left"]) == ("finished", [], [0, 1])
            await settle(lambda: memory_switch.groups == [1])

    run(body)


def test_a_rank_that_leaves_with_an_error_fails_the_job_at_once(
    serving: Serving, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation=aggregation)
            await client.delete(f"/jobs/{number}/workers/1", params={"error": "chunk 5: bad checksum"})
            beat = (await client.post(f"/jobs/{number}/workers/0/heartbeat")).json()
            assert beat["lost"] == [{"rank": 1, "reason": "chunk 5: bad checksum"}]
            assert beat["state"] == "failed"

    run(body)


def test_a_long_poll_answers_when_the_job_runs_and_holds_up_nobody(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            await client.post("/jobs/1/workers", json=worker(0))
            polls = [
                asyncio.create_task(client.get("/jobs/1", params={"wait": "running", "timeout_s": 60}))
                for _ in range(20)
            ]
            await asyncio.sleep(0)
            await client.post("/jobs/1/workers", json=worker(1))
            answers = await asyncio.gather(*polls)
            assert {answer.json()["state"] for answer in answers} == {"running"}

    run(body)


def test_a_job_whose_ranks_do_not_all_come_fails_by_itself(
    serving: Serving, aggregation: Aggregation
) -> None:
    async def body() -> None:
        async with serving(Policy(join_timeout_s=5), shared_slots=SHARED_SLOTS) as (client, service, clock):
            await create_job(client, workers=3, aggregation=aggregation)
            await client.post("/jobs/1/workers", json=worker(1))
            clock.now = 5.0
            service.jobs.tick(clock())
            job = (await client.get("/jobs/1")).json()
            assert (job["state"], job["reason"]) == ("failed", "ranks [0, 2] did not join in time")

    run(body)


def test_a_full_pool_is_503_and_says_so(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            granted = []
            while (answer := await client.post("/jobs", json={"workers": 1, "slots": 8})).is_success:
                granted.append(answer.json()["slots"])
            assert sum(granted) == 32
            assert answer.status_code == 503
            assert "the slot pool of switch s1 is full: 0 of 32 slots are free" in answer.json()["detail"]

    run(body)


def test_a_switch_that_refuses_entries_fails_the_job_and_keeps_none_of_them(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            memory_switch.refuse = lambda entity: getattr(entity, "table", None) == ADMISSION
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            for rank in range(2):
                await client.post("/jobs/1/workers", json=worker(rank))
            job = (await client.get("/jobs/1", params={"wait": "running"})).json()
            assert job["state"] == "failed"
            assert "the switch refused the job's entries: the switch is full" in job["reason"]
            await settle(lambda: memory_switch.groups == [1] and not memory_switch.in_table(RECEIVER))

    run(body)


def test_a_request_that_waits_ends_with_its_client(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            job = await create_job(client)
            before = len(asyncio.all_tasks())
            async with asyncio.timeout(10):
                path, wait = f"/jobs/{job['id']}", "wait=running&timeout_s=60"
                await ask_and_leave(service, "GET", path, wait, job["secret"])
                while len(asyncio.all_tasks()) > before:
                    await asyncio.sleep(0.001)

    run(body)


def test_a_request_that_waits_for_the_switch_ends_with_its_client(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    go_on = threading.Event()

    def read_admitted() -> dict[tuple[int, int], Count]:
        assert go_on.wait(20)
        return {}

    async def body() -> None:
        async with serving() as (client, service, _):
            number = await start_job(client)
            memory_switch.read_admitted = read_admitted  # type: ignore[method-assign]
            before = len(asyncio.all_tasks())
            try:
                async with asyncio.timeout(10):
                    for _ in range(20):
                        await ask_and_leave(service, "GET", f"/jobs/{number}", secret=OPERATORS_TOKEN)
                    while (
                        len(asyncio.all_tasks()) > before + 2
                    ):  # two reads: one that has begun, and the next
                        await asyncio.sleep(0.001)
            finally:
                go_on.set()

    run(body)


def test_requests_that_wait_for_the_switch_share_its_answer(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    reads: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def read_admitted() -> dict[tuple[int, int], Count]:
        reads.append(len(reads))
        begun.set()
        assert go_on.wait(10)
        return {(1, rank): Count(len(reads), 100) for rank in range(2)}

    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            memory_switch.read_admitted = read_admitted  # type: ignore[method-assign]
            first = asyncio.create_task(client.get(f"/jobs/{number}"))
            await asyncio.to_thread(begun.wait, 10)
            others = [asyncio.create_task(client.get(f"/jobs/{number}")) for _ in range(50)]
            for _ in range(100):  # turns of the loop, in which they come to wait
                await asyncio.sleep(0)
            go_on.set()
            counts = [(await each).json()["counters"]["0"]["packets"] for each in (first, *others)]
            # What was read before a request came is not its answer.
            assert counts == [1] + [2] * 50

    run(body)


class SlowReads:
    """Reads of a switch that take a time of a clock that nothing else moves."""

    def __init__(self, memory_switch: MemorySwitch, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("inagg_controller.managed.time", SimpleNamespace(monotonic=lambda: self.now))
        for name in ("read_counters", "read_admitted", "read_displaced"):
            self._slow(memory_switch, name)
        self.seconds = dict.fromkeys(("read_counters", "read_admitted", "read_displaced"), 0.0)

    def _slow(self, memory_switch: MemorySwitch, name: str) -> None:
        def read(*arguments: Any) -> dict[Any, Any]:
            self.now += self.seconds[name]
            return {}

        setattr(memory_switch, name, read)


@pytest.fixture
def slow_reads(memory_switch: MemorySwitch, monkeypatch: pytest.MonkeyPatch) -> SlowReads:
    return SlowReads(memory_switch, monkeypatch)


def test_a_long_read_makes_no_read_of_another_kind_wait(serving: Serving, slow_reads: SlowReads) -> None:
    slow_reads.seconds["read_admitted"] = 100.0

    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            await client.get(f"/jobs/{number}")
            async with asyncio.timeout(3):
                assert (await client.get("/counters")).json() == {"s1": {}}

    run(body)


@pytest.mark.parametrize(("seconds", "reads"), [(0.019, 120), (0.1, 12)])
def test_brief_reads_and_few_reads_do_not_rest(
    serving: Serving, slow_reads: SlowReads, seconds: float, reads: int
) -> None:
    slow_reads.seconds["read_admitted"] = seconds

    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            async with asyncio.timeout(3):
                for _ in range(reads):
                    await client.get(f"/jobs/{number}")

    run(body)


def test_many_long_reads_rest_and_writes_go_on_meanwhile(serving: Serving, slow_reads: SlowReads) -> None:
    slow_reads.seconds["read_admitted"] = 1.0

    async def body() -> None:
        async with serving() as (client, service, _):
            number = await start_job(client)
            rested = asyncio.create_task(client.get(f"/jobs/{number}"))
            while rested.done() or slow_reads.now == 0:
                await rested
                rested = asyncio.create_task(client.get(f"/jobs/{number}"))
                await asyncio.wait([rested], timeout=0.2)
            assert slow_reads.now <= 3.0
            other = (await client.post("/jobs", json={"workers": 1, "slots": 4})).json()["id"]
            await client.post(f"/jobs/{other}/workers", json=worker(0))
            await settle(lambda: service.jobs.job(other).state == "running")
            assert not rested.done()
            slow_reads.now += 100.0
            rested.cancel()

    run(body)


def test_counts_are_read_again_after_the_switch_was_away(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, service, _):
            number = await start_job(client)
            memory_switch.away = True
            assert (await client.get(f"/jobs/{number}")).json()["counters"] == {}
            memory_switch.away = False
            await settle(lambda: service.switches["s1"].connected)
            number = await start_job(client)
            memory_switch.admitted = {(number, 0): Count(3, 300)}
            answer = await client.get(f"/jobs/{number}")
            assert answer.json()["counters"] == {"0": {"packets": 3, "bytes": 300}}

    run(body)


def test_leaving_again_or_without_having_joined_leaves_no_line_in_the_log(
    serving: Serving, aggregation: Aggregation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, _, _):
            number = await start_job(client, aggregation=aggregation)
            for rank in (1, 1, 1):
                await client.delete(f"/jobs/{number}/workers/{rank}", params={"error": "Ctrl-C"})
            other = (await create_job(client, aggregation=aggregation))["id"]
            await client.delete(f"/jobs/{other}/workers/1", params={"error": "never there"})

    run(body)
    assert caplog.text.count(" left: Ctrl-C") == 1
    assert "never there" not in caplog.text


@pytest.mark.parametrize(
    ("how", "aggregation"),
    [
        *itertools.product(["left", "ended"], AGGREGATIONS),
        *itertools.product(["lost"], ON_SWITCHES),
    ],
)
def test_every_job_that_fails_has_a_line_in_the_log(
    serving: Serving,
    caplog: pytest.LogCaptureFixture,
    memory_switch: MemorySwitch,
    how: str,
    aggregation: Aggregation,
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, service, _):
            number = await start_job(client, aggregation=aggregation)
            if how == "left":
                await client.delete(f"/jobs/{number}/workers/1", params={"error": "Ctrl-C"})
            elif how == "ended":
                await client.delete(f"/jobs/{number}")
            else:
                memory_switch.restart()
            await settle(lambda: service.jobs.job(number).ended)
            await settle(lambda: f"job {number} failed: " in caplog.text)

    run(body)
    assert caplog.text.count(" failed: ") == 1


def test_a_lease_is_kept_until_the_switch_has_let_go_of_the_entries(
    serving: Serving, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving() as (client, service, clock):
            number = await start_job(client, slots=32)
            memory_switch.refuse_removal = lambda entity: True
            await client.delete(f"/jobs/{number}")
            await settle(lambda: service.jobs.job(number).placement.retry_at is not None)
            assert (await client.post("/jobs", json={"workers": 1, "slots": 2})).status_code == 503
            memory_switch.refuse_removal = lambda entity: False
            clock.now = 1.0
            await settle(lambda: memory_switch.groups == [1])
            assert (await client.post("/jobs", json={"workers": 1, "slots": 2})).status_code == 201

    run(body)


@pytest.mark.parametrize("aggregation", ON_SWITCHES)
def test_a_restarted_switch_fails_running_jobs_keeps_joining_ones_and_is_set_up_again(
    serving: Serving, aggregation: Aggregation, memory_switch: MemorySwitch
) -> None:
    async def body() -> None:
        async with serving(shared_slots=SHARED_SLOTS) as (client, service, _):
            number = await start_job(client, aggregation=aggregation)
            await client.put("/loss", json={"port": 1, "direction": "ingress", "probability": 0.5})
            new = {"workers": 1, "slots": 4, "aggregation": aggregation}
            await client.post("/jobs", json=new)
            memory_switch.away = True
            memory_switch.restart()
            await settle(lambda: not service.switches["s1"].connected)
            failed = (await client.get(f"/jobs/{number}")).json()
            assert failed["state"] == "failed"
            assert failed["reason"].startswith("switch s1 was lost")
            assert (await client.post("/jobs", json=new)).status_code == 503
            assert (await client.get("/counters")).status_code == 503
            servers = (await client.post("/jobs/2/workers", json=worker(0))).json()["servers"]
            for server in servers:
                await client.post(f"/jobs/2/workers/{server['rank']}/serving")
            memory_switch.away = False
            waiting = (await client.get("/jobs/2", params={"wait": "running"})).json()
            assert waiting["state"] == "running"
            assert memory_switch.connections == 2
            assert len(memory_switch.in_table("InaggIngress.ingress_loss.ingress_loss")) == 2
            assert len(memory_switch.in_table("InaggIngress.arp_responder.arp_responder")) == 1
            assert memory_switch.groups == [1, 3]

    run(body)


def test_a_defect_in_a_task_is_told_and_not_survived(
    serving: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed: list[bool] = []

    def fail(now: float) -> None:
        raise ZeroDivisionError

    async def body() -> None:
        async with serving(on_crash=lambda: crashed.append(True)) as (_, service, _):
            monkeypatch.setattr(service.jobs, "tick", fail)
            await settle(lambda: crashed)

    run(body)
    assert "_tick_on has failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_an_ended_job_keeps_its_last_counters(serving: Serving, memory_switch: MemorySwitch) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            number = await start_job(client)
            memory_switch.admitted = {(number, 1): Count(5, 500)}
            await client.delete(f"/jobs/{number}")
            await settle(lambda: memory_switch.groups == [1])
            job = (await client.get(f"/jobs/{number}")).json()
            assert job["counters"] == {"1": {"packets": 5, "bytes": 500}}

    run(body)


@pytest.mark.parametrize("packets", [None, 1, 32])
def test_every_port_marks_beyond_the_queue_that_the_operator_gives(
    serving: Serving, memory_switch: MemorySwitch, packets: int | None
) -> None:
    async def body() -> None:
        async with serving(mark_queue=packets):
            found = {
                dict(entry.match)["port"]: dict(entry.params)["packets"]
                for entry in memory_switch.in_table(QUEUE)
            }
            assert found == ({} if packets is None else dict.fromkeys(STAR.switches[0].ports, packets))

    run(body)
