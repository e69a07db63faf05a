# SPDX-License-Identifier: Apache-2.0
"""The first sum of a job on servers, which finds out whether packets of full size pass to each of them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from inagg._core import RetransmissionPolicy, Route, ServedPart, Server, Sockets, Transport
from inagg.errors import NetworkTimeoutError
from inagg.membership.control import ControlClient
from inagg.membership.mtu_probe import MtuProbe
from inagg.sums.reduction import Callback
from inagg_contract.documents import JobServer
from inagg_contract.sizes import way_of
from inagg_simulator.virtual_network import JOB, make_shape
from tests.hostlib.membership.one_rank import status_of

SERVERS = 6
WORDS = 4
PATIENCE_S = 20.0


class ServedRank:
    """The only rank of a job on servers. A server does not exist before `start`."""

    def __init__(self, stack: ExitStack, servers: int = SERVERS, slots: int = 16) -> None:
        self._stack = stack
        self._slots = slots
        self._job = make_shape(1, slots=slots, words=WORDS)
        self._sockets = [stack.enter_context(bound()) for _ in range(servers)]
        self.addresses = [one.getsockname() for one in self._sockets]
        self.servers: dict[int, Server] = {}
        own = bound()
        self._worker = own.getsockname()
        self._transport = Transport(
            self._job,
            rank=0,
            route=Route(servers=self.addresses),
            sockets=Sockets(socket_fd=own.detach()),
            policy=RetransmissionPolicy(rto_initial_s=0.02),
        )
        stack.callback(self._transport.close)

    def start(self, index: int) -> None:
        """What has been sent to the server before is lost."""
        self._sockets[index].close()
        server = self.servers[index] = Server(local=self.addresses[index], memory=1 << 20)
        self._stack.callback(server.close)
        server.serve(self._job, [ServedPart({0: self._worker}, index=index)], servers=len(self.addresses))

    def start_all_but(self, *absent: int) -> None:
        for index in range(len(self.addresses)):
            if index not in absent:
                self.start(index)

    def try_path(self, timeout_s: float = PATIENCE_S, check: Callback = lambda: None) -> None:
        servers = tuple(
            JobServer(name=f"s{index}", ip=ip, udp_port=port, rank=None)
            for index, (ip, port) in enumerate(self.addresses)
        )
        status = status_of(1).model_copy(
            update={"aggregation": "server", "servers": servers, "slots": self._slots}
        )
        client = ControlClient("http://127.0.0.1:9")  # is not asked
        MtuProbe(self._transport, client, status, 0).run(timeout_s, check)

    def completed(self) -> list[int]:
        """Chunks by server."""
        return [self.servers[index].stats()["jobs"][JOB]["completed"] for index in range(len(self.addresses))]


def bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    return made


@pytest.fixture
def rank() -> Iterator[ServedRank]:
    with ExitStack() as stack:
        yield ServedRank(stack)


@pytest.mark.parametrize(
    ("servers", "slots"),
    [(1, 16), (2, 2), (3, 4), (3, 16), (6, 16), (12, 16), (16, 16), (64, 64), (2, 128), (8, 128), (3, 1024)],
)
def test_the_first_sum_sends_small_and_large_packets_to_every_server(servers: int, slots: int) -> None:
    with ExitStack() as stack:
        rank = ServedRank(stack, servers, slots)
        rank.start_all_but()
        rank.try_path()
        completed = rank.completed()
        # Of each block one DATA chunk, and at first one EXPONENT chunk for each slot.
        exponents = min(sum(completed) // 2, slots)
        ways = [way_of(chunk, slots, servers) for chunk in range(exponents)]
        small = [ways.count(index) for index in range(servers)]
        assert all(both > few >= 1 for both, few in zip(completed, small, strict=True))


@pytest.mark.parametrize("late", [0, SERVERS - 1])
def test_the_first_sum_waits_for_a_server_that_starts_late(
    monkeypatch: pytest.MonkeyPatch, rank: ServedRank, late: int
) -> None:
    """Not only for as long as packets of full size may take where small ones pass."""
    monkeypatch.setattr("inagg.membership.mtu_probe._FULL_SIZE_S", 1.0)
    rank.start_all_but(late)
    checks = count()

    def start_late() -> None:
        if next(checks) == 12:
            rank.start(late)

    rank.try_path(PATIENCE_S, start_late)
    assert next(checks) > 12
    assert rank.completed()[late] >= 2


@pytest.mark.parametrize("silent", [0, SERVERS - 1])
def test_the_error_names_the_servers_if_one_is_silent(rank: ServedRank, silent: int) -> None:
    rank.start_all_but(silent)
    with pytest.raises(NetworkTimeoutError) as caught:
        rank.try_path(0.5)
    assert caught.value.passed_bytes is None
    names = ", ".join(f"s{index} ({ip}:{port})" for index, (ip, port) in enumerate(rank.addresses))
    assert f"no packet from one of the servers {names} for " in str(caught.value)
    assert caught.value.waited_s >= 0.5
