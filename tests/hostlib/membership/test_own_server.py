# SPDX-License-Identifier: Apache-2.0
"""What a rank reports of the server in its process."""

import math
import socket
from collections.abc import Mapping

import pytest
import torch

from inagg._core import Route, Sockets, Transport
from inagg.errors import JobError
from inagg.membership.joined import Joined
from inagg.membership.own_server import OwnServer
from inagg.membership.session import Session
from inagg.options import Options
from inagg.sums.journal import Report
from inagg_contract.documents import Chunks, Heartbeat, JobServer, JobStatus, WorkerAddress
from inagg_simulator.virtual_network import JOB, make_shape
from tests.broken_sockets import COMPLAINT, break_socket
from tests.hostlib.membership.one_rank import HealthyController, all_reduce, status_of
from tests.waiting import wait_until

HERE = "127.0.0.1"
OPTIONS = Options(controller="http://127.0.0.1:9")
ELEMENTS = 100_000
CHUNKS = math.ceil(ELEMENTS / 256)  # of 4 words in 32-bit lanes
NOTHING = {"switches": 0, "both": 0, "servers": 0}


class Recorder(HealthyController):
    """Records what the rank says, and answers with the job's chunks."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.said: list[tuple[str, Mapping[str, int] | None]] = []

    def heartbeat(
        self, job: int, rank: int, report: Report | None = None, *, timeout_s: float | None = None
    ) -> Heartbeat:
        assert report is not None
        self.said.append(("heartbeat", report.chunks))
        chunks = Chunks(switches=7, both=8, servers=9)
        return Heartbeat(state="running", lost=(), reason=None, chunks=chunks)

    def leave(
        self, job: int, rank: int, *, error: str | None = None, timeout_s: float | None = None
    ) -> JobStatus:
        self.said.append(("leave", None))
        self.left_with = error
        return status_of(1).model_copy(update={"state": "finished"})


def joined(client: Recorder, own: OwnServer) -> Session:
    """The session of a rank that is alone with its server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((HERE, 0))
        return _joined(client, own, udp)


def _joined(client: Recorder, own: OwnServer, udp: socket.socket) -> Session:
    address = WorkerAddress(rank=0, ip=HERE, udp_port=udp.getsockname()[1])
    server = JobServer(name="rank 0", ip=HERE, udp_port=own.udp_port, rank=0)
    job = status_of(1).model_copy(
        update={"aggregation": "server", "aggregator": None, "servers": (server,), "members": (address,)}
    )
    own.serve(job, 0)
    transport = Transport(
        make_shape(1, slots=16, words=4),
        rank=0,
        route=Route(servers=[(HERE, own.udp_port)]),
        sockets=Sockets(socket_fd=udp.detach()),
    )
    return Session(Joined(client, job, 0, transport, server=own))


def test_a_rank_reports_its_servers_chunks_once_more_before_it_leaves() -> None:
    client = Recorder()
    one = joined(client, OwnServer(HERE))
    assert all_reduce(one, torch.ones(ELEMENTS), OPTIONS).wait()
    one.leave()
    assert client.said[-2:] == [("heartbeat", NOTHING | {"servers": CHUNKS}), ("leave", None)]


def test_stats_have_the_jobs_chunks_and_those_of_this_process_also_when_it_has_left() -> None:
    client = Recorder()
    one = joined(client, OwnServer(HERE))
    assert all_reduce(one, torch.ones(ELEMENTS), OPTIONS).wait()
    wait_until(lambda: one.stats()["chunks"] is not None, "an answer to a heartbeat")
    expected = {"switches": 7, "both": 8, "servers": 9}, NOTHING | {"servers": CHUNKS}
    stats = one.stats()
    assert (stats["chunks"], stats["server_chunks"]) == expected
    one.leave()
    assert one.stats()["server_chunks"] == expected[1]


def test_a_server_that_serves_no_job_has_no_chunks() -> None:
    with OwnServer(HERE) as own:
        assert own.chunks() is None
    assert own.chunks() is None


def test_a_rank_whose_server_fails_ends_the_job_for_all_with_the_reason() -> None:
    client = Recorder()
    one = joined(client, own := OwnServer(HERE))
    assert all_reduce(one, torch.ones(ELEMENTS), OPTIONS).wait()
    break_socket((HERE, own.udp_port))
    with pytest.raises(JobError) as caught:
        all_reduce(one, torch.ones(ELEMENTS), OPTIONS).wait()
    assert str(caught.value).endswith(f"the server in its process has ended: {COMPLAINT}")
    assert client.left_with == f"the server in its process has ended: {COMPLAINT}"
    one.leave()


def test_a_rank_whose_server_fails_before_it_leaves_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other ranks may lack results of the server. No heartbeat has looked at it."""
    monkeypatch.setattr("inagg.membership.condition.Condition.before_beat", lambda *_: None)
    client = Recorder()
    one = joined(client, own := OwnServer(HERE))
    assert all_reduce(one, torch.ones(ELEMENTS), OPTIONS).wait()
    break_socket((HERE, own.udp_port))
    wait_until(lambda: own.failure is not None, "the thread has ended")
    one.leave()
    assert client.left_with == f"the server in its process has ended: {COMPLAINT}"


def test_a_group_gets_another_server_than_the_one_that_has_failed() -> None:
    with OwnServer(HERE) as first:
        break_socket((HERE, first.udp_port))
        wait_until(lambda: first.failure is not None, "the thread has ended")
        with OwnServer(HERE) as second:
            assert second._shared is not first._shared
            first.close()
            with OwnServer(HERE) as third:
                assert third._shared is second._shared
            assert second.failure is None


def test_a_rank_cannot_join_with_a_server_that_has_failed() -> None:
    with OwnServer(HERE) as own:
        break_socket((HERE, own.udp_port))
        wait_until(lambda: own.failure is not None, "the thread has ended")
        with pytest.raises(JobError, match=f"job {JOB}: this process cannot serve the job: .*{COMPLAINT}"):
            joined(Recorder(), own)
