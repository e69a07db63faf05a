# SPDX-License-Identifier: Apache-2.0
"""Transports whose job goes on another way (protocol 6.4), with real sockets, while sums are under way."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import numpy as np
import pytest

from inagg._core import EngineError, JobShape, Route, ServedPart, Server, Sockets, Transport
from inagg.membership.packet_threads import sharers
from inagg_simulator import reference
from inagg_simulator.slot_rules.packets import age
from inagg_simulator.virtual_network import JOB, make_aggregator
from tests.conformance.loopback_switch import LoopbackSwitch

HERE = "127.0.0.1", 0
WORDS = 4
SLOTS = 128
PATIENCE_S = 60.0


Kind = Literal["own servers", "a server", "a switch"]


class Ranks:
    """The ranks of a job, which they can change. A kind of way: with "own servers" each is in a rank's process."""

    def __init__(self, stack: ExitStack, workers: int, kind: Kind, packet_threads: int) -> None:
        self._stack = stack
        self.workers, self.threads = workers, packet_threads
        self.epoch = 0
        self._way_ends = ExitStack()
        self.transports: list[Transport] = []
        for shape, rank, route, sockets, server in self._way(kind):
            self.transports.append(
                Transport(
                    shape, rank=rank, route=route, sockets=sockets, own_server=server, keeps_results=True
                )
            )

    def _way(self, kind: Kind) -> Iterator[tuple[JobShape, int, Route, Sockets, Server | None]]:
        """A new way: for each rank its job, number, route, sockets and own server."""
        self.epoch += 1
        shape = JobShape(number=JOB, epoch=self.epoch, slots=SLOTS, words=WORDS, workers=self.workers)
        bound = [
            self._stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(self.workers)
        ]
        for udp in bound:
            udp.bind(HERE)
        self._way_ends = ExitStack()
        servers: list[Server] = []
        if kind == "a switch":
            aggregator = make_aggregator(self.workers, slots=SLOTS, words=WORDS, epoch=self.epoch)
            self.route = Route(aggregator=self._way_ends.enter_context(LoopbackSwitch(aggregator)).address)
        else:
            servers = [
                Server(local=HERE, memory=1 << 26) for _ in range(self.workers if "own" in kind else 1)
            ]
            addresses = {rank: udp.getsockname() for rank, udp in enumerate(bound)}
            for index, server in enumerate(servers):
                self._way_ends.callback(server.close)
                server.serve(shape, [ServedPart(addresses, index=index)], servers=len(servers))
            self.route = Route(servers=[server.local_address for server in servers])
        for rank, udp in enumerate(bound):
            more = sharers(udp, self.threads)
            if kind != "a switch":
                for one in more:  # open, and read by nobody
                    self._stack.enter_context(one)
                more = []
            sockets = Sockets(socket_fd=udp.detach(), more=[(one.detach(), None) for one in more])
            yield shape, rank, self.route, sockets, servers[rank] if "own" in kind else None

    def change(self, kind: Kind, *, kill: bool = False) -> int:
        """Go on, in all ranks. kill: the way before ends first. Returns how many results were filled in."""
        old = self._way_ends
        if kill:
            old.close()
        chunks = [transport.freeze() for transport in self.transports]
        filled = 0
        for rank, transport in enumerate(self.transports):
            for slot, chunk in enumerate(chunks[rank]):
                ahead = [other for other in range(self.workers) if age(chunks[other][slot], chunk) > 0]
                if ahead:
                    assert transport.fill(self.transports[ahead[0]].kept(chunk))
                    filled += 1
        with old:
            for shape, rank, route, sockets, server in self._way(kind):
                self.transports[rank].go_on(shape, route=route, sockets=sockets, own_server=server)
        return filled

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        self._way_ends.close()


@contextmanager
def ranks_of(workers: int, kind: Kind = "own servers", packet_threads: int = 1) -> Iterator[Ranks]:
    with ExitStack() as stack:
        ranks = Ranks(stack, workers, kind, packet_threads)
        stack.callback(ranks.close)
        yield ranks


class Stream:
    """Submits sums at all ranks, some at a time, and checks them."""

    def __init__(self, ranks: Ranks, seed: int) -> None:
        self._ranks = ranks
        self._draws = np.random.default_rng(seed)
        self._under_way: list[tuple[np.ndarray, np.ndarray, list[int]]] = []

    def submit(self, elements: int) -> None:
        inputs = self._draws.standard_normal((self._ranks.workers, elements), dtype=np.float32)
        outputs = inputs.copy()
        pairs = zip(self._ranks.transports, outputs, strict=True)
        self._under_way.append((inputs, outputs, [transport.submit(row) for transport, row in pairs]))

    def finish(self) -> None:
        for inputs, outputs, tickets in self._under_way:
            for transport, ticket in zip(self._ranks.transports, tickets, strict=True):
                assert transport.wait(ticket, PATIENCE_S)
            expected = reference.all_reduce_array(inputs, lane_bits=32, words=WORDS)
            for row in outputs:
                assert np.array_equal(row.view(np.uint32), expected.view(np.uint32))
        self._under_way.clear()


@pytest.mark.parametrize("kill", [True, False], ids=["dead", "suspected"])
@pytest.mark.parametrize("packet_threads", [1, 2])
def test_sums_go_on_through_many_changes(kill: bool, packet_threads: int) -> None:
    """To ways of all kinds, at any moment of the sums. With servers a worker has one packet thread."""
    draws = random.Random(1)
    kinds: list[Kind] = ["own servers", "a server", "a switch"]
    filled = 0
    with ranks_of(3, "a switch", packet_threads) as ranks:
        stream = Stream(ranks, seed=2)
        for change in range(20):
            for _ in range(draws.randrange(4)):
                stream.submit(draws.choice([1, 1000, 100_000]))
            time.sleep(draws.uniform(0, 0.02))  # a moment that the sums do not choose
            filled += ranks.change(draws.choice(kinds), kill=kill)
            if change % 5 == 4:
                stream.finish()
        assert all(transport.failure is None for transport in ranks.transports)
    assert kill or filled > 0  # ranks freeze one after the other


def test_the_last_result_of_each_slot_stays_as_it_came() -> None:
    """Messages of many results are kept where they were received, and those of few are copied."""
    draws = random.Random(3)
    with ranks_of(3, "a server") as ranks:
        stream = Stream(ranks, seed=3)
        for _ in range(40):
            stream.submit(draws.choice([1, 7000, 100_000, 400_000]))
            if draws.random() < 0.5:
                stream.finish()
        stream.finish()
        for chunk in ranks.transports[0].freeze():
            (result,) = {transport.kept(chunk) for transport in ranks.transports}
            assert reference.decode(result).chunk == chunk - SLOTS
        stats = ranks.transports[0].stats()
    assert stats["packets_received"] > 16 * stats["messages_received"]


def test_packet_threads_rest_on_servers_and_there_are_never_more_than_at_first() -> None:
    with ranks_of(1, "a switch", packet_threads=2) as ranks:
        (transport,) = ranks.transports
        ranks.change("a server")
        assert transport.stats()["packet_threads"] == 1
        ranks.change("a switch")
        assert transport.stats()["packet_threads"] == 2
        ranks.threads = 4
        with pytest.raises(ValueError, match="has 2 packet threads, and the way 4"):
            ranks.change("a switch")


def test_sums_that_are_submitted_while_frozen_wait() -> None:
    with ranks_of(2) as ranks:
        stream = Stream(ranks, seed=1)
        for transport in ranks.transports:
            transport.freeze()
        stream.submit(1000)
        sent = [transport.stats()["packets_sent"] for transport in ranks.transports]
        assert not ranks.transports[0].wait(1, 0.2)
        assert [transport.stats()["packets_sent"] for transport in ranks.transports] == sent
        ranks.change("own servers")
        stream.finish()


def test_a_frozen_transport_can_fail_and_close() -> None:
    with ranks_of(2) as ranks:
        for transport in ranks.transports:
            transport.freeze()
        Stream(ranks, seed=1).submit(1000)
        failing, closing = ranks.transports
        failing.fail("no way is left")
        with pytest.raises(EngineError, match="no way is left"):
            failing.wait(1)
        with pytest.raises(EngineError, match="no way is left"):
            failing.freeze()
        closing.close()
        with pytest.raises(EngineError, match="closed"):
            closing.fill(b"")


def test_closing_ends_a_wait_for_a_frozen_sum() -> None:
    with ranks_of(2) as ranks:
        for transport in ranks.transports:
            transport.freeze()
        Stream(ranks, seed=1).submit(1000)
        ended: list[str] = []

        def wait() -> None:
            with pytest.raises(EngineError) as error:
                ranks.transports[0].wait(1)
            ended.append(error.value.code)

        waiter = threading.Thread(target=wait)
        waiter.start()
        ranks.transports[0].close()
        waiter.join(PATIENCE_S)
        assert ended == ["closed"]


def test_only_a_frozen_transport_fills_in_and_goes_on() -> None:
    with ranks_of(1) as ranks:
        (transport,) = ranks.transports
        with pytest.raises(ValueError, match="not frozen"):
            transport.fill(b"")
        shape = JobShape(number=JOB, epoch=9, slots=SLOTS, words=WORDS, workers=1)
        with pytest.raises(ValueError, match="not frozen"):
            transport.go_on(shape, route=ranks.route, sockets=Sockets(local=HERE))
