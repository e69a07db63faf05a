# SPDX-License-Identifier: Apache-2.0
"""The window of chunks in flight (protocol 6.2) on links of known rate and delay, in virtual time."""

import random

import numpy as np
import pytest

from inagg._core import Engine
from inagg_simulator.servers import Servers, make_servers
from inagg_simulator.virtual_network import EPOCH, JOB, Impairment, Network, make_network, make_workers

WORDS = 1
PACKET_BYTES = 20 + 256 * WORDS
RATE = 1000 * PACKET_BYTES / 0.01  # a thousand packets in ten milliseconds
DELAY = 0.0002


def run(blocks: int, *, slots: int, workers: int = 2, **impairment: float) -> Network:
    """Do one all-reduce of `blocks` blocks."""
    network = make_network(
        workers, slots=slots, words=WORDS, impairment=Impairment(delay=DELAY, rate=RATE, **impairment)
    )
    for engine in network.engines:
        engine.submit(np.ones(blocks * 64, np.float32), now=network.now)
    network.run(1, within=60.0)
    return network


def test_it_grows_until_queues_reach_the_target_and_stays_there() -> None:
    network = run(20_000, slots=4096)
    stats = network.engines[0].stats
    queueing = stats["srtt_s"] - stats["least_rtt_s"]
    assert queueing == pytest.approx(0.004, rel=0.25)
    # The bandwidth-delay product.
    assert stats["window"] == pytest.approx((0.004 + 2 * DELAY) * RATE / PACKET_BYTES, rel=0.25)
    assert stats["retransmits"] == 0
    # The link was busy.
    assert network.now < 1.05 * 20_000 * PACKET_BYTES / RATE


def test_it_stays_within_the_slots() -> None:
    network = run(5_000, slots=128)
    assert network.engines[0].stats["window"] == 128


def test_losses_alone_do_not_shrink_it() -> None:
    lossless = run(10_000, slots=128)
    lossy = run(10_000, slots=128, loss=0.01)
    assert lossy.engines[0].stats["window"] == 128
    assert lossy.now < 1.25 * lossless.now


def run_on_servers(servers: int, blocks: int, *, slots: int, **impairment: float) -> Network:
    """Do one all-reduce of two ranks; their links are those of `run`."""
    made = make_servers(servers, job=JOB, epoch=EPOCH, slots=slots, words=WORDS, workers=2)
    network = Network(
        make_workers(2, slots=slots, words=WORDS, ways=servers, ways_apart=True),
        Servers(made, slots, 2),
        Impairment(delay=DELAY, rate=RATE, **impairment),
        random.Random(0),
    )
    for engine in network.engines:
        engine.submit(np.ones(blocks * 64, np.float32), now=network.now)
    network.run(1, within=60.0)
    return network


@pytest.mark.parametrize("servers", [2, 3, 8])
def test_to_servers_delay_alone_does_not_shrink_it(servers: int) -> None:
    """A result waits for the groups of all ranks at its server: that is no queue."""
    network = run_on_servers(servers, 20_000, slots=1024)
    stats = network.engines[0].stats
    assert stats["srtt_s"] - stats["least_rtt_s"] > 0.005
    assert stats["window"] == 1024
    assert network.now < 1.05 * 20_000 * PACKET_BYTES / RATE


@pytest.mark.parametrize(("loss", "times"), [(0.001, 1.15), (0.01, 1.3)])
def test_to_servers_losses_are_made_good_while_the_others_go_on(loss: float, times: float) -> None:
    lossless = run_on_servers(8, 10_000, slots=256)
    assert run_on_servers(8, 10_000, slots=256, loss=loss).now < times * lossless.now


def test_one_server_of_many_ranks_is_steered_by_delay() -> None:
    """More packets meet at its link than a rank's window shows."""
    network = run_on_servers(1, 20_000, slots=1024)
    assert network.engines[0].stats["window"] < 700


def test_to_servers_a_queue_that_overflows_shrinks_it() -> None:
    network = run_on_servers(4, 20_000, slots=4096, queue=512 * PACKET_BYTES)
    assert network.engines[0].stats["window"] < 1024
    assert network.now < 1.3 * 20_000 * PACKET_BYTES / RATE


@pytest.mark.parametrize("slots", [256, 1024])
def test_a_queue_too_short_to_be_seen_costs_little_time(slots: int) -> None:
    assert run(5_000, slots=slots, queue=64 * PACKET_BYTES).now < 1.15 * 5_000 * PACKET_BYTES / RATE


@pytest.mark.parametrize(("loss", "times"), [(0.01, 1.25), (0.05, 2.0)])
def test_losses_are_made_good_at_the_pace_of_the_link(loss: float, times: float) -> None:
    lossless = run(8_000, slots=1024, workers=4)
    assert run(8_000, slots=1024, workers=4, loss=loss).now < times * lossless.now


def test_a_late_rank_neither_shrinks_it_nor_is_flooded() -> None:
    network = make_network(2, slots=1024, words=WORDS, impairment=Impairment(delay=DELAY, rate=RATE))
    early, late = network.engines
    array = [np.ones(5_000 * 64, np.float32) for _ in range(2)]
    for engine, own in zip(network.engines, array, strict=True):
        engine.submit(own)
    network.run(1, within=10.0)
    before = early.stats
    start = network.now
    network.plan(start, 0, lambda engine: engine.submit(array[0], now=start))
    network.plan(start + 5.0, 1, lambda engine: engine.submit(array[1], now=start + 5.0))
    while network.now < start + 4.9:
        assert network.step()
    waiting = early.stats
    # One window, and then a short query now and then, with a contribution in the place of each that is held.
    assert waiting["probes"] - before["probes"] <= 30
    assert waiting["queries"] - before["queries"] <= 30
    assert waiting["packets_sent"] - before["packets_sent"] <= before["window"] + 60
    network.run(2, within=start + 10.0)
    assert early.stats["window"] >= before["window"] / 2
    assert early.stats["srtt_s"] < 0.1
    assert early.stats["silent_s"] == 0.0
    assert early.stats["window_limit"] == 1024
    assert late.stats["retransmits"] < 50


def test_it_recovers_when_the_network_becomes_slower() -> None:
    network = make_network(1, slots=256, words=WORDS, impairment=Impairment(delay=DELAY))
    (engine,) = network.engines
    engine.submit(np.ones(20_000 * 64, np.float32))

    def slow_down(_engine: Engine) -> None:
        network.impairment = Impairment(delay=0.05)

    network.plan(0.02, 0, slow_down)
    network.run(1, within=60.0)
    # 16 chunks an RTT would have taken 120 s.
    assert engine.stats["window"] == 256
