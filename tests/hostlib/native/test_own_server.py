# SPDX-License-Identifier: Apache-2.0
"""A worker and the server in its own process exchange packets in memory."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from inagg._core import EngineError, RetransmissionPolicy, Route, ServedPart, Server, Sockets, Transport
from inagg_simulator import reference
from inagg_simulator.virtual_device import Device
from inagg_simulator.virtual_network import EPOCH, JOB, make_shape
from tests.hostlib.native.sums import check_sum, sum_at_once
from tests.waiting import wait_until

HERE = "127.0.0.1", 0
WORDS = 4
SLOTS = 64
PATIENCE_S = 60.0


class Ranks:
    """The ranks of a job, each with the server of its process. servers: so many of them have one."""

    def __init__(
        self,
        stack: ExitStack,
        workers: int,
        servers: int,
        slots: int = SLOTS,
        policy: RetransmissionPolicy | None = None,
    ) -> None:
        self.shape = make_shape(workers, slots=slots, words=WORDS)
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(workers)]
        for udp in sockets:
            udp.bind(HERE)
        self.addresses = {rank: udp.getsockname() for rank, udp in enumerate(sockets)}
        self.servers = [Server(local=HERE, memory=1 << 26) for _ in range(servers)]
        self.route = Route(servers=[server.local_address for server in self.servers])
        for index, server in enumerate(self.servers):
            stack.callback(server.close)
            server.serve(self.shape, [ServedPart(self.addresses, index=index)], servers=servers)
        self.transports = [
            Transport(
                self.shape,
                rank=rank,
                route=self.route,
                sockets=Sockets(socket_fd=udp.detach()),
                own_server=self.servers[rank] if rank < servers else None,
                policy=policy or RetransmissionPolicy(),
            )
            for rank, udp in enumerate(sockets)
        ]
        for transport in self.transports:
            stack.callback(transport.close)

    def submit(self, arrays: Sequence[np.ndarray]) -> list[int]:
        return [one.submit(array) for one, array in zip(self.transports, arrays, strict=True)]

    def finish(self, tickets: Sequence[int]) -> None:
        done = [one.wait(ticket, PATIENCE_S) for one, ticket in zip(self.transports, tickets, strict=True)]
        assert all(done)


@contextmanager
def ranks_of(workers: int, servers: int, slots: int = SLOTS) -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield Ranks(stack, workers, servers, slots)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (4, 3), (8, 8)])
def test_sums_are_exact_at_every_rank(workers: int, servers: int) -> None:
    with ranks_of(workers, servers) as ranks:
        for elements in (1, 64, 65, 20_000):
            check_sum(ranks.transports, elements, words=WORDS)


def test_many_sums_at_a_time_are_exact() -> None:
    """Workers and servers add at the same time; queues are full."""
    draws = np.random.default_rng(1)
    with ranks_of(4, 4, slots=16) as ranks:
        inputs = [draws.standard_normal((4, int(n)), dtype=np.float32) for n in draws.integers(1, 5000, 100)]
        outputs = [rows.copy() for rows in inputs]
        tickets = [ranks.submit(list(rows)) for rows in outputs]
        for rows, results, those in zip(inputs, outputs, tickets, strict=True):
            ranks.finish(those)
            expected = reference.all_reduce_array(rows, lane_bits=32, words=WORDS)
            assert all(np.array_equal(row, expected) for row in results)


def test_nothing_passes_the_kernel() -> None:
    with ranks_of(1, 1) as ranks:
        array = np.ones(100_000, np.float32)
        ranks.finish(ranks.submit([array]))
        assert ranks.transports[0].stats()["receive_calls"] == 0


def test_a_rank_whose_group_has_failed_lets_the_others_ask_its_server() -> None:
    with ranks_of(2, 2) as ranks:
        arrays = [np.ones(50_000, np.float32) for _ in range(2)]
        ranks.finish(ranks.submit(arrays))
        ranks.transports[1].fail("as tests do")
        with pytest.raises(EngineError, match="as tests do"):
            ranks.transports[1].submit(arrays[1])
        # The contributions of rank 0 arrive at the server of rank 1, and nobody reads what that has for rank 1.
        started = ranks.servers[1].stats()["jobs"][JOB]["started"]
        ticket = ranks.transports[0].submit(arrays[0])
        wait_until(lambda: ranks.servers[1].stats()["jobs"][JOB]["started"] > started, "packets of rank 0")
        assert not ranks.transports[0].wait(ticket, 0)


def test_a_server_that_is_closed_first_takes_nothing_more() -> None:
    with ranks_of(1, 1) as ranks:
        ranks.servers[0].close()
        ticket = ranks.transports[0].submit(np.ones(1000, np.float32))
        wait_until(lambda: ranks.transports[0].stats()["queries"] > 0, "a query")
        assert not ranks.transports[0].wait(ticket, 0)


def test_results_outlive_their_job_at_the_server() -> None:
    """The server drops the job, and serves another one of its number, while the worker uses results."""
    with ranks_of(1, 1, slots=1024) as ranks, ExitStack() as stack:
        (server,) = ranks.servers
        transport = ranks.transports[0]
        for epoch in range(EPOCH + 1, EPOCH + 20):
            transport.submit(np.ones(100_000, np.float32))
            transport.submit(np.ones(100_000, np.float32))
            shape = make_shape(1, slots=1024, words=WORDS, epoch=epoch)
            server.serve(shape, [ServedPart(ranks.addresses)])
            transport = Transport(
                shape, rank=0, route=ranks.route, sockets=Sockets(local=HERE), own_server=server
            )
            stack.callback(transport.close)
        assert transport.wait(transport.submit(np.ones(100_000, np.float32)), PATIENCE_S)


def test_packets_that_come_while_the_server_does_something_else_are_added_at_once() -> None:
    with ExitStack() as stack:
        policy = RetransmissionPolicy(rto_initial_s=30.0, rto_min_s=30.0, rto_max_s=30.0)
        ranks = Ranks(stack, 1, 1, policy=policy)
        (server,), (transport,) = ranks.servers, ranks.transports
        ending = threading.Event()
        other = make_shape(1, job=JOB + 1, slots=4096, words=WORDS)

        def disturb() -> None:
            while not ending.is_set():
                server.serve(other, [ServedPart(ranks.addresses)])
                server.stats()
                server.drop(JOB + 1, EPOCH)

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(300):
                assert transport.wait(transport.submit(np.ones(2000, np.float32)), 20.0)
        finally:
            ending.set()
            thread.join()
        assert transport.stats()["queries"] == 0


def test_a_device_sums_with_its_own_server_too() -> None:
    draws = np.random.default_rng(1)
    with ranks_of(3, 3) as ranks:
        inputs = draws.standard_normal((3, 20_000), dtype=np.float32)
        inputs[1, 256:20_000:1000] = np.inf
        outputs = inputs.copy()
        devices = {rank: Device(outputs[rank], workers=3, words=WORDS) for rank in (0, 1)}
        sum_at_once(ranks.transports, list(outputs), devices)
        expected = reference.all_reduce_array(inputs, lane_bits=32, words=WORDS)
        assert all(np.array_equal(row, expected) for row in outputs)


def test_the_own_server_measures_no_network() -> None:
    with ranks_of(1, 1) as ranks:
        ranks.finish(ranks.submit([np.ones(100_000, np.float32)]))
        assert ranks.transports[0].stats()["rtt_samples"] == 0


def test_a_rank_that_has_left_is_sent_its_results_by_its_address() -> None:
    with ranks_of(1, 1) as ranks, socket.socket(type=socket.SOCK_DGRAM) as late:
        ranks.finish(ranks.submit([np.ones(1000, np.float32)]))
        ranks.transports[0].close()
        late.bind(ranks.addresses[0])
        late.settimeout(PATIENCE_S)
        header = reference.contribution(kind=reference.DATA, rank=0, job=JOB, epoch=EPOCH, chunk=1)
        late.sendto(header.encode() + bytes(256 * WORDS), ranks.servers[0].local_address)
        assert reference.decode(late.recv(2048)).chunk == 1
