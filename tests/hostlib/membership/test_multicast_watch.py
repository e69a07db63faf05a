# SPDX-License-Identifier: Apache-2.0
"""When a rank asks for unicast, with a transport and a controller's client that only count."""

import logging
from typing import cast

import pytest

from inagg._core import Transport
from inagg.counters import Stats
from inagg.errors import ControllerUnreachableError
from inagg.membership.control import ControlClient
from inagg.membership.multicast import MulticastWatch
from inagg_contract.documents import Endpoint, JobStatus
from tests.hostlib.membership.one_rank import status_of

JOB, RANK = 7, 1
RESULTS = Endpoint(ip="239.192.0.7", udp_port=18753)
WARNING = "job 7, rank 1: multicast to 239.192.0.7 does not arrive"


class Counting:
    """A transport. in_a_row: results at the rank's own address since the last at the group address."""

    in_a_row = 0

    def stats(self) -> dict[str, int]:
        return {"unicast_in_a_row": self.in_a_row}


class Controller:
    """A client. results: of the job. asked: how often the job was changed to unicast. error: what each call raises."""

    def __init__(self) -> None:
        self.results: Endpoint | None = RESULTS
        self.error: Exception | None = None
        self.calls: list[str] = []

    def status(self, job: int) -> JobStatus:
        self.calls.append("status")
        return self._answer(job)

    def unicast(self, job: int) -> JobStatus:
        self.calls.append("unicast")
        before = self._answer(job)
        self.results = None
        return before

    def _answer(self, job: int) -> JobStatus:
        assert job == JOB
        if self.error is not None:
            raise self.error
        return status_of(2).model_copy(update={"results": self.results})


@pytest.fixture
def transport() -> Counting:
    return Counting()


@pytest.fixture
def client() -> Controller:
    return Controller()


@pytest.fixture
def watch(transport: Counting, client: Controller) -> MulticastWatch:
    return watch_of(transport, client)


def watch_of(transport: Counting, client: Controller) -> MulticastWatch:
    status = status_of(2).model_copy(update={"results": client.results})
    assert status.id == JOB
    return MulticastWatch(cast(Transport, transport), cast(ControlClient, client), status, RANK)


def test_a_rank_that_gets_results_at_the_group_address_asks_nothing(
    watch: MulticastWatch, transport: Counting, client: Controller
) -> None:
    for transport.in_a_row in (0, 1, 7, 3, 7):
        watch.look()
    assert client.calls == []


def test_a_rank_that_misses_eight_results_in_a_row_asks_for_unicast_once(
    watch: MulticastWatch, transport: Counting, client: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    for transport.in_a_row in (7, 8, 9, 1000):
        watch.look()
    assert client.calls == ["status", "unicast"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(WARNING)


def test_a_rank_whose_job_is_unicast_already_neither_asks_nor_warns(
    watch: MulticastWatch, transport: Counting, client: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    client.results = None
    for transport.in_a_row in (8, 16, 24):
        watch.look()
    assert client.calls == ["status"]
    assert caplog.records == []


def test_a_rank_of_a_job_that_has_always_been_unicast_asks_nothing(
    transport: Counting, client: Controller
) -> None:
    client.results = None
    transport.in_a_row = 1000
    watch_of(transport, client).look()
    assert client.calls == []


def test_a_client_that_was_closed_meanwhile_is_no_error(
    watch: MulticastWatch, transport: Counting, client: Controller
) -> None:
    client.error = RuntimeError("the client has been closed")
    transport.in_a_row = 8
    watch.look()
    assert client.calls == ["status"]


def test_a_rank_that_gets_no_answer_asks_again_at_the_next_look(
    watch: MulticastWatch, transport: Counting, client: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    transport.in_a_row = 8
    client.error = ControllerUnreachableError(url="http://c", request="GET /jobs/7", cause="timed out")
    watch.look()
    watch.look()
    assert client.calls == ["status", "status"]
    assert caplog.records == []
    client.error = None
    watch.look()
    watch.look()
    assert client.calls == ["status", "status", "status", "unicast"]
    assert len(caplog.records) == 1


def test_a_rank_whose_multicast_has_come_back_meanwhile_does_not_ask_again(
    watch: MulticastWatch, transport: Counting, client: Controller
) -> None:
    transport.in_a_row = 8
    client.error = ControllerUnreachableError(url="http://c", request="GET /jobs/7", cause="timed out")
    watch.look()
    client.error = None
    transport.in_a_row = 0
    watch.look()
    assert client.calls == ["status"]
    assert client.results == RESULTS


def test_the_figures_of_a_block_have_how_many_are_missing_at_its_end() -> None:
    now = {"multicast_received": 100, "unicast_in_a_row": 5}
    with Stats(lambda: dict(now)) as figures:
        now.update(multicast_received=130, unicast_in_a_row=2)
    assert figures == {"multicast_received": 30, "unicast_in_a_row": 2}
