# SPDX-License-Identifier: Apache-2.0
"""Workers with several packet threads: in virtual time, where they take turns, and on 127.0.0.1, where they do not."""

import random
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg._core import Engine, EngineError, Sockets, Transport
from inagg_contract.constants import RUN_CHUNKS
from inagg_simulator import reference
from inagg_simulator.reference_switch import Aggregator
from inagg_simulator.virtual_network import Impairment, Network, make_aggregator, make_shape, make_workers
from tests.conformance.loopback_switch import (
    WORDS,
    LoopbackSwitch,
    group,
    make_transport,
    run_program,
    silent_peer,
    sockets_for,
)
from tests.waiting import wait_until

SLOTS, LANES = 256, 64
PATIENCE_S = 60.0
UDP_SEGMENT = 103  # udp(7)


@settings(deadline=None, max_examples=30)
@given(
    packet_threads=st.sampled_from([(1, 2), (2, 2), (4, 1), (8, 4)]),
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=4),
    first_chunk=st.sampled_from([0, 17, 2**32 - 300]),
    loss=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 1 << 20),
)
def test_sums_do_not_depend_on_the_packet_threads(
    packet_threads: tuple[int, int], sizes: list[int], first_chunk: int, loss: float, seed: int
) -> None:
    """The second number is that of the switch's threads."""
    mine, of_switch = packet_threads
    draws = np.random.default_rng(seed)
    inputs = [draws.standard_normal((3, size), dtype=np.float32) for size in sizes]
    for array in inputs:
        array[draws.random(array.shape) < 0.001] = np.nan
        array[draws.random(array.shape) < 0.001] *= 1e20
    engines = make_workers(
        3, slots=SLOTS, words=1, first_chunk=first_chunk, threads=of_switch, packet_threads=mine
    )
    aggregator = make_aggregator(3, slots=SLOTS, words=1, first_chunk=first_chunk)
    impairment = Impairment(delay=0.001, loss=loss, duplication=loss, jitter=loss / 100, merging=0.0005)
    network = Network(engines, aggregator, impairment, draws=random.Random(seed))
    outputs = [array.copy() for array in inputs]
    for array in outputs:
        for engine, row in zip(engines, array, strict=True):
            engine.submit(row)
    network.run(len(sizes), within=60.0)
    for array, result in zip(inputs, outputs, strict=True):
        expected = reference.all_reduce_array(array, lane_bits=32, words=1)
        for row in result:
            np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("packet_threads", [0, 3, 16, 128])
def test_the_number_is_a_power_of_two_with_a_run_of_slots_for_each(packet_threads: int) -> None:
    with pytest.raises(ValueError, match=f"packet_threads is {packet_threads}; it must be a power of two"):
        Engine(make_shape(2, slots=SLOTS, words=1), rank=0, packet_threads=packet_threads)


def test_with_servers_there_is_one() -> None:
    with pytest.raises(ValueError, match="with servers a worker has one packet thread"):
        Engine(make_shape(2, slots=SLOTS, words=1), rank=0, ways=2, ways_apart=True, packet_threads=2)


def check_sums(transports: Sequence[Transport], sizes: Sequence[int]) -> None:
    """All at once."""
    draws = np.random.default_rng(1)
    inputs = [draws.standard_normal((len(transports), size), dtype=np.float32) for size in sizes]
    outputs = [array.copy() for array in inputs]
    tickets = [
        [transport.submit(row) for transport, row in zip(transports, array, strict=True)] for array in outputs
    ]
    for mine in tickets:
        assert all(t.wait(ticket, PATIENCE_S) for t, ticket in zip(transports, mine, strict=True))
    for array, result in zip(inputs, outputs, strict=True):
        expected = reference.all_reduce_array(array, lane_bits=32, words=WORDS)
        for row in result:
            np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("packet_threads", [2, 4])
def test_sums_are_exact_at_every_rank(packet_threads: int, loss: float) -> None:
    with group(3, loss=loss, packet_threads=packet_threads) as transports:
        check_sums(transports, [1, 0, 256, 257, 30_000, 100_001, 1000])
        for transport in transports:
            stats = transport.stats()
            assert stats["packet_threads"] == packet_threads
            assert stats["corrupt"] == stats["discarded"] == 0


def test_special_values_and_half_precision() -> None:
    draws = np.random.default_rng(2)
    inputs = draws.standard_normal((2, 60_000), dtype=np.float32)
    inputs[0, ::1000], inputs[1, 7::5000], inputs[1, 3::7000] = np.inf, np.nan, 1e30
    with group(2, packet_threads=2) as transports:
        outputs = inputs.copy()
        halves = [row.astype(np.float16) for row in np.clip(inputs, -9, 9)]
        wide, narrow = inputs.copy(), inputs.copy()
        tickets = []
        for transport, *rows in zip(transports, outputs, halves, wide, narrow, strict=True):
            first, second, third, fourth = rows
            tickets.append(
                [
                    transport.submit(first),
                    transport.submit(second, lane_bits=16),
                    transport.submit(third, lane_bits=16, average=True),
                    transport.submit(fourth, lane_bits=8, stochastic=5),
                ]
            )
        for transport, mine in zip(transports, tickets, strict=True):
            assert all(transport.wait(ticket, PATIENCE_S) for ticket in mine)
    np.testing.assert_array_equal(outputs[0], reference.all_reduce_array(inputs, lane_bits=32, words=WORDS))
    for ranks in (outputs, halves, wide, narrow):
        np.testing.assert_array_equal(ranks[0], ranks[1])


class JoiningSwitch(LoopbackSwitch):
    """Sends the results of several runs as one message, as the network card of a receiver may join them: one packet
    thread gets chunks of all."""

    mixed = 0  # messages for two threads

    def __init__(self, aggregator: Aggregator, *, loss: float = 0.0) -> None:
        super().__init__(aggregator, loss=loss)
        self._joined: dict[tuple[str, int], list[bytes]] = {}

    def _send(self, result: bytes, to: tuple[str, int]) -> None:
        waiting = self._joined.setdefault(to, [])
        if waiting and len(waiting[0]) != len(result):
            self._flush(to)
        self._joined.setdefault(to, []).append(result)
        if len(self._joined[to]) == RUN_CHUNKS + RUN_CHUNKS // 2:
            self._flush(to)

    def _idle(self) -> None:
        for to in list(self._joined):
            self._flush(to)

    def _flush(self, to: tuple[str, int]) -> None:
        results = self._joined.pop(to)
        runs = {reference.decode(result).chunk // RUN_CHUNKS % 2 for result in results}
        JoiningSwitch.mixed += len(runs) > 1
        segments = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("H", len(results[0])))]
        self._socket.sendmsg([b"".join(results)], segments, 0, to)


def test_a_thread_takes_results_of_another_s_chunks_too() -> None:
    with group(2, packet_threads=2, switch=JoiningSwitch) as transports:
        check_sums(transports, [200_000, 1000, 50_000])
    assert JoiningSwitch.mixed > 0


def test_failing_and_closing_end_what_is_under_way() -> None:
    """After fail() the memory is the caller's."""
    for end in (lambda transport: transport.fail("because"), lambda transport: transport.close()):
        with group(1, packet_threads=4) as (transport,):
            array = np.ones(20_000_000, np.float32)
            ticket = transport.submit(array)
            wait_until(lambda: transport.stats()["packets_received"] > 1000, "results arrive", PATIENCE_S)
            end(transport)
            array[:] = 7
            with pytest.raises(EngineError):
                transport.wait(ticket, PATIENCE_S)
            assert (array == 7).all()


def test_silence_is_given_up() -> None:
    with silent_peer() as peer:
        transport = make_transport(peer, sockets=sockets_for(2), slots=128, give_up_s=0.2, rto_initial_s=0.02)
        with pytest.raises(EngineError) as caught:
            transport.wait(transport.submit(np.ones(100_000, np.float32)), PATIENCE_S)
        assert caught.value.code == "give_up"
        transport.close()


def test_strangers_are_not_heard() -> None:
    """Sockets that several threads share are not connected."""
    with silent_peer() as peer, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        transport = make_transport(peer, sockets=sockets_for(2), slots=128, give_up_s=0.3)
        ticket = transport.submit(np.ones(10, np.float32))
        stranger.sendto(b"\x42" * 1044, transport.local_address)
        with pytest.raises(EngineError):
            transport.wait(ticket, PATIENCE_S)
        assert transport.stats()["discarded"] == 0
        transport.close()


def test_sockets_share_one_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, silent_peer() as peer:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first:
            first.bind(("127.0.0.1", 0))
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sockets = Sockets(socket_fd=first.fileno(), more=[(other.fileno(), None)])
            with pytest.raises(ValueError, match="all packet threads have one address"):
                make_transport(peer, sockets=sockets, slots=128)
            first.getsockname()  # it is the caller's still
    descriptors = Path("/proc/self/fd")
    open_before = len(list(descriptors.iterdir()))
    with silent_peer() as peer:
        make_transport(peer, sockets=sockets_for(4), slots=128).close()
    assert len(list(descriptors.iterdir())) == open_before


FORKS = """
import os, sys
import numpy as np
from tests.conformance.loopback_switch import make_transport, silent_peer, sockets_for

with silent_peer() as peer:
    transport = make_transport(peer, sockets=sockets_for(2), slots=128)
    transport.submit(np.ones(1_000_000, np.float32))
    for _ in range(20):
        child = os.fork()
        if child == 0:
            transport.close()
            del transport
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    transport.close()
"""


def test_a_forked_child_may_let_go_of_it() -> None:
    result = run_program(FORKS, timeout_s=PATIENCE_S)
    assert result.returncode == 0, result.stderr


@pytest.mark.netns
def test_the_benchmark_of_a_worker_alone_runs() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.worker_path", "--rounds", "1", "--elements", "200000"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if "TCX" in run.stderr:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr
    assert "| 2 packet threads |" in run.stdout
