# SPDX-License-Identifier: Apache-2.0
"""Messages of many datagrams (UDP_GRO): they do what their datagrams do one by one."""

from collections.abc import Callable

import numpy as np
import pytest

from inagg._core import Engine
from inagg_simulator import reference
from inagg_simulator.virtual_network import (
    Impairment,
    all_reduce,
    make_aggregator,
    make_network,
    make_workers,
)

SLOTS, WORDS = 64, 1
DELAY = 0.001


def engine_with_results(roots: int = 1) -> tuple[Engine, list[bytes]]:
    """A job's only worker with its DATA contributions under way, and their results."""
    (engine,) = make_workers(1, slots=SLOTS, words=WORDS, ways=roots)
    switch = make_aggregator(1, slots=SLOTS, words=WORDS)
    engine.submit(np.arange(64 * SLOTS, dtype=np.float32), now=0.0)
    for now in (0.0, DELAY):
        results = [result for sent in engine.to_send(now) for _, result in switch.process(0, sent)]
        if now == 0.0:
            engine.receive(b"".join(results), DELAY, datagram_bytes=len(results[0]))
    assert reference.decode(results[0]).kind == 0xA
    return engine, results


def damaged(result: bytes) -> bytes:
    return result[:-1] + bytes([result[-1] ^ 1])


Change = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize("roots", [1, 4])
@pytest.mark.parametrize("change", [
    lambda r: r,
    lambda r: r[::-1],
    lambda r: r[1::2],
    lambda r: r[:5] + r[:5] + r[5:],
    lambda r: [one for one in r for _ in range(2)],
    lambda r: [*r[:3], damaged(r[3]), *r[4:], r[3]],
    lambda r: [damaged(r[0]), *r],
    lambda r: [*r[:7], bytes(len(r[0])), *r[7:]],
    lambda r: [*r[:-1], damaged(r[-1])],
    lambda r: [*r[:9], r[9][:100]],
    lambda r: [b""],
    lambda r: r[4:] + r[:4],
    lambda r: r[4:],
    lambda r: r[6:-1],
])  # fmt: skip
def test_a_message_does_what_its_datagrams_do_one_by_one(change: Change, roots: int) -> None:
    one_by_one, results = engine_with_results(roots)
    at_once, _ = engine_with_results(roots)
    datagrams = change(results)
    for datagram in datagrams:
        one_by_one.receive(datagram, 3 * DELAY)
    at_once.receive(b"".join(datagrams), 3 * DELAY, datagram_bytes=max(len(datagrams[0]), 1))
    assert counts(at_once) == counts(one_by_one)
    assert at_once.stats["rtt_samples"] <= one_by_one.stats["rtt_samples"]
    for now in (3 * DELAY, 4 * DELAY):  # at the later time what was overtaken is doubtful
        assert at_once.to_send(now) == one_by_one.to_send(now)
    assert at_once.completed() == one_by_one.completed()
    assert at_once.failure is None


def counts(engine: Engine) -> dict[str, float]:
    """The statistics, but for the RTT's: a run is one RTT."""
    estimates = {"rtt_samples", "srtt_s", "rttvar_s", "rto_s"}
    return {name: value for name, value in engine.stats.items() if name not in estimates}  # type: ignore[misc]


def test_a_run_is_one_rtt_of_all_its_packets() -> None:
    engine, results = engine_with_results()
    before = engine.stats["rtt_samples"]
    engine.receive(b"".join(results), 5 * DELAY, datagram_bytes=len(results[0]))
    assert engine.stats["rtt_samples"] == before + 1
    assert engine.stats["packets_received"] == 2 * SLOTS
    assert engine.stats["in_flight"] == 0


def test_a_message_goes_on_with_the_next_collective() -> None:
    (engine,) = make_workers(1, slots=8, words=WORDS)
    switch = make_aggregator(1, slots=8, words=WORDS)
    first, second = np.ones(64 * 3, np.float32), np.full(64 * 3, 2, np.float32)
    for data in (first, second):
        engine.submit(data)
    for _ in range(8):
        results = [result for sent in engine.to_send(0.0) for _, result in switch.process(0, sent)]
        for kind in (0x9, 0xA):
            some = [one for one in results if reference.decode(one).kind == kind]
            if some:
                engine.receive(b"".join(some), 0.0, datagram_bytes=len(some[0]))
    assert engine.completed() == [1, 2]
    assert np.array_equal(first, np.ones(64 * 3))
    assert np.array_equal(second, np.full(64 * 3, 2))


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.1])
def test_merged_results_sum_under_loss(loss: float) -> None:
    impairment = Impairment(loss=loss, duplication=loss, jitter=0.0002, merging=0.0005)
    network = make_network(3, slots=SLOTS, words=WORDS, impairment=impairment, seed=3)
    inputs = np.random.default_rng(5).standard_normal((3, 64 * 700), dtype=np.float32)
    expected = reference.all_reduce_array(inputs, lane_bits=32, words=WORDS, average=False)
    for output in all_reduce(network, inputs):
        assert np.array_equal(output, expected)
    assert (network.engines[0].stats["retransmits"] > 0) == (loss > 0)
