# SPDX-License-Identifier: Apache-2.0
"""Whole collectives through the reference switch, against exact arithmetic, in virtual time."""

import numpy as np
import pytest
from numpy.typing import NDArray

from inagg._core import LaneBits
from inagg_simulator import reference
from inagg_simulator.virtual_network import Impairment, Network, all_reduce, make_network
from tests.hostlib.native.floats import assert_same_bits, gradients

SIZES = [0, 1, 255, 256, 257, 511, 512, 513]


def check(
    network: Network, inputs: NDArray[np.float32], *, lane_bits: LaneBits, words: int, average: bool = False
) -> None:
    expected = reference.all_reduce_array(inputs, lane_bits=lane_bits, words=words, average=average)
    for output in all_reduce(network, inputs, lane_bits=lane_bits, average=average):
        assert_same_bits(output, expected)


@pytest.mark.parametrize("lane_bits", [16, 32])
@pytest.mark.parametrize("elements", SIZES)
def test_every_size_sums(elements: int, lane_bits: LaneBits) -> None:
    network = make_network(3, slots=2, words=4)
    check(network, gradients(3, elements), lane_bits=lane_bits, words=4)


@pytest.mark.parametrize("lane_bits", [16, 32])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 64])
def test_every_number_of_workers_sums_and_averages(workers: int, lane_bits: LaneBits) -> None:
    network = make_network(workers, slots=4, words=1)
    inputs = gradients(workers, 300)
    check(network, inputs, lane_bits=lane_bits, words=1)
    check(network, inputs, lane_bits=lane_bits, words=1, average=True)


@pytest.mark.parametrize("words", [1, 5, 32, 255])
def test_every_packet_size_sums(words: int) -> None:
    check(make_network(2, slots=2, words=words), gradients(2, 20000), lane_bits=32, words=words)


def test_a_million_and_three_elements() -> None:
    network = make_network(2, slots=256, words=32)
    check(network, gradients(2, 1_000_003), lane_bits=32, words=32)


@pytest.mark.parametrize("lane_bits", [16, 32])
@pytest.mark.parametrize("average", [False, True])
def test_specials_subnormals_and_zeros_sum_as_floats_do(lane_bits: LaneBits, average: bool) -> None:
    inputs = gradients(4, 700)
    inputs[:, 0:64] = 0
    inputs[:, 64:128] *= np.float32(2.0**-140)
    inputs[1, 5] = np.inf
    inputs[2, 6] = -np.inf
    inputs[0, 7], inputs[3, 7] = np.inf, -np.inf
    inputs[2, 8] = np.nan
    inputs[:, 300] = np.inf
    inputs[:, 699] = np.nan
    inputs[:, 500] = np.finfo(np.float32).max
    network = make_network(4, slots=4, words=1)
    check(network, inputs, lane_bits=lane_bits, words=1, average=average)
    # Block 0 (zeros and a few specials), those of elements 300 and 699, and the wide one of 500 carry class chunks.
    assert network.engines[0].stats["special_blocks"] == 4
    assert network.engines[0].stats["wide_blocks"] == 1
    with np.errstate(all="ignore"):
        floats = inputs.sum(axis=0)
    (output, *_) = all_reduce(network, inputs, lane_bits=lane_bits)
    assert np.array_equal(np.isnan(output), np.isnan(floats))
    assert np.array_equal(output[np.isinf(floats)], floats[np.isinf(floats)])


def test_a_block_that_overflows_and_is_special_keeps_its_classes() -> None:
    # The sum overflows to an infinity in place, before the class lanes are made from the elements.
    inputs = np.full((2, 64), np.finfo(np.float32).max, np.float32)
    inputs[0, 3], inputs[1, 3] = np.inf, -np.inf
    check(make_network(2, slots=1, words=1), inputs, lane_bits=32, words=1)


def test_special_blocks_everywhere_with_loss() -> None:
    inputs = gradients(3, 64 * 40)
    inputs[1, ::50] = np.nan
    network = make_network(3, slots=8, words=1, impairment=Impairment(loss=0.2, jitter=0.01), seed=4)
    check(network, inputs, lane_bits=32, words=1)
    check(network, inputs, lane_bits=16, words=1)


@pytest.mark.parametrize("lane_bits", [8, 16, 32])
@pytest.mark.parametrize("average", [False, True])
def test_padding_that_nobody_set_takes_no_bits_from_gradients(lane_bits: LaneBits, average: bool) -> None:
    draws = np.random.default_rng(lane_bits)
    inputs = draws.standard_normal((4, 3000), dtype=np.float32) * np.float32(1e-3)
    # Two elements of five may have any magnitude, except those next to the gradients'.
    padding = np.resize([True, False, False, True, False], 3000)
    other = draws.integers(0, 0x7F00 << 16, inputs.shape, dtype=np.uint32).view(np.float32)
    other[(other > 1e-12) & (other < 1e6)] = 1e24
    filled = np.where(padding, other, inputs)
    network = make_network(4, slots=8, words=1)
    check(network, filled, lane_bits=lane_bits, words=1, average=average)
    assert network.engines[0].stats["wide_blocks"] > 0
    found, *_ = all_reduce(network, filled, lane_bits=lane_bits, average=average)
    zeros, *_ = all_reduce(network, np.where(padding, 0, inputs), lane_bits=lane_bits, average=average)
    assert_same_bits(found[~padding], zeros[~padding])


def test_outliers_that_cancel_leave_what_is_small() -> None:
    inputs = np.full((2, 64), 1e-3, np.float32)
    inputs[0, 7], inputs[1, 7] = 1e30, -1e30
    inputs[0, 8], inputs[1, 8] = 3e38, 3e38
    (output, _) = all_reduce(make_network(2, slots=1, words=1), inputs)
    assert output[7] == 0
    assert output[8] == np.inf
    assert np.array_equal(np.delete(output, [7, 8]), np.full(62, np.float32(2e-3)))


def test_outliers_that_cancel_the_others_are_added_before_anything_is_rounded() -> None:
    inputs = np.full((4, 256), 1e-3, np.float32)
    inputs[1:] = [[2**20 + 0.5], [2**20 + 0.625], [2**20 + 0.75]]
    inputs[:, 5] = [-3 * 2.0**20, *[2**20 + 0.125] * 3]
    check(make_network(4, slots=4, words=4), inputs, lane_bits=32, words=4)
    (output, *_) = all_reduce(make_network(4, slots=4, words=4), inputs)
    assert abs(output[5] - 0.375) < 0.02
    inputs = np.full((3, 64), 3e38, np.float32)
    inputs[0] = 1e-3
    inputs[0, 5] = -3e38
    (output, *_) = all_reduce(make_network(3, slots=4, words=1), inputs)
    assert output[5] == np.float32(3e38)
    assert np.isposinf(output[4])


@pytest.mark.parametrize("workers", [3, 9])
def test_wide_blocks_everywhere_with_loss(workers: int) -> None:
    inputs = gradients(workers, 64 * 40)
    inputs[1, ::50] = 1e30
    inputs[2, ::333] = np.nan
    network = make_network(workers, slots=8, words=1, impairment=Impairment(loss=0.2, jitter=0.01), seed=4)
    check(network, inputs, lane_bits=32, words=1)
    check(network, inputs, lane_bits=8, words=1, average=True)


@pytest.mark.parametrize("slots", [1, 2, 16, 1024])
def test_every_window_sums(slots: int) -> None:
    network = make_network(2, slots=slots, words=1)
    for elements in (1, 64 * slots, 64 * slots + 1, 30):
        check(network, gradients(2, min(elements, 5000)), lane_bits=32, words=1)


def test_collectives_back_to_back_with_lane_widths_mixed() -> None:
    network = make_network(3, slots=8, words=1, impairment=Impairment(loss=0.05, jitter=0.002), seed=9)
    work: list[tuple[int, LaneBits, bool]] = [
        (1, 32, False),
        (0, 32, False),
        (700, 16, True),
        (64, 32, True),
        (2000, 32, False),
        (129, 16, False),
    ]
    inputs = [gradients(3, elements, seed=i) for i, (elements, _, _) in enumerate(work)]
    outputs = [array.copy() for array in inputs]
    for rank, engine in enumerate(network.engines):
        for output, (_, lane_bits, average) in zip(outputs, work, strict=True):
            engine.submit(output[rank], lane_bits=lane_bits, average=average)
    network.run(len(work), within=60.0)
    for array, output, (_, lane_bits, average) in zip(inputs, outputs, work, strict=True):
        expected = reference.all_reduce_array(array, lane_bits=lane_bits, words=1, average=average)
        for rank in range(3):
            assert_same_bits(output[rank], expected)


@pytest.mark.parametrize("loss", [0.01, 0.05, 0.2])
def test_loss_each_way_costs_time_and_changes_nothing(loss: float) -> None:
    impairment = Impairment(loss=loss, delay=0.0005, jitter=0.0005)
    network = make_network(4, slots=16, words=1, impairment=impairment, seed=2)
    check(network, gradients(4, 64 * 500), lane_bits=32, words=1)
    # 516 chunks over 16 slots are 33 in a row; with 20% loss each way some rank misses 6 in 7 of them at first.
    assert network.now < 33 * 0.2
    assert network.engines[0].stats["retransmits"] > 0


def test_a_rank_that_is_late_is_waited_for() -> None:
    network = make_network(2, slots=4, words=1)
    inputs = gradients(2, 1000)
    outputs = inputs.copy()
    network.engines[0].submit(outputs[0])
    network.flush(0)
    while network.now < 5.0:
        assert network.step()
    network.engines[1].submit(outputs[1], now=network.now)
    network.run(1, within=20.0)
    expected = reference.all_reduce_array(inputs, lane_bits=32, words=1)
    assert_same_bits(outputs[0], expected)
    # Four slots: at 0, 0.1, 0.3, 0.7, 1.5, and then every second.
    assert network.engines[0].stats["retransmits"] <= 4 * 9


def test_the_caller_s_array_holds_the_result_and_nothing_else_changes() -> None:
    network = make_network(2, slots=2, words=1)
    memory = np.ones(200, np.float32)
    for engine in network.engines[1:]:
        engine.submit(np.ones(100, np.float32))
    network.engines[0].submit(memory[50:150])
    network.run(1, within=10.0)
    assert memory[50:150].tolist() == [2.0] * 100
    assert memory[:50].tolist() == memory[150:].tolist() == [1.0] * 50
