# SPDX-License-Identifier: Apache-2.0
"""inagg-server's agent, with a real server and a controller in memory that answers as a script says."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from inagg._core import Server
from inagg.errors import ConfigurationError, ControllerRefusedError, InaggError
from inagg.membership.control import ControlClient
from inagg_server.agent import ServerAgent
from inagg_server.cli import _memory
from tests.broken_sockets import COMPLAINT, break_socket
from tests.waiting import wait_until

Step = tuple[str, int, object]  # request, status and document of its answer

REGISTER, BEAT, REMOVE = "POST /servers", "POST /servers/a/heartbeat", "DELETE /servers/a"
ORDER = {
    "id": 1,
    "epoch": 7,
    "slots": 4,
    "words": 1,
    "index": 0,
    "servers": 1,
    "workers": [{"rank": 0, "ip": "127.0.0.1", "udp_port": 4000}],
}
REGISTERED: Step = (
    REGISTER,
    201,
    {"instance": 1, "heartbeat_interval_s": 1.0, "heartbeat_timeout_s": 5.0},
)
ORDERED: Step = (BEAT, 200, {"jobs": [ORDER]})
STOPPED: Step = (REMOVE, 200, {})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("inagg_server.agent._PAUSE_S", 0.001)
    made = Server(local=("127.0.0.1", 0), memory=1 << 20)
    yield made
    made.close()


def problem(request: str, status: int) -> Step:
    return request, status, {"title": "Unavailable", "detail": "try again in a moment"}


def run(
    server: Server,
    *script: Step,
    beats: list[dict[str, Any]] | None = None,
    before: Callable[[int], None] = lambda _: None,
    stop_at: int | None = None,
) -> list[list[int]]:
    """Runs the agent until the script ends. Returns the jobs that the server has at each request.

    beats: gets the heartbeats. before: called before each answer, with the number of those that follow. stop_at: the
    agent is stopped with the answer that so many follow; None: when it is to leave.
    """
    stopping, steps = threading.Event(), list(script)
    served = []

    def answer(request: httpx.Request) -> httpx.Response:
        if server.failure is None:
            served.append(list(server.stats()["jobs"]))
        before(len(steps) - 1)
        expected, status, document = steps.pop(0)
        assert f"{request.method} {request.url.path}" == expected
        if expected == BEAT and beats is not None:
            beats.append(json.loads(request.content))
        if not steps or steps[0] == STOPPED or len(steps) == stop_at:
            stopping.set()
        return httpx.Response(status, json=document)

    client = ControlClient("http://10.0.0.254:9560", transport=httpx.MockTransport(answer))
    try:
        ServerAgent(client, server, "a", 1 << 20).run(stopping)
    finally:
        assert steps == []
    return served


def test_a_server_that_gets_no_good_answer_for_a_while_serves_on(server: Server) -> None:
    bad = [problem(BEAT, status) for status in (503, 500, 502)]
    not_json: Step = (BEAT, 200, "not orders")
    served = run(server, REGISTERED, ORDERED, *bad, not_json, ORDERED, STOPPED)
    assert served == [[], [], *[[1]] * 6]


def test_a_server_that_is_unknown_drops_its_jobs_and_registers_until_it_is_known(server: Server) -> None:
    script = [REGISTERED, ORDERED, problem(BEAT, 404), *[problem(REGISTER, 503)] * 3, REGISTERED]
    served = run(server, *script, ORDERED, ORDERED, STOPPED)
    assert served == [[], [], [1], *[[]] * 5, [1], [1]]


@pytest.mark.parametrize("status", [401, 403, 409, 422])
@pytest.mark.parametrize(
    "before",
    [[], [REGISTERED, ORDERED], [REGISTERED, problem(BEAT, 404)]],
    ids=["at first", "with a job", "again"],
)
def test_a_server_that_is_refused_for_good_ends(server: Server, before: list[Step], status: int) -> None:
    request = BEAT if before and before[-1] == ORDERED else REGISTER
    with pytest.raises(ControllerRefusedError) as caught:
        run(server, *before, problem(request, status))
    assert caught.value.status == status


def test_a_server_that_cannot_register_at_first_says_so(server: Server) -> None:
    with pytest.raises(ControllerRefusedError, match="try again in a moment"):
        run(server, problem(REGISTER, 503))


def test_the_controller_learns_of_datagrams_of_no_job(server: Server) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(server.local_address)
        stranger.send(bytes(300))
        wait_until(lambda: server.stats()["unknown"] == 1, "the datagram has been counted")
    beats: list[dict[str, Any]] = []
    run(server, REGISTERED, ORDERED, STOPPED, beats=beats)
    assert beats[0]["unknown"] == 1


def test_a_job_that_does_not_fit_is_refused_and_the_others_are_served(server: Server) -> None:
    large: Step = (BEAT, 200, {"jobs": [ORDER, ORDER | {"id": 2, "slots": 1 << 16, "words": 32}]})
    beats: list[dict[str, Any]] = []
    assert run(server, REGISTERED, large, large, STOPPED, beats=beats)[2:] == [[1], [1]]
    assert beats[1]["serving"] == [{"id": 1, "epoch": 7}]
    (refused,) = beats[1]["refused"]
    assert (refused["id"], refused["epoch"]) == (2, 7)
    assert "bytes" in refused["reason"]


def failing(server: Server, at: int) -> Callable[[int], None]:
    """Makes the server fail before the answer after which so many follow."""

    def fail(left: int) -> None:
        if left == at:
            break_socket(server.local_address)
            wait_until(lambda: server.failure is not None, "the thread has ended")

    return fail


ENDED = f"its thread has ended: {COMPLAINT}"


def test_a_server_that_fails_ends_its_jobs_with_the_reason_and_leaves(server: Server) -> None:
    beats: list[dict[str, Any]] = []
    script = [REGISTERED, ORDERED, ORDERED, ORDERED, STOPPED]
    with pytest.raises(InaggError, match=f"the server cannot go on: {ENDED}"):
        run(server, *script, beats=beats, before=failing(server, 2))
    assert beats[-1]["serving"] == []
    assert beats[-1]["refused"] == [{"id": 1, "epoch": 7, "reason": ENDED}]


def test_a_job_that_is_ordered_as_the_server_fails_ends_with_the_reason(server: Server) -> None:
    beats: list[dict[str, Any]] = []
    with pytest.raises(InaggError, match=f"the server cannot go on: {ENDED}"):
        run(server, REGISTERED, ORDERED, ORDERED, STOPPED, beats=beats, before=failing(server, 2))
    (refused,) = beats[-1]["refused"]
    assert (refused["id"], refused["epoch"]) == (1, 7)
    assert COMPLAINT in refused["reason"]


def test_a_server_that_fails_before_the_controller_forgets_it_ends_with_the_reason(server: Server) -> None:
    forgotten = [problem(BEAT, 404), problem(BEAT, 404), problem(REMOVE, 404)]
    with pytest.raises(InaggError, match=f"the server cannot go on: {ENDED}"):
        run(server, REGISTERED, ORDERED, *forgotten, before=failing(server, 2))


def test_a_server_that_fails_as_it_is_stopped_does_not_end_well(server: Server) -> None:
    with pytest.raises(InaggError, match=f"the server cannot go on: {ENDED}"):
        run(server, REGISTERED, *[ORDERED] * 3, STOPPED, before=failing(server, 2), stop_at=2)


@pytest.mark.parametrize("text", ["0", "1KiB", "4431", str(1 << 63)])
def test_memory_for_no_job_or_more_than_there_can_be_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"--memory {text}: must be .* bytes, which the smallest job takes"
    ):
        _memory(text)
    assert _memory("4432") == 4432
