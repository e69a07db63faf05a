# SPDX-License-Identifier: Apache-2.0
"""Servers in the processes of ranks behind a switch with shared slots: sockets on loopback, and a switch that combines
nothing (docs/protocol.md, 5.7)."""

import socket
import threading
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest

from inagg._core import Route, ServedPart, Server, Sockets, Transport
from inagg_contract.sizes import way_of
from inagg_simulator import reference
from inagg_simulator.virtual_network import JOB, make_shape

HERE = ("127.0.0.1", 0)
SLOTS, WORDS = 64, 1
PATIENCE_S = 30.0
Address = tuple[str, int]


class Relay:
    """Passes contributions and queries to the servers, with bits, and results to the workers that are not at home."""

    def __init__(self) -> None:
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._udp.bind(HERE)
        self.address: Address = self._udp.getsockname()
        self.workers: list[Address] = []
        self.servers: list[Address] = []
        self.passed: Counter[tuple[str, int]] = Counter()  # ("up", rank) and ("down", rank at home)
        self._thread = threading.Thread(target=self._run)

    def start(self, workers: list[Address], servers: list[Address]) -> None:
        self.workers, self.servers = workers, servers
        self._thread.start()

    def _run(self) -> None:
        while True:
            datagram, sender = self._udp.recvfrom(4096)
            if not datagram:
                return
            header, rest = datagram[: reference.HEADER.size], datagram[reference.HEADER.size :]
            read = reference.decode(header)
            server = way_of(read.chunk, SLOTS, len(self.servers))
            if sender in self.servers:
                self.passed["down", read.rank] += 1
                for rank, worker in enumerate(self.workers):
                    if rank != read.rank:
                        self._udp.sendto(datagram, worker)
            else:
                rank = self.workers.index(sender)
                self.passed["up", rank] += 1
                assert rank != server, "the rank at home sends past the switch"
                bits = (1 << rank).to_bytes(8, "big") + (bytes(8) if read.kind & reference.QUERY else b"")
                self._udp.sendto(header + bits + rest, self.servers[server])

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"", self.address)
        self._thread.join(PATIENCE_S)
        self._udp.close()


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_ranks_at_home_send_to_their_servers_past_the_switch(workers: int) -> None:
    servers = 1 << (workers.bit_length() - 1)
    shape = make_shape(workers, slots=SLOTS, words=WORDS)
    with ExitStack() as stack:
        relay = Relay()
        sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(workers)]
        for one in sockets:
            one.bind(HERE)
        addresses = [one.getsockname() for one in sockets]
        made = [Server(local=HERE, memory=1 << 24) for _ in range(servers)]
        for index, server in enumerate(made):
            stack.callback(server.close)
            part = ServedPart(dict(enumerate(addresses)), index=index, relay=relay.address, home=index)
            server.serve(shape, [part], servers=servers)
        relay.start(addresses, [server.local_address for server in made])
        stack.callback(relay.close)
        transports = [
            Transport(
                shape,
                rank=rank,
                route=Route(
                    aggregator=relay.address,
                    servers=relay.servers,
                ),
                sockets=Sockets(socket_fd=one.detach()),
                own_server=made[rank] if rank < servers else None,
            )
            for rank, one in enumerate(sockets)
        ]
        for transport in transports:
            stack.callback(transport.close)
        inputs = np.random.default_rng(1).standard_normal((workers, 20_000), dtype=np.float32)
        outputs = inputs.copy()
        tickets = [t.submit(row) for t, row in zip(transports, outputs, strict=True)]
        assert all(t.wait(ticket, PATIENCE_S) for t, ticket in zip(transports, tickets, strict=True))
        expected = reference.all_reduce_array(inputs, lane_bits=32, words=WORDS)
        assert all(np.array_equal(row, expected) for row in outputs)
        chunks = transports[0].stats()["chunks_completed"]
        at_home = Counter(way_of(chunk, SLOTS, servers) for chunk in range(chunks))
        for rank, transport in enumerate(transports):
            stats = transport.stats()
            # Without loss each chunk leaves once, to the switch or to the server at home.
            if not stats["queries"]:
                assert relay.passed["up", rank] == chunks - at_home[rank]
            # What the server at home sends says nothing about the network's multicast.
            assert stats["unicast_in_a_row"] <= chunks - at_home[rank]
        assert sum(relay.passed["down", rank] for rank in range(servers)) == chunks
        counted = sum((Counter(server.stats()["chunks"][JOB]) for server in made), Counter[str]())
        assert counted["switches"] == counted["both"] == 0


def test_the_own_server_behind_a_switch_is_one_of_the_jobs_and_serves_it() -> None:
    shape = make_shape(2, slots=SLOTS, words=WORDS)
    server = Server(local=HERE, memory=1 << 20)
    try:
        for servers, complaint in (
            ([("127.0.0.1", 10)], "own_server is the server of the rank's number"),
            ([server.local_address], f"the worker's own server does not serve job {JOB}"),
        ):
            route = Route(aggregator=("127.0.0.1", 9), servers=servers)
            with pytest.raises(ValueError, match=complaint):
                Transport(shape, rank=0, route=route, sockets=Sockets(local=HERE), own_server=server)
    finally:
        server.close()
