# SPDX-License-Identifier: Apache-2.0
"""The ranks of a process in several jobs beat together: one thread, one request, an answer for each."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from inagg.errors import ControllerForbiddenError, JobRank
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import Failure, RankHeartbeat
from inagg.sums.journal import Report
from inagg_contract.documents import MOST_BEATS
from tests.controller.heartbeats import Rank, make_heartbeat
from tests.controller.serving import OPERATORS_TOKEN, Serving, run, worker
from tests.waiting import wait_until

URL = "http://10.0.0.254:9560"
WELL: dict[str, Any] = {"state": "running", "lost": [], "reason": None}
GONE = {"type": "urn:inagg:unknown-job", "title": "Unknown job", "status": 404, "detail": "there is no job 2"}


class Controller:
    """Answers heartbeats, and keeps the requests: the path, and the jobs. outcomes: by job."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[int]]] = []
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.reachable = True
        self.refuses = False  # all that comes together

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        path = request.url.path
        jobs = [beat["job"] for beat in body["beats"]] if path == "/heartbeats" else [int(path.split("/")[2])]
        self.requests.append((path, jobs))
        if not self.reachable:
            raise httpx.ConnectError("refused")
        if self.refuses and path == "/heartbeats":
            return httpx.Response(422, json={"title": "Invalid request", "detail": "beats.1.beat.sums"})
        found = [self.outcomes.get(job, {"heartbeat": WELL}) for job in jobs]
        return httpx.Response(
            200, json={"answers": found} if path == "/heartbeats" else found[0]["heartbeat"]
        )

    def together(self, count: int) -> bool:
        """Whether a request had the beats of `count` ranks."""
        return any(len(jobs) == count for _, jobs in self.requests)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    found = Controller()
    monkeypatch.setattr(httpx, "HTTPTransport", lambda **_: httpx.MockTransport(found.handle))
    return found


class Ranks:
    """A rank in each of the jobs from 1."""

    def __init__(self, count: int, down: Callable[[threading.Event], Sequence[str]] = lambda _: ()) -> None:
        self.failures: dict[int, Failure] = {}
        self.heartbeats = [self._rank(job, down) for job in range(1, count + 1)]

    def _rank(self, job: int, down: Callable[[threading.Event], Sequence[str]]) -> RankHeartbeat:
        client = ControlClient(URL)
        client.learn_secret(job, f"secret-{job}")

        def failed(failure: Failure) -> None:
            self.failures[job] = failure

        found = make_heartbeat(client, Rank(failed, down), 0.01, 0.3, JobRank(job, "", 0))
        found.start()
        return found

    def stop(self) -> None:
        for heartbeat in self.heartbeats:
            heartbeat.stop()


@pytest.fixture
def ranks() -> Iterator[list[Ranks]]:
    started: list[Ranks] = []
    yield started
    for each in started:
        each.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "inagg-heartbeat"]


def test_the_ranks_of_a_process_share_a_thread_and_a_request(
    controller: Controller, ranks: list[Ranks]
) -> None:
    ranks.append(Ranks(3))
    wait_until(lambda: controller.together(3), "they beat together")
    assert len([thread for thread in threading.enumerate() if thread.name == "inagg-heartbeat"]) == 1
    ranks[0].heartbeats[1].stop()
    controller.requests.clear()
    wait_until(lambda: len(controller.requests) > 3, "the others go on")
    assert all(jobs == [1, 3] for _, jobs in controller.requests[1:])


def test_a_refusal_concerns_its_job_only(controller: Controller, ranks: list[Ranks]) -> None:
    controller.outcomes[2] = {"problem": GONE}
    ranks.append(Ranks(3))
    wait_until(lambda: 2 in ranks[0].failures, "job 2 is gone")
    controller.requests.clear()
    wait_until(lambda: len(controller.requests) > 3, "the others go on")
    assert ranks[0].failures == {2: Failure("there is no job 2", ())}
    assert all(jobs == [1, 3] for _, jobs in controller.requests[1:])


def test_a_failed_job_is_a_failure_of_its_rank_only(controller: Controller, ranks: list[Ranks]) -> None:
    lost = [{"rank": 1, "reason": "left"}]
    failed = WELL | {"state": "failed", "reason": "rank 1: left", "lost": lost}
    ranks.append(Ranks(3))
    controller.outcomes[3] = {"heartbeat": failed}
    wait_until(lambda: 3 in ranks[0].failures, "job 3 has failed")
    assert ranks[0].failures == {3: Failure("rank 1: left", (1,))}


def test_an_owner_that_raises_ends_its_job_only(
    controller: Controller, ranks: list[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks.append(Ranks(3))

    def broken() -> None:
        raise OSError("out of descriptors")

    monkeypatch.setattr(ranks[0].heartbeats[0]._owner, "before_beat", broken)
    wait_until(lambda: 1 in ranks[0].failures, "job 1 has failed")
    assert "heartbeats ended: OSError: out of descriptors" in ranks[0].failures[1].reason
    controller.requests.clear()
    wait_until(lambda: len(controller.requests) > 3, "the others go on")
    assert ranks[0].failures.keys() == {1}


def test_without_a_controller_all_fail_after_their_timeout_and_switches_are_looked_for_once_a_beat(
    controller: Controller, ranks: list[Ranks]
) -> None:
    looked: list[int] = []

    def down(_stopping: threading.Event) -> Sequence[str]:
        looked.append(len(controller.requests))
        return ()

    ranks.append(Ranks(3, down))
    wait_until(lambda: controller.together(3), "they beat together")
    controller.reachable = False
    wait_until(lambda: len(ranks[0].failures) == 3, "all fail")
    assert len(looked) == len(set(looked))
    assert all("no answer to heartbeats for" in failure.reason for failure in ranks[0].failures.values())


def test_if_the_controller_refuses_the_request_each_rank_beats_alone(
    controller: Controller, ranks: list[Ranks]
) -> None:
    controller.refuses = True
    ranks.append(Ranks(2))
    wait_until(lambda: controller.together(2), "they beat together")
    controller.requests.clear()
    wait_until(lambda: len(controller.requests) > 6, "they go on")
    assert {jobs[0] for _, jobs in controller.requests if len(jobs) == 1} == {1, 2}
    assert ranks[0].failures == {}


def test_texts_of_calls_are_sent_alone(controller: Controller, ranks: list[Ranks]) -> None:
    ranks.append(Ranks(2))
    wait_until(lambda: controller.together(2), "they beat together")
    journal = ranks[0].heartbeats[0]._journal
    journal.begin("barrier()")
    controller.outcomes[1] = {"heartbeat": WELL | {"ask": {"first": 1, "last": 1}}}
    wait_until(lambda: ("/jobs/1/workers/0/heartbeat", [1]) in controller.requests, "job 1 beats alone")


def test_many_beats_are_several_requests(controller: Controller) -> None:
    beats = [(job, 0, "secret", Report(0)) for job in range(1, MOST_BEATS + 11)]
    with ControlClient(URL) as client:
        assert len(client.heartbeats(beats)) == MOST_BEATS + 10
    assert [len(jobs) for _, jobs in controller.requests] == [MOST_BEATS, 10]


# --- the controller


def test_each_beat_needs_the_secret_of_its_job(serving: Serving) -> None:
    async def body() -> None:
        async with serving() as (client, service, clock):
            secrets = []
            for job in (1, 2):
                created = await client.post("/jobs", json={"workers": 2, "slots": 4})
                secrets.append(created.json()["secret"])
                for rank in range(2):
                    await client.post(f"/jobs/{job}/workers", json=worker(rank))
            clock.now = 2.0

            def beat(job: int, rank: int, secret: str) -> dict[str, Any]:
                return {"job": job, "rank": rank, "secret": secret, "beat": {"sums": 3}}

            beats = [beat(1, 0, secrets[0]), beat(2, 1, secrets[0]), beat(9, 0, secrets[1])]
            beats += [beat(2, 5, secrets[1]), beat(2, 0, OPERATORS_TOKEN), beat(2, 1, "")]
            answer = await client.post("/heartbeats", json={"beats": beats}, headers={"Authorization": ""})
            assert answer.status_code == 200
            found = answer.json()["answers"]
            waits = {"sums": 3, "waited_s": 0.0, "longest_wait": None, "loading_s": 0.0, "rtt_s": 0.0}
            assert [each["heartbeat"] and each["heartbeat"]["waits"] for each in found] == [
                {"0": waits},
                *[None] * 3,
                {"0": waits},
                None,
            ]
            problems = [each["problem"] and each["problem"]["status"] for each in found]
            assert problems == [None, 403, 404, 422, None, 403]
            for number in (1, 2):
                seen = service.jobs.job(
                    number
                ).liveness.last_seen  # a tick may have added the time that was skipped to both
                assert seen[0] > seen[1]

    run(body)


@pytest.mark.parametrize(
    ("asked", "calls"), [(None, 1), ({"first": 3, "last": 3}, 2), ({"first": 1, "last": 5000}, 4097)]
)
def test_a_rank_tells_no_more_calls_than_it_was_asked_for(
    serving: Serving, asked: dict[str, int] | None, calls: int
) -> None:
    async def body() -> None:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            await client.post("/jobs/1/workers", json=worker(0))
            beat = {"begun": 5000, "asked": asked, "calls": [{"digest": 1, "text": "barrier()"}] * calls}
            assert (await client.post("/jobs/1/workers/0/heartbeat", json=beat)).status_code == 422
            beat["calls"] = []
            assert (await client.post("/jobs/1/workers/0/heartbeat", json=beat)).status_code == 200

    run(body)


def test_the_client_reads_refusals_as_errors(controller: Controller) -> None:
    controller.outcomes[1] = {"problem": GONE | {"status": 403, "type": "urn:inagg:forbidden"}}
    with ControlClient(URL) as client:
        refused, _ = client.heartbeats([(1, 0, "wrong", Report(0)), (2, 0, "right", Report(0))])
    assert isinstance(refused, ControllerForbiddenError)
    assert (refused.status, refused.kind, refused.detail) == (403, "forbidden", "there is no job 2")
