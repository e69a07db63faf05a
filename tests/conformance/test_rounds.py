# SPDX-License-Identifier: Apache-2.0
"""Rounds of the ranks (docs/protocol.md, 5.8) give what the reference switch gives, to the byte, and wait for ranks
without going round and round."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg._core import Engine, JobShape, LaneBits, RoundSlots
from inagg_contract.constants import KIND_QUERY
from inagg_simulator.reference import AGAIN, decode
from inagg_simulator.reference_switch import Aggregator, Job
from inagg_simulator.rounds import Rounds
from tests.examples import at_most

WORDS, SLOTS, NUMBER, EPOCH = 2, 4, 7, 5
FIRST = list(range(SLOTS))


def shape(workers: int) -> JobShape:
    return JobShape(number=NUMBER, epoch=EPOCH, slots=SLOTS, words=WORDS, workers=workers)


def engines_of(workers: int) -> list[Engine]:
    return [Engine(shape(workers), rank=rank, ways_apart=True, home=0) for rank in range(workers)]


def without_rank(datagram: bytes) -> bytes:
    """A result without the field that each rank's own result repeats."""
    return datagram[:1] + datagram[2:]


floats = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45]),
)


@given(
    workers=st.integers(1, 6),
    lane_bits=st.sampled_from([8, 16, 32]),
    elements=st.integers(1, 64 * 5),
    data=st.data(),
)
@settings(max_examples=at_most(150, explored=3000))
def test_each_result_is_the_switchs_to_the_byte(
    workers: int, lane_bits: LaneBits, elements: int, data: st.DataObject
) -> None:
    engines = engines_of(workers)
    switch, rounds = (
        Aggregator(WORDS, {NUMBER: Job(workers, SLOTS, EPOCH)}),
        Rounds(shape(workers), workers, FIRST),
    )
    drawn = data.draw(st.lists(floats, min_size=1, max_size=40))
    for rank, engine in enumerate(engines):
        array = np.resize(np.array(drawn, np.float32), elements)
        engine.submit(np.roll(array, rank) * np.float32((-1) ** rank), lane_bits=lane_bits)
    done = 0
    for step in range(200):
        now, expected, given_out = 0.0001 * step, list[bytes](), list[tuple[int, bytes]]()
        for rank, engine in enumerate(engines):
            for datagram in engine.to_send(now):
                expected += [result for to, result in switch.process(rank, datagram) if to == 0]
                given_out += rounds.process(rank, datagram)
        mine = [result for rank, result in given_out if rank == 0]
        assert sorted(map(without_rank, mine)) == sorted(map(without_rank, expected))
        for rank, result in given_out:
            engines[rank].receive(result, now)
        done += sum(len(engine.completed()) for engine in engines)
        if done == workers:
            break
    assert done == workers
    assert all(engine.stats["corrupt"] == 0 for engine in engines)


def contributions(workers: int, elements: int = 64 * 8) -> list[list[bytes]]:
    """Of each rank the first datagrams, one a slot."""
    engines = engines_of(workers)
    for engine in engines:
        engine.submit(np.ones(elements, np.float32))
    return [engine.to_send(0.0) for engine in engines]


def test_a_rank_with_nothing_to_sum_joins_no_round() -> None:
    slots = RoundSlots(shape(2), FIRST)
    assert not slots.wants_round
    slots.receive(contributions(2)[0][0])
    assert slots.wants_round
    slots.offer()
    assert not slots.wants_round


def test_only_ranks_that_lack_the_oldest_chunk_wait() -> None:
    """Rank 0 has chunks 0 and 1, rank 1 has chunk 1 alone: the round has one, and then rank 0 waits in the next one for
    rank 1, which joins when it has sent chunk 0."""
    (zero, one, *_), (zero_of_1, one_of_1, *_) = contributions(2)
    ranks = RoundSlots(shape(2), FIRST), RoundSlots(shape(2), FIRST)
    ranks[0].receive(zero)
    ranks[0].receive(one)
    ranks[1].receive(one_of_1)
    agreed = ranks[0].offer() | ranks[1].offer()
    parts = [each.contributions(agreed) for each in ranks]
    peaks, sums = np.maximum(parts[0][0], parts[1][0]), parts[0][1] + parts[1][1]
    results = [each.finish(agreed, peaks, sums) for each in ranks]
    assert [[decode(result).chunk for result in each] for each in results] == [[1], [1]]
    assert [each.wants_round for each in ranks] == [True, False]
    ranks[1].receive(zero_of_1)
    assert ranks[1].wants_round


def test_ages_follow_the_chunks_of_the_job_not_the_fields() -> None:
    """Slot 0 of a job that goes on sums chunk 8 next, slot 1 chunk 5: the field 1 is older than the field 0."""
    (zero, one, *_), _ = contributions(2)
    slots = RoundSlots(shape(2), [8, 5, 6, 7])
    nothing_agreed = np.ones(SLOTS, np.int32)
    slots.receive(zero)
    (younger,), _ = slots.contributions(nothing_agreed)
    slots.receive(one)
    (older,), _ = slots.contributions(nothing_agreed)
    assert (-younger, -older) == (3, 0)


def query_about(datagram: bytes) -> bytes:
    header = decode(datagram)
    return header._replace(
        kind=header.kind | KIND_QUERY, flags=0, flags_check=0, exponent=0, exponent_check=341, checksum=77
    ).encode()


def test_a_query_is_answered_as_a_switch_would() -> None:
    ((first, *_),) = contributions(1)
    slots = RoundSlots(shape(1), FIRST)
    (answer,) = slots.receive(query_about(first))
    assert decode(answer).flags == AGAIN
    assert slots.receive(first) == []
    (answer,) = slots.receive(query_about(first))
    assert (decode(answer).flags, decode(answer).checksum) == (0, 77)
    agreed = slots.offer()
    peaks, sums = slots.contributions(agreed)
    (result,) = slots.finish(agreed, peaks, sums)
    (answer,) = slots.receive(query_about(first))
    assert decode(answer).flags == AGAIN
    assert slots.receive(first) == [result]


def test_what_is_not_the_jobs_is_ignored() -> None:
    ((first, *_),) = contributions(1)
    slots = RoundSlots(shape(1), FIRST)
    header = decode(first)
    for other in (
        b"",
        first[:-1],
        first + b"x",
        header._replace(epoch=EPOCH + 1).encode(),
        header._replace(job=NUMBER + 1).encode(),
    ):
        assert slots.receive(other) == []
    assert not slots.wants_round


def test_parts_that_do_not_fit_are_refused() -> None:
    slots = RoundSlots(shape(2), FIRST)
    with pytest.raises(ValueError, match="next_chunks has 3 chunks; the job has 4 slots"):
        RoundSlots(shape(2), [0, 1, 2])
    with pytest.raises(ValueError, match="agreed has 1 numbers"):
        slots.contributions(np.ones(1, np.int32))
    with pytest.raises(ValueError, match="slot 0 is agreed, and this rank has not offered it"):
        slots.contributions(np.zeros(SLOTS, np.int32))
    with pytest.raises(ValueError, match="not those of the agreed slots"):
        slots.finish(np.ones(SLOTS, np.int32), np.zeros(3, np.int64), np.zeros(0, np.int32))
