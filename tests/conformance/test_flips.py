# SPDX-License-Identifier: Apache-2.0
"""A bit that flips on the way never gives a wrong sum (docs/protocol.md, 3.2, 4, 5.2 and 9), and no job stands still.

Two ranks that share a host, so that the switch admits either as the other, sum two queued collectives: every role that
a packet can have is there. Then all over again for every packet, and every bit of its header and some of its words.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from inagg._core import LaneBits
from inagg_simulator import reference
from inagg_simulator.reference_switch import Aggregator
from inagg_simulator.virtual_network import PERFECT, Impairment, Network, make_aggregator, make_workers

WORKERS, SLOTS, WORDS = 2, 2, 1
HEADER_BITS = 8 * reference.HEADER.size
# The first, the last and some other bits of the words.
WORD_BITS = [HEADER_BITS + bit for bit in (0, 7, 15, 31, 1000, 2047)]
HEADER_FIELDS = {
    "version and kind": range(8),
    "rank": range(8, 16),
    "job": range(16, 32),
    "flags and exponent": range(32, 64),
    "epoch": range(64, 96),
    "chunk": range(96, 128),
    "checksum": range(128, 160),
}
# Long before the give-up time.
SOON_S = 5.0


@dataclass
class OneHost:
    """A switch with all ranks at one port and address: a packet's rank is the one in its header."""

    aggregator: Aggregator

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        header = reference.decode(datagram)
        return self.aggregator.process(header.rank if header.rank < WORKERS else rank, datagram)


@dataclass
class Tampering(Network):
    """A network that passes each packet, with its number in its direction, through `tamper`."""

    up: bool = True
    tamper: Callable[[int, bytes], bytes] = lambda _, datagram: datagram
    passed: int = 0

    def send(self, rank: int, datagram: bytes, *, up: bool) -> None:
        if up == self.up:
            datagram = self.tamper(self.passed, datagram)
            self.passed += 1
        super().send(rank, datagram, up=up)


def inputs() -> list[NDArray[np.float32]]:
    """Inputs of two collectives, [rank, element]. The first has three blocks, one with an infinity."""
    first = np.array([np.linspace(-1, 1, 140), np.linspace(3, 4, 140)], np.float32)
    first[1, 70:80] *= 1000
    first[0, 5] = np.inf
    return [first, np.array([[0.5, 7], [-3, 1e-3]], np.float32)]


LANE_BITS: tuple[LaneBits, LaneBits] = (32, 16)
EXPECTED = [
    reference.all_reduce_array(own, lane_bits=lane_bits, words=WORDS)
    for own, lane_bits in zip(inputs(), LANE_BITS, strict=True)
]


def run(
    *, up: bool, tamper: Callable[[int, bytes], bytes], impairment: Impairment = PERFECT
) -> tuple[str, Tampering]:
    """Do both collectives. Returns "done", or "failed" if a rank failed. AssertionError for a wrong sum, and for a job
    that stands still."""
    engines = make_workers(WORKERS, slots=SLOTS, words=WORDS, rto_initial_s=0.05)
    switch = OneHost(make_aggregator(WORKERS, slots=SLOTS, words=WORDS))
    network = Tampering(engines, switch, impairment, up=up, tamper=tamper)
    outputs = inputs()
    for output, lane_bits in zip(outputs, LANE_BITS, strict=True):
        for rank, engine in enumerate(engines):
            engine.submit(output[rank], lane_bits=lane_bits, now=0.0)
    for rank in range(WORKERS):
        network.flush(rank)
    # Until nothing more can happen: every engine is done or has failed.
    while network.step():
        # A rank that fails ends the job: the controller tells the others (6.3).
        ended = any(engine.failure is not None for engine in engines)
        assert ended or network.now < SOON_S, "the job stands still"
    for rank, done in network.completed.items():
        for ticket in done:
            np.testing.assert_array_equal(outputs[ticket - 1][rank], EXPECTED[ticket - 1])
    whole = all(len(done) == len(outputs) for done in network.completed.values())
    assert whole == all(engine.failure is None for engine in engines)
    return "done" if whole else "failed", network


def flip(number: int, bit: int) -> Callable[[int, bytes], bytes]:
    def tamper(passed: int, datagram: bytes) -> bytes:
        if passed != number:
            return datagram
        damaged = bytearray(datagram)
        damaged[bit // 8] ^= 0x80 >> bit % 8
        return bytes(damaged)

    return tamper


def packets(up: bool) -> list[bytes]:
    seen: list[bytes] = []

    def record(_: int, datagram: bytes) -> bytes:
        seen.append(datagram)
        return datagram

    outcome, _ = run(up=up, tamper=record)
    assert outcome == "done"
    return seen


CONTRIBUTIONS, RESULTS = packets(up=True), packets(up=False)


def flips(datagrams: list[bytes], bits: range) -> Iterator[tuple[int, int]]:
    for number, datagram in enumerate(datagrams):
        yield from ((number, bit) for bit in bits if bit < 8 * len(datagram))


def outcomes(datagrams: list[bytes], bits: range) -> Counter[str]:
    up = datagrams is CONTRIBUTIONS
    return Counter(run(up=up, tamper=flip(number, bit))[0] for number, bit in flips(datagrams, bits))


def test_every_role_and_flag_is_among_the_packets() -> None:
    headers = [reference.decode(datagram) for datagram in CONTRIBUTIONS]
    assert {header.kind for header in headers} == {reference.EXPONENT, reference.DATA}
    assert {header.flags for header in headers} == {0, reference.SPECIAL, reference.NOT_READY}
    assert len({header.exponent for header in headers}) > 4


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_flip_in_a_results_header_is_repaired(field: str) -> None:
    assert set(outcomes(RESULTS, HEADER_FIELDS[field])) == {"done"}


def test_a_flip_in_a_results_words_is_repaired() -> None:
    for number, datagram in enumerate(RESULTS):
        for bit in WORD_BITS if len(datagram) > reference.HEADER.size else ():
            outcome, network = run(up=False, tamper=flip(number, bit))
            assert outcome == "done"
            assert sum(engine.stats["corrupt"] for engine in network.engines) == 1


@pytest.mark.parametrize("field", HEADER_FIELDS)
def test_a_flip_in_a_contributions_header_gives_no_wrong_sum(field: str) -> None:
    found = outcomes(CONTRIBUTIONS, HEADER_FIELDS[field])
    assert found.total() > 0
    if field not in ("rank", "chunk", "checksum"):
        # The switch sees the damage and adds nothing: the packet is as good as lost.
        assert set(found) == {"done"}


@pytest.mark.parametrize("loss", [0.1, 0.3])
def test_no_flip_in_a_contributions_chunk_or_rank_makes_a_lossy_job_stand_still(loss: float) -> None:
    for field in ("chunk", "rank"):
        for number, bit in flips(CONTRIBUTIONS, HEADER_FIELDS[field]):
            run(up=True, tamper=flip(number, bit), impairment=Impairment(loss=loss))


def test_a_flip_in_a_contributions_words_is_an_error_that_names_the_chunk() -> None:
    for number, datagram in enumerate(CONTRIBUTIONS):
        for bit in WORD_BITS if len(datagram) > reference.HEADER.size else ():
            outcome, network = run(up=True, tamper=flip(number, bit))
            assert outcome == "failed"
            chunk = reference.decode(datagram).chunk
            failures = [engine.failure for engine in network.engines]
            assert all(failure is not None and failure.chunk == chunk for failure in failures)
            assert {failure.code for failure in failures if failure is not None} == {"checksum"}
