# SPDX-License-Identifier: Apache-2.0
"""The workers' client and heartbeats, with a transport in memory and with the real API."""

import asyncio
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from inagg.errors import (
    ControllerError,
    ControllerRefusedError,
    ControllerUnreachableError,
    JobError,
    JobRank,
    MismatchError,
)
from inagg.membership import heartbeat
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import Failure, HeartbeatMonitor, RankHeartbeat
from inagg.sums.journal import Journal, Report
from inagg_contract.documents import Heartbeat, LongestWait, Lost, Mismatch, PacketCount, RankTraffic, Waits
from tests.controller.heartbeats import Rank, make_heartbeat
from tests.controller.launching import Launcher, read_line
from tests.controller.serving import OPERATORS_TOKEN, Serving
from tests.waiting import wait_until

URL = "http://10.0.0.254:9560"
RUNNING = Heartbeat(state="running", lost=(), reason=None)


def answering(*answers: Exception | tuple[int, object]) -> tuple[ControlClient, list[httpx.Request]]:
    """A client whose transport gives these answers in turn: exceptions, or (status, document)."""
    waiting = list(answers)
    requests = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], json=answer[1])

    client = ControlClient(URL, timeout_s=0.3, transport=httpx.MockTransport(handle))
    return client, requests


WELL: dict[str, object] = {
    "state": "running",
    "lost": [],
    "reason": None,
    "mismatch": None,
    "ask": None,
    "waits": {},
}
BEAT = (200, WELL)


class Api:
    """The real API on its own thread. client: the operator's."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: self.loop.run_until_complete(self.main()))
        self.thread.start()
        assert self.ready.wait(10)
        self.client = self.connect(token=OPERATORS_TOKEN)

    def connect(self, token: str | None = None) -> ControlClient:
        return ControlClient(URL, token=token, transport=httpx.MockTransport(self.forward))

    async def main(self) -> None:
        self.end = asyncio.Event()
        async with self._serving() as (self.http, self.service, self.clock):
            self.ready.set()
            await self.end.wait()

    def forward(self, request: httpx.Request) -> httpx.Response:
        secret = {"Authorization": request.headers.get("Authorization", "")}
        sent = self.http.request(
            request.method,
            str(request.url),
            content=request.content,
            headers={**request.headers, **secret},
        )
        answer = asyncio.run_coroutine_threadsafe(sent, self.loop).result(10)
        return httpx.Response(answer.status_code, content=answer.content)

    def close(self) -> None:
        self.client.close()
        self.loop.call_soon_threadsafe(self.end.set)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture
def api(serving: Serving) -> Iterator[Api]:
    api = Api(serving)
    yield api
    api.close()


def register_both(client: ControlClient, job: int) -> None:
    for rank in range(2):
        client.register(job, rank, ip=f"10.0.0.{rank + 1}", mac=f"02:00:00:00:00:0{rank + 1}", udp_port=4000)


def test_the_client_speaks_the_real_api_from_creation_to_the_end(api: Api) -> None:
    client = api.client
    assert client.health().switch == "connected"
    job = client.create_job(2, 8, name="digits")
    assert (job.state, job.slots, job.words, job.name) == ("joining", 8, 4, "digits")
    assert job.aggregator is not None
    assert (job.aggregator.ip, job.aggregator.udp_port) == ("10.0.0.253", 18753)
    register_both(client, job.id)
    running = client.wait_running(job.id, timeout_s=5)
    assert (running.registered, running.policy.heartbeat_timeout_s) == ((0, 1), 8.0)
    assert client.heartbeat(job.id, 0).state == "running"
    client.set_loss(1, "egress", 0.5, "aggregation")
    client.clear_loss()
    assert client.counters()["s1"]["started"] == {
        1: PacketCount(packets=1, bytes=100),
        2: PacketCount(packets=2, bytes=200),
    }
    assert client.leave(job.id, 1).left == (1,)
    assert client.heartbeat(job.id, 0).lost == (Lost(rank=1, reason="left"),)
    assert client.leave(job.id, 0).state == "finished"
    assert client.end_job(job.id).state == "finished"


def test_a_job_of_a_class_that_the_controller_does_not_have_is_refused(api: Api) -> None:
    with pytest.raises(
        ControllerRefusedError, match="job_class is batch; the classes of this controller are def"
    ):
        api.client.create_job(2, 8, job_class="batch")
    assert api.client.create_job(2, 8).job_class == "default"


def test_waiting_for_a_job_whose_ranks_do_not_come_names_them(api: Api) -> None:
    job = api.client.create_job(2, 8)
    api.client.register(job.id, 1, ip="10.0.0.2", mac="02:00:00:00:00:02", udp_port=1)
    with pytest.raises(JobError, match=r"job 1: ranks \[0\] have not registered within 0.02 s"):
        api.client.wait_running(job.id, timeout_s=0.02)


def test_waiting_for_a_job_that_the_switch_does_not_take_says_so(api: Api) -> None:
    job = api.client.create_job(2, 8)
    api.loop.call_soon_threadsafe(api.service.jobs.switches.lost, "s1", 0.0)
    register_both(api.client, job.id)
    with pytest.raises(JobError, match=r"job 1: the switch has not taken the job within 0.02 s"):
        api.client.wait_running(job.id, timeout_s=0.02)


def test_waiting_for_a_job_that_fails_says_why(api: Api) -> None:
    job = api.client.create_job(2, 8)
    api.client.end_job(job.id)
    with pytest.raises(JobError, match="job 1: failed: ended on request"):
        api.client.wait_running(job.id, timeout_s=5)


def test_a_refusal_carries_status_and_detail(api: Api) -> None:
    with pytest.raises(
        ControllerRefusedError, match=r"GET /jobs/9: Unknown job \(404\): there is no job 9"
    ) as e:
        api.client.status(9)
    assert (e.value.status, e.value.url) == (404, URL)


def test_a_request_that_may_be_repeated_is() -> None:
    client, requests = answering(httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), (200, {}))
    client.clear_loss()
    assert len(requests) == 3


def test_a_heartbeat_is_not_repeated_because_the_next_one_follows_soon() -> None:
    client, requests = answering(httpx.ConnectError("refused"), BEAT)
    with pytest.raises(ControllerUnreachableError):
        client.heartbeat(1, 0)
    assert len(requests) == 1


def test_no_answer_in_time_is_an_error_that_names_the_controller() -> None:
    client, _ = answering(httpx.ConnectError("Connection refused"))
    with pytest.raises(ControllerUnreachableError, match=f"no answer from the controller at {URL}") as e:
        client.heartbeat(1, 0)
    assert isinstance(e.value, ConnectionError)


def test_a_creation_is_repeated_with_the_same_key() -> None:
    client, requests = answering(
        httpx.ConnectError("refused"),
        httpx.RemoteProtocolError("closed"),
        (503, {"title": "Unavailable", "detail": "full"}),
    )
    for _ in range(2):
        with pytest.raises(ControllerRefusedError, match="full"):
            client.create_job(2, 8)
    first, again, third, another = (request.headers["Idempotency-Key"] for request in requests)
    assert first == again == third != another


def test_a_starting_group_waits_for_a_controller_that_is_busy(launch: Launcher, free_port: int) -> None:
    """Its process is stopped here: the kernel takes the requests."""
    process = launch()
    assert read_line(process) == "ready"
    checks = []

    def check() -> None:
        checks.append(time.monotonic())
        if len(checks) == 2:
            raise InterruptedError

    with (
        ControlClient(f"http://127.0.0.1:{free_port}", timeout_s=0.2, setup_s=60.0) as client,
        ThreadPoolExecutor() as pool,
    ):
        job = client.create_job(2, 4)
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(InterruptedError):  # so it looks after the other ranks meanwhile
                client.wait_running(job.id, check=check)
            health, created = pool.submit(client.health), pool.submit(client.create_job, 2, 4)
            with pytest.raises(TimeoutError):
                health.result(0.6)
            assert not created.done()
        finally:
            process.send_signal(signal.SIGCONT)
        assert health.result(20).switch == "connected"
        assert created.result(20).id == job.id + 1


def test_a_starting_group_waits_for_a_controller_that_starts_again(
    launch: Launcher, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    with (
        ControlClient(url, timeout_s=0.2, setup_s=60.0, absent_s=60.0) as client,
        ThreadPoolExecutor() as pool,
    ):
        created = pool.submit(client.create_job, 2, 4)
        wait_until(lambda: "no controller takes connections" in caplog.text, "a warning", 10)
        assert not created.done()
        process = launch()
        assert read_line(process) == "ready"
        job = created.result(20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        waiting = pool.submit(client.wait_running, job.id, timeout_s=1.0)
        assert read_line(launch()) == "ready"
        with pytest.raises(JobError, match=r"ranks \[0, 1\] have not registered within 1 s"):
            waiting.result(20)


def test_a_starting_group_does_not_wait_long_for_a_controller_that_is_not_there(free_port: int) -> None:
    with ControlClient(f"http://127.0.0.1:{free_port}", timeout_s=0.2, setup_s=3600.0) as client:
        for ask in (client.health, lambda: client.create_job(2, 4), lambda: client.wait_running(1)):
            with pytest.raises(ControllerUnreachableError, match="refused"):
                ask()


@pytest.mark.parametrize(
    "document", [{}, [], None, {"state": "running"}, {"state": 1, "lost": 3, "reason": None}]
)
def test_an_answer_of_another_kind_is_an_error_of_the_controller(document: object) -> None:
    client, _ = answering((200, document))
    with pytest.raises(ControllerError, match="Is it an inagg-controller of the same version"):
        client.heartbeat(1, 0)


def test_a_refusal_that_is_not_json_is_told_as_it_is() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(502, text="<html>bad gateway"))
    with pytest.raises(ControllerRefusedError, match=r"Bad Gateway \(502\): <html>bad gateway"):
        ControlClient(URL, transport=transport).health()


def test_requests_to_the_controller_are_not_logged_and_the_users_own_are(
    launch: Launcher, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_line(launch()) == "ready"
    url = f"http://127.0.0.1:{free_port}"
    with caplog.at_level(logging.INFO):
        with ControlClient(url) as client:
            client.health()
        assert [record.name for record in caplog.records] == []
        httpx.get(f"{url}/health", trust_env=False)
    assert [record.name for record in caplog.records] == ["httpx"]


def test_a_client_that_has_been_closed_sends_nothing() -> None:
    client, requests = answering(BEAT)
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.heartbeat(1, 0)
    assert requests == []


def test_an_answer_that_cannot_be_decoded_is_none() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"garbage"))

    client = ControlClient(URL, timeout_s=0.01, transport=httpx.MockTransport(handle))
    with pytest.raises(ControllerUnreachableError):
        client.health()


def test_calls_that_are_too_many_for_a_heartbeat_count_as_forgotten(launch: Launcher, free_port: int) -> None:
    assert read_line(launch()) == "ready"
    calls = [(number, f"{number:999}") for number in range(4096)]
    with ControlClient(f"http://127.0.0.1:{free_port}") as client:
        job = client.create_job(2, 4)
        client.register(job.id, 0, ip="10.0.0.1", mac="02:00:00:00:00:01", udp_port=4000)
        report = Report(begun=4096, asked=(1, 4096), calls=calls)
        assert client.heartbeat(job.id, 0, report).state == "joining"


def monitor(now: float = 0.0) -> HeartbeatMonitor:
    return HeartbeatMonitor(timeout_s=3.0, now=now)


def test_answers_keep_a_rank_going() -> None:
    watch = monitor()
    assert [watch.answered(RUNNING, now) for now in (1.0, 9.0)] == [None, None]


def test_a_failed_job_is_a_failure_at_once_and_names_the_lost() -> None:
    lost = (Lost(rank=2, reason="no heartbeat for 3 s"),)
    beat = Heartbeat(state="failed", lost=lost, reason="rank 2: no heartbeat for 3 s")
    assert monitor().answered(beat, 0.1) == Failure("rank 2: no heartbeat for 3 s", (2,))


def test_a_restarted_switch_is_nobodys_fault() -> None:
    assert monitor().answered(Heartbeat(state="failed", lost=(), reason="switch restarted"), 0.1) == Failure(
        "switch restarted", ()
    )


def test_silence_is_a_failure_only_after_the_timeout_since_the_last_answer() -> None:
    watch = monitor()
    error = ControllerUnreachableError(url=URL, request="POST", cause="refused")
    watch.answered(RUNNING, 5.0)
    assert watch.silent(error, 7.9) is None
    failure = watch.silent(error, 8.0)
    assert failure is not None
    assert failure.reason.startswith("no answer to heartbeats for 3.0 s: no answer from the controller at")
    assert failure.lost_ranks == ()


@pytest.mark.parametrize(
    ("down", "which"),
    [
        (
            ("leaf2 (10.0.255.2)",),
            "the switch leaf2 (10.0.255.2), or the way there, is down: it answers no pings",
        ),
        (
            ("spine1 (10.0.255.3)", "leaf2 (10.0.255.2)"),
            "one of the switches spine1 (10.0.255.3), leaf2 (10.0.255.2), or the way there, is down: they answer no "
            "pings",
        ),
    ],
)
def test_a_switch_that_is_down_ends_the_wait_for_a_silent_controller(
    down: tuple[str, ...], which: str
) -> None:
    watch = monitor()
    error = ControllerUnreachableError(url=URL, request="POST", cause="timed out")
    watch.answered(RUNNING, 5.0)
    assert watch.silent(error, 7.5, down) == Failure(
        f"{which}, and the controller at {URL} has not answered for 2.5 s", ()
    )


def test_a_rank_that_leaves_last_is_not_disturbed_and_one_left_behind_is_told_in_the_end() -> None:
    watch = monitor()
    left = Heartbeat(state="running", lost=(Lost(rank=1, reason="left"),), reason=None)
    assert watch.answered(left, 1.0) is None
    assert watch.answered(left, 3.9) is None
    assert watch.answered(left, 4.0) == Failure("rank 1: left", (1,))


@pytest.mark.parametrize(("status", "fails"), [(404, True), (409, True), (500, False), (503, False)])
def test_a_controller_that_does_not_know_the_rank_is_a_failure_at_once(status: int, fails: bool) -> None:
    error = ControllerRefusedError(url=URL, request="POST", status=status, title="", detail="no job 1")
    assert (monitor().refused(error, 0.1) is not None) == fails


def beating(
    client: ControlClient, failed: list[Failure], rank: int = 0, timeout_s: float = 0.2
) -> RankHeartbeat:
    thread = make_heartbeat(client, Rank(failed.append), 0.01, timeout_s, JobRank(1, "", rank))
    thread.start()
    return thread


def heartbeat_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "inagg-heartbeat"]


def test_the_thread_beats_until_stopped_and_stops_at_once() -> None:
    client, requests = answering(BEAT)
    failed: list[Failure] = []
    thread = beating(client, failed)
    wait_until(lambda: len(requests) >= 3, "three heartbeats")
    thread.stop()
    assert not heartbeat_threads()
    assert failed == []
    thread.stop()


def test_a_beat_that_gets_no_answer_is_tried_again_long_before_the_timeout() -> None:
    answered = []

    def handle(request: httpx.Request) -> httpx.Response:
        answered.append(request)
        if len(answered) == 1:
            raise httpx.ReadTimeout("packets were lost", request=request)
        return httpx.Response(200, json=BEAT[1])

    failed: list[Failure] = []
    client = ControlClient(URL, transport=httpx.MockTransport(handle))
    thread = beating(client, failed)
    wait_until(lambda: len(answered) > 5, "five heartbeats were answered")
    assert answered[0].extensions["timeout"]["read"] <= 0.2 / 3
    thread.stop()
    assert failed == []


def test_the_thread_reports_a_failure_once_and_ends() -> None:
    lost = [{"rank": 1, "reason": "no heartbeat for 3 s"}]
    client, _ = answering(
        BEAT, (200, {**WELL, "state": "failed", "lost": lost, "reason": "rank 1: no heartbeat for 3 s"})
    )
    failed: list[Failure] = []
    thread = beating(client, failed)
    wait_until(lambda: failed, "a failure is reported")
    wait_until(lambda: not heartbeat_threads(), "its thread has ended")
    thread.stop()
    assert failed == [Failure("rank 1: no heartbeat for 3 s", (1,))]


def test_a_rank_does_not_count_itself_among_the_lost() -> None:
    lost = [{"rank": 0, "reason": "no heartbeat for 3 s"}]
    gone = {**WELL, "state": "failed", "lost": lost, "reason": "rank 0: no heartbeat for 3 s"}
    client, _ = answering((200, gone))
    failed: list[Failure] = []
    beating(client, failed)
    wait_until(lambda: failed, "a failure is reported")
    assert failed == [Failure("this rank was given up: rank 0: no heartbeat for 3 s", ())]


def test_the_thread_reports_a_controller_that_is_gone() -> None:
    client, _ = answering(httpx.ConnectError("refused"))
    failed: list[Failure] = []
    beating(client, failed)
    wait_until(lambda: failed, "a failure is reported")
    assert failed[0].reason.startswith("no answer to heartbeats for")
    assert failed[0].lost_ranks == ()


def test_switches_are_looked_for_only_when_the_controller_does_not_answer() -> None:
    client, requests = answering(BEAT, (503, {"title": "Unavailable"}), httpx.ReadTimeout("slow"), BEAT)
    failed: list[Failure] = []
    looked_after: list[int] = []

    def down(_stopping: threading.Event) -> tuple[str, ...]:
        looked_after.append(len(requests))
        return ("leaf2 (10.0.255.2)",)

    thread = make_heartbeat(client, Rank(failed.append, down), 0.01, 600.0)
    thread.start()
    wait_until(lambda: failed, "a failure is reported")
    thread.stop()
    assert looked_after == [3]
    assert failed[0].reason.startswith("the switch leaf2 (10.0.255.2), or the way there, is down")


def test_the_silence_of_a_controller_is_logged_once_and_its_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "_SILENCE_S", 0.1)
    reachable = threading.Event()

    def handle(request: httpx.Request) -> httpx.Response:
        if not reachable.is_set():
            raise httpx.ConnectError("refused")
        return httpx.Response(BEAT[0], json=BEAT[1])

    client = ControlClient(URL, transport=httpx.MockTransport(handle))
    failed: list[Failure] = []
    thread = make_heartbeat(client, Rank(failed.append), 0.01, 600.0, JobRank(1, "train.py", 0))
    thread.start()
    wait_until(lambda: len(caplog.messages) == 1, "the silence is logged")
    told_at = time.monotonic()
    wait_until(lambda: time.monotonic() > told_at + 0.3, "it is not logged again")
    reachable.set()
    wait_until(lambda: len(caplog.messages) == 2, "the return is logged")
    thread.stop()
    silent, again = caplog.messages
    assert silent.startswith(
        f"job 1 (train.py), rank 0: the controller at {URL} has not answered for 0 s. Sums go on; after 600 s this "
        "rank gives up."
    )
    assert again.startswith("job 1 (train.py), rank 0: the controller answers again, after ")
    assert failed == []


@pytest.mark.parametrize(
    ("pause", "accused", "seen"),
    [
        ("", "rank 1 (h2, 10.0.0.2)", None),
        ("was stopped", "rank 1 (h2, 10.0.0.2)", "this rank was given up: its process was stopped"),
        ("was stopped", "ranks 3, 1 (h2, 10.0.0.2)", "this rank was given up: its process was stopped"),
        ("was stopped", "rank 2 (h1, 10.0.0.1)", None),
    ],
)
def test_a_rank_that_was_stopped_is_not_told_that_it_has_lost_those_that_gave_it_up(
    pause: str, accused: str, seen: str | None
) -> None:
    failure = Failure(f"rank 0: it has lost {accused}: its server has not answered rank 0", (0,))
    assert failure.at(1, pause) == (failure if seen is None else Failure(seen, ()))


@pytest.mark.parametrize(
    ("lost", "pause", "seen"),
    [
        ((1,), "", Failure("this rank was given up: rank 1: no heartbeat", ())),
        ((0,), "was stopped", Failure("rank 1: no heartbeat", (0,))),
        ((0, 1), "", Failure("rank 1: no heartbeat", (0,))),
        ((1,), "was stopped", Failure("this rank was given up: its process was stopped", ())),
        ((0, 1), "was stopped", Failure("this rank was given up: its process was stopped", ())),
        ((), "was stopped", Failure("this process was stopped: rank 1: no heartbeat", ())),
    ],
)
def test_a_rank_sees_a_failure_from_where_it_is(lost: tuple[int, ...], pause: str, seen: Failure) -> None:
    assert Failure("rank 1: no heartbeat", lost).at(1, pause) == seen


def test_the_log_and_the_error_name_a_lost_rank_once_and_in_the_same_words() -> None:
    places = {1: "h2, 10.0.0.2"}
    failure = Failure("rank 1 (h2, 10.0.0.2): no heartbeat for 8 s", (1,), places)
    assert str(failure) == "lost rank 1 (h2, 10.0.0.2): no heartbeat for 8 s"
    assert str(failure.error(JobRank(3, "train.py", 0), None)).startswith(
        f"job 3 (train.py), rank 0: {failure}; nothing was outstanding."
    )


def test_the_thread_tells_what_it_is_asked_and_learns_of_a_mismatch() -> None:
    reports = []
    calls = [
        {"text": "barrier()", "ranks": [0, 2]},
        {"text": "gather(float32[3], dst=0)", "ranks": [1]},
    ]

    def handle(request: httpx.Request) -> httpx.Response:
        reports.append(json.loads(request.content))
        if "calls" not in reports[-1]:
            return httpx.Response(200, json={**WELL, "ask": {"first": 2, "last": 3}})
        lost = {"state": "failed", "reason": "the ranks call different collectives: ..."}
        return httpx.Response(200, json={**WELL, **lost, "mismatch": {"number": 3, "calls": calls}})

    longest_wait = LongestWait(collective=3, waited_s=0.125)
    waits = Waits(sums=7, waited_s=0.25, longest_wait=longest_wait, loading_s=0.5, rtt_s=0.75)
    journal = Journal()
    digests = [journal.begin(text) for text in ("barrier()", "barrier()", "barrier()", "later()")]
    failed: list[Failure] = []
    client = ControlClient(URL, transport=httpx.MockTransport(handle))
    # The interval is endless, so the answer to the question is sent at once.
    thread = make_heartbeat(client, Rank(failed.append, waits=waits), 1e6, 1e6, journal=journal)
    thread.confer(10.0)
    longest = {"collective": 3, "waited_s": 0.125}
    late = {"loading_s": 0.5, "rtt_s": 0.75}
    assert reports[0] == {"begun": 4, "sums": 7, "waited_s": 0.25, "longest_wait": longest, **late}
    assert reports[1] == {
        **reports[0],
        "asked": {"first": 2, "last": 3},
        "calls": [{"digest": digest, "text": "barrier()"} for digest in digests[1:3]],
    }
    assert failed[0].mismatch == Mismatch.model_validate({"number": 3, "calls": calls})
    error = failed[0].error(JobRank(1, "", 0), None)
    assert isinstance(error, MismatchError)
    assert error.calls == {0: "barrier()", 2: "barrier()", 1: "gather(float32[3], dst=0)"}


def test_a_heartbeat_tells_what_the_rank_has_sent() -> None:
    reports = []

    def handle(request: httpx.Request) -> httpx.Response:
        reports.append(json.loads(request.content))
        return httpx.Response(200, json=WELL)

    traffic = {"packets": 9, "retransmits": 2, "chunks": 7, "window": 4, "window_limit": 8, "rtt_s": 0.5}
    client = ControlClient(URL, transport=httpx.MockTransport(handle))
    heartbeat = make_heartbeat(
        client, Rank(lambda _: None, sent=RankTraffic.model_validate(traffic)), 1e6, 1e6
    )
    heartbeat.beat_once_more(1.0)
    assert [each["traffic"] for each in reports] == [traffic]


def test_stopping_from_the_failure_callback_does_not_wait_for_itself() -> None:
    client, _ = answering((404, {"title": "Unknown job", "detail": "there is no job 1"}))
    stopped = threading.Event()

    def on_failure(failure: Failure) -> None:
        thread.stop()
        stopped.set()

    thread = make_heartbeat(client, Rank(on_failure), 0.01, 1.0)
    thread.start()
    assert stopped.wait(10)
    wait_until(lambda: not heartbeat_threads(), "its thread has ended")


def test_stopping_a_thread_that_was_never_started_is_harmless() -> None:
    client, _ = answering(BEAT)
    make_heartbeat(client, Rank(lambda failure: None), 0.01, 1.0).stop()
