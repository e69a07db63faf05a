# SPDX-License-Identifier: Apache-2.0
"""Any well-formed JSON answer of the controller is understood, or raises an inagg error."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg._core import Route, Sockets, Transport
from inagg.counters import straggler
from inagg.errors import ControllerError, InaggError, JobRank
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import Failure, HeartbeatMonitor
from inagg.membership.own_server import shape_of
from inagg.membership.way import retransmission
from inagg.sums.journal import Journal
from inagg_contract.documents import JobStatus, read
from tests.controller.heartbeats import Rank, make_heartbeat
from tests.controller.serving import Serving, run

URL = "http://10.0.0.254:9560"
HEARTBEAT = {
    "state": "running",
    "lost": [{"rank": 1, "reason": "left"}],
    "reason": None,
    "mismatch": {
        "number": 3,
        "calls": [{"text": "barrier()", "ranks": [0]}, {"text": "gather()", "ranks": [1]}],
    },
    "ask": {"first": 1, "last": 2},
    "waits": {"0": {"sums": 3, "waited_s": 0.5}, "1": {"sums": 3, "waited_s": 0.25}},
}
JOB = {
    "id": 1,
    "name": "",
    "workers": 2,
    "state": "running",
    "epoch": 7,
    "slots": 8,
    "words": 4,
    "registered": [0, 1],
    "left": [],
    "lost": [],
    "reason": None,
    "policy": {
        "rto_initial_s": 0.1,
        "rto_min_s": 0.01,
        "rto_max_s": 1.0,
        "give_up_s": 120.0,
        "heartbeat_interval_s": 0.5,
        "heartbeat_timeout_s": 30.0,
    },
    "aggregator": {"ip": "10.0.0.253", "mac": "02:49:41:00:00:01", "udp_port": 18753},
    "counters": {"0": {"packets": 1, "bytes": 62}},
    "secret": "abc",
}
COUNTERS = {"started": {"1": {"packets": 1, "bytes": 62}}}

# Numbers of all sizes, and the infinities and NaN that Python's json reads and writes.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([math.inf, -math.inf, math.nan]),
    st.sampled_from([-1, 0, 2**31, 2**32, 2**63, 2**64, 10**400]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["failed", "finished", "joining", "1", "-1", "1e999", "\ud800", "a\r\nb", "☃" * 300]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to everything in a document, itself included."""
    yield path
    if isinstance(document, (dict, list)):
        keys = document if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield from places(document[key], (*path, key))


@st.composite
def strange(draw: st.DrawFn, document: Any) -> Any:
    """The document with some of it replaced, removed or added."""
    changed = json.loads(json.dumps(document))
    for path in draw(st.lists(st.sampled_from(list(places(document))), min_size=1, max_size=3)):
        if not path:
            if draw(st.booleans()):
                return draw(JSON)
            changed[draw(st.text(max_size=5))] = draw(JSON)
            continue
        holder = changed
        try:
            for key in path[:-1]:
                holder = holder[key]
            if isinstance(holder, dict) and draw(st.booleans()):
                del holder[path[-1]]
            else:
                holder[path[-1]] = draw(SCALARS | JSON)
        except (TypeError, KeyError, IndexError):  # already changed
            continue
    return changed


def answered(document: Any, status: int = 200) -> ControlClient:
    text = document if isinstance(document, str) else json.dumps(document)
    content = text.encode(errors="surrogatepass")
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=content))
    return ControlClient(URL, timeout_s=0.05, transport=transport)


@settings(max_examples=300)
@given(strange(HEARTBEAT))
def test_a_rank_survives_any_answer_to_a_heartbeat(document: Any) -> None:
    with answered(document) as client:
        try:
            beat = client.heartbeat(1, 0)
        except InaggError:
            return
    failure = HeartbeatMonitor(timeout_s=3.0, now=0.0).answered(beat, 1.0)
    if failure is not None:
        assert isinstance(failure.error(JobRank(1, "", 0), None), InaggError)
    journal = Journal()
    for number in range(5):
        journal.begin(f"barrier({number})")
    if beat.ask is not None:
        assert len(journal.report((beat.ask.first, beat.ask.last)).calls) <= 5
    straggler({rank: told.model_dump() for rank, told in beat.waits.items()})


CALLS = [
    lambda client: client.health(),
    lambda client: client.counters(),
    lambda client: client.create_job(2, 8),
    lambda client: client.register(1, 1, ip="10.0.0.2", mac="02:00:00:00:00:02", udp_port=4000),
    lambda client: client.wait_running(1, timeout_s=0.0),
    lambda client: client.leave(1, 0),
    lambda client: client.set_loss(1, "ingress", 0.5),
]


@settings(max_examples=300)
@given(
    st.one_of(strange(JOB), strange(COUNTERS), JSON),
    st.sampled_from(CALLS),
    st.sampled_from([200, 201, 403, 422, 500]),
)
def test_a_rank_survives_any_answer_to_what_else_it_asks(
    document: Any, call: Callable[[ControlClient], object], status: int
) -> None:
    with answered(document, status) as client, contextlib.suppress(InaggError):
        call(client)


@given(strange({name: JOB[name] for name in ("id", "workers", "epoch", "slots", "words", "policy")}))
def test_a_transport_can_be_made_of_every_job_that_is_read(document: Any) -> None:
    try:
        status = read(JobStatus, JOB | document if isinstance(document, dict) else document)
    except ValueError:
        return
    assert status.aggregator is not None
    Transport(
        shape_of(status),
        rank=status.workers - 1,
        member=0,
        route=Route(aggregator=("127.0.0.1", status.aggregator.udp_port)),
        sockets=Sockets(local=("127.0.0.1", 0)),
        policy=retransmission(status.policy),
    ).close()


@pytest.mark.parametrize(
    "new", [{"colour": "red"}, {"state": "paused"}, {"waits": None}, {"ask": "everything"}]
)
def test_what_a_newer_controller_adds_or_changes_does_not_end_a_rank(new: dict[str, object]) -> None:
    with answered(HEARTBEAT | new) as client:
        beat = client.heartbeat(1, 0)
    assert beat.lost[0].rank == 1
    assert HeartbeatMonitor(timeout_s=3.0, now=0.0).answered(beat, 1.0) is None


def test_a_controller_that_never_stops_asking_does_not_keep_a_rank_from_its_next_beat() -> None:
    asked = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        ask = {"first": len(asked), "last": len(asked) + 9}
        return httpx.Response(200, json={**HEARTBEAT, "ask": ask})

    client = ControlClient(URL, transport=httpx.MockTransport(handle))
    failures: list[Failure] = []
    make_heartbeat(client, Rank(failures.append), 1e6, 1e6).confer(0.2)
    assert 0 < len(asked) < 20
    assert failures == []


@pytest.mark.parametrize("secret", [None, 7, "", "a b", "a\r\nX: y", "é", ["a"]])
def test_a_secret_that_a_header_cannot_carry_is_refused(secret: object) -> None:
    with answered(JOB | {"secret": secret}) as client, pytest.raises(ControllerError, match="not a new job"):
        client.create_job(2, 8)


INFINITE = ["1e999", "-1e999", "Infinity", "-Infinity", "NaN"]


@pytest.mark.parametrize("number", INFINITE)
def test_no_infinity_or_nan_gets_into_the_controller_or_to_another_rank(
    serving: Serving, number: str
) -> None:
    async def body() -> Any:
        async with serving() as (client, _, _):
            await client.post("/jobs", json={"workers": 2, "slots": 4})
            for rank in range(2):
                member = {
                    "rank": rank,
                    "ip": f"10.0.0.{rank + 1}",
                    "mac": "02:00:00:00:00:01",
                    "udp_port": 4000,
                }
                await client.post("/jobs/1/workers", json=member)
            for method, path, document in [
                ("POST", "/jobs/1/workers/0/heartbeat", f'{{"waited_s": {number}}}'),
                ("POST", "/jobs/1/workers/0/heartbeat", f'{{"sums": {number}}}'),
                ("POST", "/jobs/1/workers/0/heartbeat", f'{{"loading_s": {number}}}'),
                ("POST", "/jobs/1/workers/0/heartbeat", f'{{"rtt_s": {number}}}'),
                (
                    "POST",
                    "/jobs/1/workers/0/heartbeat",
                    f'{{"longest_wait": {{"collective": 1, "waited_s": {number}}}}}',
                ),
                ("PUT", "/loss", f'{{"port": 1, "direction": "ingress", "probability": {number}}}'),
            ]:
                json_type = {"Content-Type": "application/json"}
                answer = await client.request(method, path, content=document, headers=json_type)
                assert answer.status_code == 422, answer.text
            wait = await client.get("/jobs/1", params={"wait": "running", "timeout_s": number})
            assert wait.status_code == 422
            other = await client.post("/jobs/1/workers/1/heartbeat", json={})
            return json.loads(other.text, parse_constant=pytest.fail)

    none = {"sums": 0, "waited_s": 0.0, "longest_wait": None, "loading_s": 0.0, "rtt_s": 0.0}
    assert run(body)["waits"] == {"1": none}
