# SPDX-License-Identifier: Apache-2.0
"""Ranks that sum themselves over gloo: real transports and connections, of several ranks in one process."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from torch._C._distributed_c10d import HashStore

from inagg._core import EngineError, JobShape, Route, Sockets, Transport
from inagg.inner.rounds import GlooRounds
from inagg.membership import rounds as membership_rounds
from inagg.membership.rounds import Rounds
from tests.waiting import wait_until

SLOTS = 16


class Ranks:
    def __init__(self, size: int) -> None:
        self.size = size
        store, self.pool = HashStore(), ThreadPoolExecutor(size)
        connect = partial(GlooRounds, store, size=size, address="127.0.0.1", host="here", epoch=3)
        groups = list(self.pool.map(lambda rank: connect(rank=rank), range(size)))
        job = JobShape(number=1, epoch=3, slots=SLOTS, words=4, workers=size)
        self.rounds = [Rounds(job, range(SLOTS), group) for group in groups]
        self.transports = [
            Transport(
                job,
                rank=rank,
                member=0,
                route=Route(servers=[one.core.local_address]),
                sockets=Sockets(local=("127.0.0.1", 0)),
                own_server=one.core,
                keeps_results=True,
            )
            for rank, one in enumerate(self.rounds)
        ]

    def sum(self, elements: int) -> None:
        draws = np.random.default_rng(elements)
        given = draws.integers(-1000, 1000, (self.size, elements)).astype(np.float32)
        arrays = [each.copy() for each in given]
        tickets = [each.submit(array) for each, array in zip(self.transports, arrays, strict=True)]
        for transport, ticket, array in zip(self.transports, tickets, arrays, strict=True):
            assert transport.wait(ticket, 30)
            np.testing.assert_array_equal(array, given.sum(axis=0))

    def close(self) -> None:
        for transport, rounds in zip(self.transports, self.rounds, strict=True):
            transport.close()
            rounds.close()
        self.pool.shutdown()


@pytest.fixture
def ranks() -> Iterator[Callable[[int], Ranks]]:
    made: list[Ranks] = []

    def make(size: int) -> Ranks:
        made.append(Ranks(size))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_sum(ranks: Callable[[int], Ranks], size: int) -> None:
    some = ranks(size)
    for elements in (1, 255, 4 * 64 * SLOTS * 3 + 1):
        some.sum(elements)
    for transport in some.transports:
        stats = transport.stats()
        assert (stats["retransmits"], stats["corrupt"], stats["silent_chunk"]) == (0, 0, None)


def test_rounds_end_while_they_wait_for_another_rank(ranks: Callable[[int], Ranks]) -> None:
    two = ranks(2)
    two.sum(100)
    two.transports[0].submit(np.ones(100, np.float32))
    wait_until(lambda: two.transports[0].stats()["in_flight"] > 0, "rank 0 waits")
    two.rounds[0].close()
    assert two.rounds[0].failure is None


def test_a_broken_connection_ends_the_rounds_of_ranks_that_wait(
    ranks: Callable[[int], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_rounds, "_GRACE_S", 0.0)
    two = ranks(2)
    two.sum(100)
    ticket = two.transports[0].submit(np.ones(100, np.float32))
    two.rounds[1]._group.break_off()
    wait_until(lambda: two.rounds[0].failure is not None, "rank 0 sees it")
    assert not two.transports[0].wait(ticket, 0)
    two.transports[0].fail("its way is lost")
    with pytest.raises(EngineError, match="its way is lost"):
        two.transports[0].wait(ticket, 1)
