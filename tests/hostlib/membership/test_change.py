# SPDX-License-Identifier: Apache-2.0
"""A rank that changes its way, with its transport and servers, and a controller that says what a test wants."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from inagg._core import EngineError, Transport
from inagg.errors import ControllerRefusedError, ControllerUnreachableError, JobError
from inagg.membership import own_server
from inagg.membership.change import go_on
from inagg.membership.interface import Interface
from inagg.membership.joined import Joined
from inagg.membership.meeting import OverError
from inagg.membership.own_server import OwnServer
from inagg.membership.session import Session
from inagg.membership.way import sockets_of, way_of
from inagg.options import Options
from inagg.sums.journal import Report
from inagg_contract.documents import (
    Beside,
    Heartbeat,
    JobServer,
    JobStatus,
    RegisteredWorker,
    ResultDocument,
    WayChange,
    WorkerAddress,
)
from inagg_simulator.virtual_network import EPOCH
from tests.hostlib.membership.one_rank import HealthyController, all_reduce, status_of
from tests.waiting import BUSY_S, wait_until

HERE = "127.0.0.1"
OPTIONS = Options(controller="http://127.0.0.1:9")
ALL = ("same", "other", "servers", "fail")


def refused(status: int) -> ControllerRefusedError:
    return ControllerRefusedError(url="", request="", status=status, title="", detail="no")


class Scripted(HealthyController):
    """Answers as it is told. said: the requests so far, with the epoch in each. Each answer may be an error.

    lost: the epoch of the way that heartbeats call lost.
    """

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.said: list[tuple[str, int]] = []
        self.answers: list[WayChange | Exception | Callable[[], WayChange]] = []
        self.beside: Beside | None = None
        self.server_port: int | None = None
        self.refuses: dict[str, int] = {}
        self.lost: int | None = None

    def heartbeat(
        self, job: int, rank: int, report: Report | None = None, *, timeout_s: float | None = None
    ) -> Heartbeat:
        state = "running" if self.lost is None else "changing"
        return Heartbeat(state=state, lost=(), reason=None, lost_way=self.lost, lost_why="it died")

    def leave(
        self, job: int, rank: int, *, error: str | None = None, timeout_s: float | None = None
    ) -> JobStatus:
        if self.lost is not None and error is None:
            raise refused(409)
        self.left_with = error
        return status_of(1).model_copy(update={"state": "finished"})

    def _next(self, step: str, epoch: int) -> WayChange:
        self.said.append((step, epoch))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def frozen(  # type: ignore[override]
        self,
        job: int,
        rank: int,
        epoch: int,
        chunks: bytes,
        server_port: int | None,
        beside: Beside | None,
        **_: Any,
    ) -> WayChange:
        self.beside, self.server_port = beside, server_port
        return self._next("frozen", epoch)

    def exchange(self, job: int, rank: int, epoch: int, *_: Any, **__: Any) -> WayChange:
        return self._next("exchange", epoch)

    def _told(self, step: str, epoch: int) -> JobStatus:
        self.said.append((step, epoch))
        if step in self.refuses:
            raise refused(self.refuses[step])
        self.lost = None
        return status_of(1)

    def serving(self, job: int, rank: int, *, timeout_s: float | None = None) -> JobStatus:
        return self._told("serving", 0)

    def resumed(self, job: int, rank: int, epoch: int, *, timeout_s: float | None = None) -> JobStatus:
        return self._told("resumed", epoch)


class Rank:
    """The only rank of a job on the server in its process."""

    def __init__(self) -> None:
        self.controller = Scripted()
        self.own = OwnServer(HERE)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind((HERE, 0))
        status = self.way(EPOCH)
        self.own.serve(status, 0)
        with sockets_of(self.controller, status, 0, [self.udp]) as sockets:
            transport = Transport(**way_of(status, self.own), rank=0, sockets=sockets, keeps_results=True)
        self.joined = Joined(
            self.controller, status, 0, transport, server=self.own, udp=[self.udp], link_rate=None
        )

    def way(self, epoch: int, port: int | None = None) -> RegisteredWorker:
        """The job, on the server of this process at another epoch."""
        server = JobServer(name="rank 0", ip=HERE, udp_port=port or self.own.udp_port, rank=0)
        member = WorkerAddress(rank=0, ip=HERE, udp_port=self.udp.getsockname()[1])
        changes = {
            "epoch": epoch,
            "aggregation": "server",
            "aggregator": None,
            "servers": (server,),
            "members": (member,),
            "on_path_loss": ALL,
        }
        return RegisteredWorker(**status_of(1).model_copy(update=changes).model_dump(), rank=0, member=0)

    def to(self, epoch: int, lost: int = EPOCH, **more: Any) -> WayChange:
        """The answer that a way is ready."""
        return WayChange(
            state="changing", lost=lost, frozen=True, way=self.way(epoch), ready=True, lost_for_s=1.0, **more
        )

    def to_registered(self, epoch: int, lost: int) -> WayChange:
        """The answer that a way is ready, on the server whose port the rank has published."""
        found = self.to(epoch, lost)
        return found.model_copy(update={"way": self.way(epoch, self.controller.server_port)})

    def to_beside(self, epoch: int, lost: int) -> WayChange:
        """The same where the rank has said that it is beside the switches."""
        beside = self.controller.beside
        assert beside is not None
        server = JobServer(name="rank 0", ip=beside.ip, udp_port=beside.server_udp_port, rank=0)
        member = WorkerAddress(rank=0, ip=beside.ip, udp_port=beside.udp_port)
        found = self.to(epoch, lost)
        assert found.way is not None
        way = found.way.model_copy(update={"servers": (server,), "members": (member,)})
        return found.model_copy(update={"way": way})

    def go_on(self, lost: int = EPOCH, over: Callable[[], bool] = lambda: False) -> Any:
        return go_on(self.joined, lost, "it died", over)

    def sum_rightly(self) -> None:
        tensor = torch.arange(5000, dtype=torch.float32)
        ticket = self.joined.transport.submit(tensor.numpy())
        assert self.joined.transport.wait(ticket, 10.0)
        assert torch.equal(tensor, torch.arange(5000, dtype=torch.float32))


@pytest.fixture
def rank() -> Iterator[Rank]:
    one = Rank()
    yield one
    one.joined.transport.close()
    if one.joined.server is not None:
        one.joined.server.close()
    one.udp.close()
    assert own_server._shared == {}


def frozen(lost: int = EPOCH, all_have: bool = True) -> WayChange:
    return WayChange(state="changing", lost=lost, frozen=all_have)


def test_a_rank_goes_on_when_the_controller_says_so(rank: Rank) -> None:
    rank.sum_rightly()
    rank.controller.answers = [
        ControllerUnreachableError(url="", request="", cause="refused"),
        frozen(all_have=False),
        frozen(),
        frozen(),  # no way is known yet
        ControllerUnreachableError(url="", request="", cause="refused"),
        rank.to(EPOCH + 1),
    ]
    change = rank.go_on()
    assert [step for step, _ in rank.controller.said] == [
        *["frozen"] * 3,
        *["exchange"] * 3,
        "serving",
        "resumed",
    ]
    assert (change.why, change.to, change.filled, change.given) == ("it died", "1 server", 0, 0)
    assert 1.0 <= change.seconds < 5.0
    assert rank.joined.status.epoch == EPOCH + 1
    rank.sum_rightly()


@pytest.mark.parametrize("refuses", ["serving", "resumed"])
def test_a_way_that_is_lost_before_the_rank_is_there_is_left_again(rank: Rank, refuses: str) -> None:
    rank.controller.answers = [
        frozen(),
        frozen(EPOCH + 1),  # the way that was found first is lost too
        frozen(EPOCH + 1),
        rank.to(EPOCH + 2, lost=EPOCH + 1),
        *([rank.to(EPOCH + 2, lost=EPOCH + 1)] if refuses == "serving" else []),
    ]
    rank.controller.refuses = {refuses: 409}
    rank.go_on()
    steps = [("frozen", EPOCH), ("exchange", EPOCH), ("frozen", EPOCH + 1), ("exchange", EPOCH + 1)]
    assert rank.controller.said == [*steps, ("serving", 0), ("resumed", EPOCH + 2)]
    rank.sum_rightly()


def test_what_was_lost_while_ranks_publish_is_the_newest(rank: Rank) -> None:
    rank.controller.answers = [
        frozen(EPOCH + 3),
        frozen(EPOCH + 3),
        rank.to(EPOCH + 4, lost=EPOCH + 3),
    ]
    rank.go_on()
    assert [epoch for step, epoch in rank.controller.said if step == "frozen"] == [EPOCH, EPOCH + 3]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (WayChange(state="failed", reason="a rank is lost"), OverError),
        (WayChange(state="running"), JobError),
        (refused(409), ControllerRefusedError),
        (refused(404), ControllerRefusedError),
        (RuntimeError("the client has been closed"), OverError),
    ],
)
def test_a_change_that_cannot_be_raises(
    rank: Rank, answer: WayChange | Exception, error: type[Exception]
) -> None:
    rank.controller.answers = [answer]
    with pytest.raises(error):
        rank.go_on()
    assert rank.joined.server is rank.own  # which it still needs


def test_a_result_that_is_not_right_is_not_taken(rank: Rank) -> None:
    wrong = ResultDocument.model_construct(chunk=0, datagram=b"nonsense")
    rank.controller.answers = [
        frozen(),
        WayChange(state="changing", lost=EPOCH, frozen=True, lacks=(0,)),
        WayChange(state="changing", lost=EPOCH, frozen=True, lacks=(0,), results=(wrong,)),
    ]
    with pytest.raises(JobError, match="the result of chunk 0 that another rank has kept is not right"):
        rank.go_on()


def test_a_rank_that_leaves_ends_its_change(rank: Rank) -> None:
    rank.controller.answers = [frozen(all_have=False)] * 1000
    calls = 0

    def over() -> bool:
        nonlocal calls
        calls += 1
        return calls > 3

    with pytest.raises(OverError):
        rank.go_on(over=over)


def test_a_transport_that_is_closed_ends_the_change(rank: Rank) -> None:
    rank.joined.transport.close()
    with pytest.raises(EngineError, match="closed"):
        rank.go_on()


def test_a_server_that_has_ended_is_replaced(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnServer, "failure", property(lambda self: "it broke" if self is rank.own else None))
    rank.controller.answers = [frozen()]
    exchanged = rank.controller.exchange

    def exchange(*arguments: Any, **options: Any) -> WayChange:
        found = [*own_server._shared.values()][-1]
        rank.controller.answers = [
            WayChange(
                state="changing", lost=EPOCH, frozen=True, way=rank.way(EPOCH + 1, found.udp_port), ready=True
            )
        ]
        return exchanged(*arguments, **options)

    monkeypatch.setattr(rank.controller, "exchange", exchange)
    rank.go_on()
    assert rank.joined.server is not rank.own
    rank.sum_rightly()


BESIDE = "127.0.0.2"


@pytest.fixture
def rank_with_another_network(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    """It reaches the controller from another address."""
    monkeypatch.setattr("inagg.membership.change.interface_of", lambda _: Interface("", 65535, None))
    rank.joined.control_address = BESIDE
    yield rank
    if rank.joined.beside is not None:
        rank.joined.beside.close()


def sockets() -> int:
    """How many sockets this process has. Other descriptors of a server go with its last reference."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing's own
            found += str(descriptor.readlink()).startswith("socket:")
    return found


def test_a_rank_goes_beside_the_switches_and_back(rank_with_another_network: Rank) -> None:
    rank = rank_with_another_network
    counts = []
    for epoch in range(EPOCH, EPOCH + 9, 3):
        # To its server there, to another one there, and back to where it has registered.
        for lost, goes, address in (
            (epoch, rank.to_beside, BESIDE),
            (epoch + 1, rank.to_beside, BESIDE),
            (epoch + 2, rank.to_registered, None),
        ):
            rank.controller.answers = [frozen(lost), partial(goes, lost + 1, lost)]
            rank.go_on(lost)
            found = rank.joined.beside
            assert (None if found is None else found.getsockname()[0]) == address
            rank.sum_rightly()
        counts.append(sockets())
    assert len(set(counts)) == 1


def test_a_change_that_fails_leaves_nothing_beside_the_switches(rank_with_another_network: Rank) -> None:
    rank = rank_with_another_network
    counts = []
    for _ in range(3):
        rank.controller.answers = [refused(404)]
        with pytest.raises(ControllerRefusedError):
            rank.go_on()
        assert rank.controller.beside is not None
        assert rank.joined.beside is None
        counts.append(sockets())
    assert len(set(counts)) == 1


def test_packets_that_do_not_fit_keep_a_rank_from_going_beside(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inagg.membership.change.interface_of", lambda _: Interface("", 500, None))
    rank.joined.control_address = BESIDE
    rank.controller.answers = [frozen(), rank.to(EPOCH + 1)]
    rank.go_on()
    assert rank.controller.beside is None
    assert f"no sums at {BESIDE}: its MTU is 500" in caplog.text
    rank.sum_rightly()


def test_a_session_takes_its_rank_along_and_tells_of_it(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    one = Session(rank.joined)
    try:
        assert one.stats()["changes"] == []
        rank.controller.answers = [frozen(), rank.to(EPOCH + 1)]
        rank.controller.lost = EPOCH
        wait_until(lambda: one.stats()["changes"], "the rank goes on")
        rank.controller.lost = EPOCH  # an answer that was late
        works: Sequence[Any] = [all_reduce(one, torch.ones(1000), OPTIONS) for _ in range(3)]
        assert all(work.wait() for work in works)
        assert len(one.stats()["changes"]) == 1
        assert one.failure is None
        assert caplog.text.count("Sums go on, on 1 server") == 1
    finally:
        one.leave()


def test_an_answer_that_was_late_names_a_way_on_which_the_rank_never_was(rank: Rank) -> None:
    """The job has lost a second way before the rank could go on there. Epochs have no order."""
    one = Session(rank.joined)
    another, last = EPOCH + 7, EPOCH - 1
    try:
        rank.controller.answers = [frozen(EPOCH), frozen(another), frozen(another), rank.to(last, another)]
        rank.controller.lost = EPOCH
        wait_until(lambda: one.stats()["changes"], "the rank goes on")
        assert rank.joined.behind == {EPOCH, another}
        for late in (EPOCH, another):
            one._lose_way(late, "it died")
            assert one._changer is None
        assert one.failure is None
    finally:
        one.leave()


def test_a_rank_that_leaves_goes_through_a_change_that_it_did_not_know_of(rank: Rank) -> None:
    one = Session(rank.joined)
    one._heartbeat.stop()
    rank.controller.answers = [frozen(), rank.to(EPOCH + 1)]
    rank.controller.lost = EPOCH
    one.leave()
    assert ("resumed", EPOCH + 1) in rank.controller.said
    assert rank.controller.left_with is None
    assert one._left is not None
    assert one.failure is None


def test_a_rank_that_leaves_takes_no_longer_than_the_longest_change(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller says that the job changes its way, and nothing comes of it."""
    monkeypatch.setattr("inagg.membership.session.LONGEST_CHANGE_S", 0.3)
    one = Session(rank.joined)
    one._heartbeat.stop()
    rank.controller.answers = [frozen(all_have=False)] * 100_000
    rank.controller.lost = EPOCH
    began = time.monotonic()
    one.leave()
    assert "could not leave at the controller" in caplog.text
    assert time.monotonic() - began < 5.0 + BUSY_S


def test_closing_a_session_ends_its_change(rank: Rank) -> None:
    one = Session(rank.joined)
    rank.controller.answers = [frozen(all_have=False)] * 100_000
    rank.controller.lost = EPOCH
    wait_until(lambda: rank.controller.said, "the rank has frozen")
    one.close()
    assert one._changer is None
    assert one.stats()["changes"] == []


def test_a_session_that_cannot_change_its_way_ends_the_job(rank: Rank) -> None:
    one = Session(rank.joined)
    rank.controller.answers = [WayChange(state="running")]
    rank.controller.lost = EPOCH
    wait_until(lambda: one.failure is not None, "the job has failed")
    assert "could not change its way: the controller knows of no change of way" in str(one.failure)
    assert "could not change its way" in (rank.controller.left_with or "")
    one.close()
