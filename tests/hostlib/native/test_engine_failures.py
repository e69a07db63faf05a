# SPDX-License-Identifier: Apache-2.0
"""Packets that break a group (protocol 4 and 6), and packets that a worker discards."""

import numpy as np
import pytest

from inagg._core import Engine, EngineError
from inagg_simulator import reference
from inagg_simulator.virtual_network import failure_of, make_aggregator, make_network, make_workers


def pair_with_data_under_way() -> tuple[Engine, bytes]:
    """Rank 1 of two after its EXPONENT result, and the result of its DATA chunk, not yet delivered."""
    engines = make_workers(2, slots=1, words=1)
    switch = make_aggregator(2, slots=1, words=1)
    for engine in engines:
        engine.submit(np.ones(64, np.float32))
    results = []
    for _ in range(2):
        for rank, engine in enumerate(engines):
            for datagram in engine.to_send(0.0):
                results = switch.process(rank, datagram)
        if reference.decode(results[0][1]).kind == 0x9:
            for rank, result in results:
                engines[rank].receive(result, 0.0)
    return engines[1], results[1][1]


def with_header(datagram: bytes, **fields: int) -> bytes:
    header = reference.decode(datagram)._replace(**fields)
    return header.encode() + datagram[20:]


def test_the_helper_gives_a_good_result() -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(result, 0.0)
    assert engine.failure is None
    assert engine.completed() == [1]


def damaged(result: bytes, byte: int) -> bytes:
    return result[:byte] + bytes([result[byte] ^ 1]) + result[byte + 1 :]


def refuse(engine: Engine, result: bytes, times: int) -> None:
    """Receive bad results of one chunk. The worker sends the chunk again after each, except after the last."""
    for time in range(times):
        assert engine.failure is None
        engine.receive(result, float(time))
        assert len(engine.to_send(float(time))) == (1 if engine.failure is None else 0)


@pytest.mark.parametrize("byte", [20, 100, 275])
def test_a_result_with_a_damaged_lane_is_asked_for_again(byte: int) -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(damaged(result, byte), 0.0)
    assert engine.failure is None
    (query,) = engine.to_send(0.0)
    header = reference.decode(query)
    assert (header.kind, header.chunk, header.rank) == (0x6, 1, 1)
    engine.receive(result, 0.0)
    assert engine.completed() == [1]
    stats = engine.stats
    assert (stats["corrupt"], stats["queries"], stats["discarded"]) == (1, 1, 0)


def test_what_is_sent_again_is_the_same_to_the_byte() -> None:
    (engine,) = make_workers(1, slots=1, words=1)
    engine.submit(np.linspace(-1, 1, 64, dtype=np.float32))
    (exponent,) = engine.to_send(0.0)
    engine.receive(with_header(exponent, kind=0x9), 0.0)
    (first,) = engine.to_send(0.0)
    engine.receive(damaged(with_header(first, kind=0xA), 30), 0.0)
    (query,) = engine.to_send(0.0)
    engine.receive(with_header(query, kind=0xE, flags=0x20, flags_check=0x20), 0.0)
    assert engine.to_send(0.0) == [first]


def test_a_chunk_whose_result_is_damaged_three_times_is_an_error_that_names_it() -> None:
    engine, result = pair_with_data_under_way()
    refuse(engine, damaged(result, 100), 3)
    failure = failure_of(engine)
    assert failure.code == "checksum"
    assert (failure.job, failure.rank, failure.collective, failure.chunk) == (7, 1, 1, 1)
    assert "job 7, rank 1, collective 1, chunk 1: the checksum" in str(failure)
    assert engine.stats["corrupt"] == 3
    assert engine.completed() == []


def test_copies_of_a_damaged_result_count_as_one() -> None:
    engine, result = pair_with_data_under_way()
    for _ in range(10):
        engine.receive(damaged(result, 100), 0.0)
    assert engine.failure is None
    assert engine.stats["corrupt"] == 10
    assert len(engine.to_send(0.0)) == 1
    engine.receive(result, 0.0)
    assert engine.completed() == [1]


def test_damaged_results_do_not_keep_a_job_waiting() -> None:
    (engine,) = make_workers(1, slots=1, words=1, give_up_s=5.0)
    engine.submit(np.ones(64, np.float32))
    (contribution,) = engine.to_send(0.0)
    engine.receive(damaged(with_header(contribution, kind=0x9), 19), 4.0)
    assert len(engine.to_send(4.0)) == 1
    engine.to_send(5.0)
    assert failure_of(engine).code == "give_up"


def test_a_damaged_result_is_no_rtt_sample() -> None:
    engine, result = pair_with_data_under_way()
    samples = engine.stats["rtt_samples"]
    engine.receive(damaged(result, 100), 3.0)
    engine.to_send(3.0)
    engine.receive(result, 7.0)
    assert engine.completed() == [1]
    assert engine.stats["rtt_samples"] == samples


def test_a_wrong_checksum_is_an_error() -> None:
    engine, result = pair_with_data_under_way()
    refuse(engine, with_header(result, checksum=1), 3)
    assert failure_of(engine).code == "checksum"


@pytest.mark.parametrize(
    ("flags", "exponent"),
    [
        pytest.param(0, 1, id="less than this rank's"),
        pytest.param(0, 386, id="greater than any"),
        pytest.param(0, 0, id="nothing"),
    ],
)
def test_an_exponent_that_no_maximum_gives_is_an_error(flags: int, exponent: int) -> None:
    (engine,) = make_workers(1, slots=1, words=1)
    engine.submit(np.ones(64, np.float32))
    (contribution,) = engine.to_send(0.0)
    header = reference.decode(contribution)._replace(kind=0x9).announcing(flags, exponent)
    refuse(engine, header.encode(), 3)
    assert failure_of(engine).code == "checksum"
    assert failure_of(engine).chunk == 0


def test_a_lost_special_flag_is_an_error() -> None:
    (engine,) = make_workers(1, slots=1, words=1)
    engine.submit(np.full(64, np.nan, np.float32))
    (contribution,) = engine.to_send(0.0)
    header = reference.decode(contribution)._replace(kind=0x9)
    assert header.flags == reference.SPECIAL
    refuse(engine, header.announcing(0, header.exponent).encode(), 3)
    assert failure_of(engine).code == "checksum"


def test_a_lost_exponent_of_outliers_is_an_error() -> None:
    (engine,) = make_workers(1, slots=1, words=1)
    block = np.ones(64, np.float32)
    block[3] = 1e30
    engine.submit(block)
    for _ in range(2):
        (contribution,) = engine.to_send(0.0)
        header = reference.decode(contribution)
        engine.receive(with_header(contribution, kind=header.kind | reference.RESULT), 0.0)
    (contribution,) = engine.to_send(0.0)
    header = reference.decode(contribution)._replace(kind=0xA)
    assert header.exponent == reference.exponent_code([1e30], reference.Lanes(32, 1))
    refuse(engine, header.announcing(0, 0).encode() + contribution[reference.HEADER.size :], 3)
    assert failure_of(engine).code == "checksum"


@pytest.mark.parametrize(
    "fields", [{"flags": 1}, {"flags_check": 32}, {"exponent": 258}, {"exponent_check": 0}]
)
def test_an_exponent_or_flags_without_their_check_fields_are_not_used(fields: dict[str, int]) -> None:
    (engine,) = make_workers(1, slots=1, words=1)
    engine.submit(np.ones(64, np.float32))
    (contribution,) = engine.to_send(0.0)
    engine.receive(with_header(contribution, kind=0x9, **fields), 0.0)
    assert engine.stats["corrupt"] == 1
    assert len(engine.to_send(0.0)) == 1


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        pytest.param((64, 63), ({}, {}), id="sizes with equal block counts"),
        pytest.param((64, 129), ({}, {}), id="sizes with other block counts"),
        pytest.param((64, 64), ({}, {"average": True}), id="sum and average"),
        pytest.param((64, 64), ({}, {"lane_bits": 16}), id="lane widths"),
        pytest.param((64, 64), ({"context": 7}, {"context": 8}), id="contexts"),
    ],
)
def test_ranks_that_disagree_on_a_collective_are_told(
    sizes: tuple[int, int], settings: tuple[dict[str, int], dict[str, int]]
) -> None:
    network = make_network(2, slots=4, words=1)
    for engine, size, setting in zip(network.engines, sizes, settings, strict=True):
        engine.submit(np.ones(size, np.float32), **setting)  # type: ignore[arg-type]
    with pytest.raises(EngineError) as caught:
        network.run(1, within=10.0)
    assert caught.value.code == "kind_mismatch"
    assert caught.value.chunk == 0
    assert "disagree" in str(caught.value)


def test_ranks_that_disagree_on_the_order_of_collectives_are_told() -> None:
    network = make_network(2, slots=4, words=1)
    for engine, sizes in zip(network.engines, [(64, 200), (200, 64)], strict=True):
        for size in sizes:
            engine.submit(np.ones(size, np.float32))
    with pytest.raises(EngineError, match="disagree"):
        network.run(2, within=10.0)


def test_a_result_of_another_kind_is_an_error() -> None:
    engine, result = pair_with_data_under_way()
    refuse(engine, with_header(result, kind=0x9)[:20], 3)
    assert failure_of(engine).code == "kind_mismatch"
    assert failure_of(engine).chunk == 1


@pytest.mark.parametrize(
    "fields",
    [{"job": 8}, {"epoch": 6}, {"version": 1}, {"kind": 0x2}, {"kind": 0xB}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_packet_for_somebody_else_is_discarded(fields: dict[str, int]) -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(with_header(result, **fields), 0.0)
    assert engine.stats["discarded"] == 1
    assert engine.failure is None
    engine.receive(result, 0.0)
    assert engine.completed() == [1]


@pytest.mark.parametrize("length", [0, 1, 19, 20, 275])
def test_a_packet_cut_short_is_discarded(length: int) -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(result[:length], 0.0)
    engine.receive(result + b"\0", 0.0)
    assert engine.stats["discarded"] == 2
    assert engine.failure is None


def test_a_second_result_is_counted_and_ignored() -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(result, 0.0)
    engine.receive(result, 0.0)
    assert engine.stats["duplicates_received"] == 1
    assert engine.completed() == [1]


def test_a_result_of_a_chunk_not_sent_yet_is_ignored() -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(with_header(result, chunk=2), 0.0)
    assert engine.stats["duplicates_received"] == 1
    assert engine.failure is None


def test_failing_from_outside_names_the_oldest_outstanding_chunk() -> None:
    network = make_network(2, slots=2, words=1)
    engine = network.engines[0]
    engine.submit(np.ones(64, np.float32))
    engine.submit(np.ones(64, np.float32))
    engine.to_send(0.0)
    engine.fail("rank 1 was lost")
    failure = failure_of(engine)
    assert (failure.code, failure.collective, failure.chunk) == ("failed", 1, 0)
    assert failure.message == "job 7, rank 0, collective 1, chunk 0: rank 1 was lost"


def test_failing_while_idle_names_no_chunk() -> None:
    (engine,) = make_workers(1, slots=2, words=1)
    engine.fail("rank 1 was lost")
    failure = failure_of(engine)
    assert (failure.collective, failure.chunk) == (None, None)
    assert failure.message == "job 7, rank 0: rank 1 was lost"


def test_after_a_failure_nothing_happens_but_the_same_error() -> None:
    engine, result = pair_with_data_under_way()
    engine.fail("first")
    engine.fail("second")
    assert "first" in str(failure_of(engine))
    with pytest.raises(EngineError, match="first"):
        engine.submit(np.ones(64, np.float32))
    engine.receive(result, 0.0)
    assert engine.completed() == []
    assert engine.to_send(100.0) == []
    assert engine.deadline() is None
    assert engine.stats["in_flight"] == 0


def test_what_was_done_before_a_failure_stays_done() -> None:
    engine, result = pair_with_data_under_way()
    engine.receive(result, 0.0)
    engine.fail("later")
    assert engine.completed() == [1]
