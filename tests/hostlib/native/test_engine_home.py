# SPDX-License-Identifier: Apache-2.0
"""The engine of a rank in whose process a server runs, behind shared slots (docs/protocol.md, 5.7 and 6)."""

import numpy as np
import pytest

from inagg._core import Engine
from inagg_contract.sizes import way_of
from inagg_simulator import reference
from inagg_simulator.reference import AGAIN, DATA, EXPONENT, QUERY, RESULT
from inagg_simulator.servers import make_servers
from inagg_simulator.virtual_network import EPOCH, JOB, make_shape, make_workers

SLOTS, WORDS = 16, 1
RTT = 0.01


def sum_alone(engine: Engine, blocks: int, now: float) -> float:
    """One collective with the server at home, which answers after RTT. Returns the time of its end."""
    (server,) = make_servers(
        1, job=JOB, epoch=EPOCH, slots=SLOTS, words=WORDS, workers=1, relayed=True, homes=[0]
    )
    engine.submit(np.ones(64 * blocks, np.float32), now=now)
    while not engine.completed():
        for datagram in engine.to_send(now):
            for _, result in server.receive(datagram, 0):
                engine.receive(result, now + RTT)
        now += RTT
    return now


@pytest.mark.parametrize("at_home", [True, False])
def test_a_server_at_home_measures_no_network(at_home: bool) -> None:
    (engine,) = make_workers(1, slots=SLOTS, words=WORDS, homes=[0] if at_home else [])
    sum_alone(engine, 100, 0.0)
    stats = engine.stats
    assert (stats["chunks_completed"], stats["queries"]) == (100 + SLOTS, 0)
    assert (stats["rtt_samples"] == 0) == at_home


def test_a_rank_says_its_rank_at_home_and_its_number_at_the_switch() -> None:
    homes = (0, 1)
    engines = make_workers(3, slots=SLOTS, words=WORDS, members=(5, 6, 7), ways=2, homes=homes)
    for rank, (engine, member) in enumerate(zip(engines, (5, 6, 7), strict=True)):
        engine.submit(np.ones(64 * SLOTS, np.float32), now=0.0)
        headers = [reference.decode(datagram) for datagram in engine.to_send(0.0)]
        assert {header.chunk for header in headers} == set(range(SLOTS))
        for header in headers:
            at_home = rank in homes and way_of(header.chunk, SLOTS, 2) == rank
            assert header.rank == (rank if at_home else member)


def test_what_goes_to_the_switch_leaves_first() -> None:
    engines = make_workers(2, slots=SLOTS, words=WORDS, ways=2, homes=(0, 1))
    for rank, engine in enumerate(engines):
        engine.submit(np.ones(64 * SLOTS, np.float32), now=0.0)
        chunks = [reference.decode(datagram).chunk for datagram in engine.to_send(0.0)]
        ways = [way_of(chunk, SLOTS, 2) for chunk in chunks]
        assert ways == [1 - rank] * (SLOTS // 2) + [rank] * (SLOTS // 2)


def answer(query: bytes, *, again: bool) -> bytes:
    header = reference.decode(query)
    assert header.kind & QUERY
    assert header.kind & ~QUERY in (EXPONENT, DATA)
    return header._replace(kind=header.kind | RESULT).announcing(AGAIN if again else 0, 0).encode()


def test_answers_of_a_server_at_home_are_no_samples() -> None:
    (engine, _) = make_workers(2, slots=2, words=WORDS, ways=2, homes=(0, 1), rto_initial_s=0.1)
    engine.submit(np.ones(64, np.float32), now=0.0)
    assert len(engine.to_send(0.0)) == 1
    now = 0.2
    (query,) = engine.to_send(now)
    engine.receive(answer(query, again=True), now + 0.001)
    assert engine.stats["rtt_samples"] == 0
    (contribution,) = engine.to_send(now + 0.001)
    assert reference.decode(contribution).kind == EXPONENT


@pytest.mark.parametrize("ways_apart", [False, True])
def test_home_is_one_of_the_ways(ways_apart: bool) -> None:
    with pytest.raises(ValueError, match="home is one of the ways, of which there are 2"):
        Engine(make_shape(2, slots=SLOTS, words=WORDS), rank=0, ways=2, ways_apart=ways_apart, home=2)
