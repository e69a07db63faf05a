# SPDX-License-Identifier: Apache-2.0
"""The order in which a worker sends its packets (protocol 3.2, 3.3 and 6)."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inagg._core import Engine, JobShape, RetransmissionPolicy
from inagg_simulator import reference
from inagg_simulator.virtual_network import make_aggregator, make_shape, make_workers

BLOCK = 64  # elements of 32 bits in one word
KINDS = {1: "exponent", 2: "data", 5: "exponent query", 6: "data query"}


def ones(blocks: int) -> NDArray[np.float32]:
    return np.ones(blocks * BLOCK, np.float32)


def lone_worker(slots: int, **settings: Any) -> Engine:
    """A worker that sends no probe within the test: only answers move it."""
    (engine,) = make_workers(
        1, slots=slots, words=1, rto_initial_s=1e3, rto_max_s=1e3, give_up_s=1e6, **settings
    )
    return engine


class Answering:
    """A job of one worker. Keeps its packets by chunk; the test answers each, a second later."""

    def __init__(self, engine: Engine, slots: int, first_chunk: int) -> None:
        self.engine = engine
        self._switch = make_aggregator(1, slots=slots, words=1, first_chunk=first_chunk)
        self._results: dict[int, bytes] = {}
        self._now = 0.0

    def sent(self) -> list[tuple[int, str]]:
        """(chunk, kind) of each packet that the worker sends now."""
        out = []
        for datagram in self.engine.to_send(self._now):
            header = reference.decode(datagram)
            if header.kind in (reference.EXPONENT, reference.DATA):
                ((_, self._results[header.chunk]),) = self._switch.process(0, datagram)
            out.append((header.chunk, KINDS[header.kind]))
        return out

    def answer(self, *chunks: int) -> None:
        self._now += 1
        for chunk in chunks:
            self.engine.receive(self._results[chunk], self._now)


def start(slots: int, *collectives: NDArray[np.float32], **settings: int) -> Answering:
    engine = lone_worker(slots, **settings)
    for array in collectives:
        engine.submit(array)
    return Answering(engine, slots, settings.get("first_chunk", 0))


def test_exponents_travel_a_window_ahead_of_their_blocks() -> None:
    worker = start(2, ones(3))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(0, 1)
    assert worker.sent() == [(2, "data"), (3, "data")]
    worker.answer(2, 3)
    assert worker.sent() == [(4, "data")]
    worker.answer(4)
    assert worker.engine.completed() == [1]


def test_a_collective_smaller_than_the_window_uses_as_many_slots_as_blocks() -> None:
    worker = start(8, ones(2))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(1)
    assert worker.sent() == [(3, "data")]
    worker.answer(0)
    assert worker.sent() == [(2, "data")]


def test_a_lost_packet_holds_up_its_own_slot_only() -> None:
    worker = start(2, ones(6))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(1)
    assert worker.sent() == [(3, "data")]
    worker.answer(3)
    # A packet that was sent a second later than chunk 0 has been answered.
    assert worker.sent() == [(0, "exponent query"), (5, "data")]
    worker.answer(5)
    assert worker.sent() == [(7, "data")]
    worker.answer(7)
    assert worker.sent() == [(0, "exponent query")]
    worker.answer(0)
    assert worker.sent() == [(2, "data")]


def test_the_window_holds_back_what_could_be_sent() -> None:
    worker = start(256, ones(200))
    assert [chunk for chunk, _ in worker.sent()] == list(range(64))
    assert worker.engine.stats["window"] == 64
    worker.answer(*range(10))
    # Ten answers permit ten chunks, in order: waiting exponents come before the lanes that are now known.
    assert worker.sent() == [(chunk, "exponent") for chunk in range(64, 74)]


def test_back_to_back_the_last_blocks_announce_the_first_of_the_next_collective() -> None:
    worker = start(2, ones(3), ones(2))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(0, 1)
    assert worker.sent() == [(2, "data"), (3, "data")]
    worker.answer(2, 3)
    # Block 2 ends the first collective; chunk 3 has announced block 0 of the second, chunk 4 announces block 1.
    assert worker.sent() == [(4, "data"), (5, "data")]
    worker.answer(4)
    assert worker.sent() == [(6, "data")]
    worker.answer(5, 6)
    assert worker.engine.completed() == [1, 2]


def test_a_longer_successor_announces_the_rest_itself() -> None:
    worker = start(4, ones(1), ones(3))
    assert worker.sent() == [(0, "exponent")]
    worker.answer(0)
    assert worker.sent() == [(1, "data")]
    worker.answer(1)
    assert worker.sent() == [(2, "exponent"), (3, "exponent"), (4, "data")]
    worker.answer(2, 3, 4)
    assert worker.sent() == [(5, "data"), (6, "data")]


def test_a_collective_that_comes_too_late_to_be_announced_starts_with_exponents() -> None:
    worker = start(2, ones(2))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(0, 1)
    assert worker.sent() == [(2, "data"), (3, "data")]
    worker.engine.submit(ones(1))
    worker.answer(2)
    assert worker.sent() == [(4, "exponent")]


def test_one_rank_without_a_next_collective_is_enough_to_announce_none() -> None:
    ready, late = make_workers(2, slots=2, words=1)
    switch = make_aggregator(2, slots=2, words=1)
    for engine in (ready, late):
        engine.submit(ones(1))
    ready.submit(ones(1))
    sent = []
    for step in range(3):
        if step == 2:
            late.submit(ones(1))
        for rank, engine in enumerate((ready, late)):
            for datagram in engine.to_send(step / 1000):
                header = reference.decode(datagram)
                sent.append((rank, header.chunk, header.kind, header.flags))
                results = switch.process(rank, datagram)
        for rank, result in results:
            (ready, late)[rank].receive(result, step / 1000)
    assert sent == [
        (0, 0, reference.EXPONENT, 0),
        (1, 0, reference.EXPONENT, 0),
        (0, 1, reference.DATA, 0),
        (1, 1, reference.DATA, reference.NOT_READY),
        (0, 2, reference.EXPONENT, 0),
        (1, 2, reference.EXPONENT, 0),
    ]


def test_where_the_next_collective_starts_depends_on_all_exponents_of_the_last() -> None:
    worker = start(2, ones(2))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(0)
    assert worker.sent() == [(2, "data")]
    worker.engine.submit(ones(1))
    worker.answer(2)
    # Chunk 4's slot is free, but whether 4 is a class chunk depends on the exponent of block 1; chunk 1 is overtaken.
    assert worker.sent() == [(1, "exponent query")]
    worker.answer(1)
    assert worker.sent() == [(3, "data"), (4, "exponent")]


def test_collectives_that_overlap_complete_as_they_are_done() -> None:
    worker = start(4, ones(2), ones(1))
    assert worker.sent() == [(0, "exponent"), (1, "exponent")]
    worker.answer(0, 1)
    assert worker.sent() == [(2, "data"), (3, "data")]
    worker.answer(2)
    assert worker.sent() == [(4, "data")]
    worker.answer(4)
    assert worker.engine.completed() == [2]
    worker.answer(3)
    assert worker.engine.completed() == [1]


def test_empty_collectives_complete_at_once_and_send_nothing() -> None:
    engine = lone_worker(2)
    assert engine.submit(ones(0)) == 1
    assert engine.completed() == [1]
    assert engine.to_send(0.0) == []
    assert engine.deadline() is None


def test_an_empty_collective_does_not_wait_for_those_before_it() -> None:
    worker = start(2, ones(1), ones(0), ones(1))
    assert worker.engine.completed() == [2]
    assert worker.sent() == [(0, "exponent")]
    worker.answer(0)
    assert worker.sent() == [(1, "data")]
    worker.answer(1)
    assert worker.sent() == [(2, "data")]


def test_each_special_block_adds_a_chunk_after_its_own_result() -> None:
    array = ones(3)
    array[[5, 2 * BLOCK]] = np.inf
    worker = start(4, array, ones(1))
    assert worker.sent() == [(0, "exponent"), (1, "exponent"), (2, "exponent")]
    worker.answer(0, 1, 2)
    # Chunks 6 and 7 are the class lanes of blocks 0 and 2; the next collective starts at 8.
    assert worker.sent() == [(3, "data"), (4, "data"), (5, "data")]
    worker.answer(5)
    assert worker.sent() == []
    worker.answer(3)
    assert worker.sent() == [(4, "data query"), (6, "data"), (7, "data")]
    worker.answer(4)
    assert worker.sent() == [(8, "data")]
    worker.answer(6, 7)
    assert worker.engine.completed() == [1]


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_class_chunks_complete_the_collective(slots: int) -> None:
    array = ones(3)
    array[[5, 2 * BLOCK]] = np.inf
    worker = start(slots, array)
    chunks = []
    while sent := worker.sent():
        chunks += [chunk for chunk, _ in sent]
        worker.answer(*(chunk for chunk, _ in sent))
    assert sorted(chunks) == list(range(min(slots, 3) + 3 + 2))
    assert worker.engine.completed() == [1]
    assert worker.engine.stats["special_blocks"] == 2
    assert np.isposinf(array).nonzero()[0].tolist() == [5, 2 * BLOCK]


def test_a_wide_block_adds_a_chunk_after_that_of_its_classes() -> None:
    array = ones(3)
    array[[5, 2 * BLOCK]] = [1e30, np.inf]
    worker = start(8, array, ones(1))
    assert worker.sent() == [(0, "exponent"), (1, "exponent"), (2, "exponent")]
    worker.answer(0, 1, 2)
    # Chunks 6 and 7 are the class lanes of blocks 0 and 2, chunk 8 the outliers of block 0.
    assert worker.sent() == [(3, "data"), (4, "data"), (5, "data")]
    worker.answer(3, 4, 5)
    assert worker.sent() == [(6, "data"), (7, "data"), (9, "data")]
    worker.answer(7, 9)
    assert worker.sent() == []
    worker.answer(6)
    assert worker.sent() == [(8, "data")]
    assert worker.engine.completed() == [2]
    worker.answer(8)
    assert worker.engine.completed() == [1]
    assert worker.engine.stats["special_blocks"] == 2
    assert worker.engine.stats["wide_blocks"] == 1
    assert array[[0, 5, 2 * BLOCK]].tolist() == [1, np.float32(1e30), np.inf]


def test_a_job_may_cross_the_wrap_of_chunk_numbers() -> None:
    worker = start(2, ones(2), ones(1), first_chunk=2**32 - 3)
    assert worker.sent() == [(2**32 - 3, "exponent"), (2**32 - 2, "exponent")]
    worker.answer(2**32 - 3, 2**32 - 2)
    assert worker.sent() == [(2**32 - 1, "data"), (0, "data")]
    worker.answer(2**32 - 1, 0)
    # One block of the second collective has been announced.
    assert worker.sent() == [(1, "data")]


def test_an_exponent_packet_has_fingerprint_and_marks_and_a_data_packet_its_checksum_too() -> None:
    engine = lone_worker(1)
    engine.submit(ones(1), lane_bits=16, average=True, context=2**32 - 10)
    (exponent,) = engine.to_send(0.0)
    header = reference.decode(exponent)
    assert len(exponent) == 20
    fingerprint = 8 * 64 + 2 + 1 - 10  # mod 2^32
    assert header.checksum == (fingerprint + reference.marks(0, 0)) % 2**32
    assert header.exponent == 1 + reference.EXPONENT_BIAS
    engine.receive(header._replace(kind=0x9).encode(), 0.0)
    (data,) = engine.to_send(0.0)
    header = reference.decode(data)
    assert len(data) == 20 + 256
    # W = 16, N = 1: B = 2^15, and one is 2^14 under exponent 1. The last 64 lanes are padding.
    lanes = 64 * (2**15 + 2**14) + 64 * 2**15
    assert header.checksum == (lanes + fingerprint + reference.marks(1, 0)) % 2**32
    assert (header.exponent, header.flags) == (0, reference.NOT_READY)


def test_tickets_count_from_one() -> None:
    engine = lone_worker(2)
    assert [engine.submit(ones(1)) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 3}, "slots is 3; it must be a power of two"),
        ({"slots": 0}, "slots is 0"),
        ({"workers": 1}, "rank is 1 of 1 workers"),
        ({"workers": 4097}, "workers is 4097"),
        ({"words": 0}, "words is 0"),
        ({"words": 256}, "words is 256"),
        ({"number": 0}, "job is 0"),
        ({"number": 2**16}, "job must fit 16 bits"),
        ({"epoch": 0}, "epoch is 0"),
        ({"epoch": 2**32}, "epoch and slots 32"),
    ],
)
def test_an_impossible_job_is_refused(settings: dict[str, int], message: str) -> None:
    good = {"number": 1, "workers": 2, "epoch": 1, "slots": 4, "words": 4}
    with pytest.raises(ValueError, match=message):
        Engine(JobShape(**(good | settings)), rank=1)


@pytest.mark.parametrize(
    ("workers", "settings", "message"),
    [
        (2, {"rank": 2}, "rank is 2 of 2 workers"),
        (65, {"rank": 64}, "member is 64"),
        (
            2,
            {"rank": 1, "ways": 5},
            "there are 5 roots or servers; .* no more than the 4 slots",
        ),
        (2, {"rank": 1, "policy": RetransmissionPolicy(give_up_s=0.0)}, "give_up_s must be positive"),
    ],
)
def test_an_impossible_configuration_is_refused(workers: int, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(make_shape(workers, slots=4, words=4), **settings)


def test_a_refused_array_leaves_the_engine_as_it_was() -> None:
    engine = lone_worker(2)
    with pytest.raises(TypeError):
        engine.submit(np.ones(3))
    with pytest.raises(TypeError):
        engine.submit(ones(2)[::2])
    with pytest.raises(ValueError, match="lane_bits is 12"):
        engine.submit(ones(1), lane_bits=12)  # type: ignore[arg-type]
    read_only = ones(1)
    read_only.flags.writeable = False
    with pytest.raises(TypeError):
        engine.submit(read_only)
    assert engine.to_send(0.0) == []
    assert engine.submit(ones(1)) == 1
