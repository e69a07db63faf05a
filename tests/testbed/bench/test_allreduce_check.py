# SPDX-License-Identifier: Apache-2.0
"""The benchmark's own arithmetic: exact sums, bounds of docs/protocol.md 3.4, and detection of wrong results."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from inagg_simulator.reference import all_reduce_array
from inagg_testbed.bench.allreduce_check import (
    PERIOD,
    Expectation,
    block_exponents,
    float_sum_bound,
    lane_sum_bound,
    one_period,
    rounded,
    window,
)
from inagg_testbed.bench.element_types import ELEMENT_TYPES, ElementName, ElementType

SEED, WORKERS = 7, 5
LANES = [None, 32, 16, 8]


@pytest.fixture(scope="module")
def expectation() -> Expectation:
    return Expectation(SEED, WORKERS)


def float32(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_the_expected_sum_is_exact(expectation: Expectation) -> None:
    inputs = [one_period(SEED, rank) for rank in range(WORKERS)]
    for index in range(700):
        assert Fraction(expectation.exact(index)) == sum(Fraction(float(values[index])) for values in inputs)


def test_contributions_differ_between_ranks_and_repeat_for_a_seed() -> None:
    assert np.array_equal(one_period(1, 0), one_period(1, 0))
    assert not np.array_equal(one_period(1, 0), one_period(1, 1))
    assert not np.array_equal(one_period(1, 0), one_period(2, 0))


def test_a_window_goes_round_the_period() -> None:
    period = np.arange(PERIOD)
    assert window(period, 5 * PERIOD - 2, 5).tolist() == [PERIOD - 2, PERIOD - 1, 0, 1, 2]
    assert window(period, 3, 2 * PERIOD + 1)[[0, PERIOD, 2 * PERIOD]].tolist() == [3, 3, 3]


@pytest.mark.parametrize("words", [4, 5, 32])
@pytest.mark.parametrize("lane_bits", [32, 16, 8])
def test_packets_in_each_others_places_hold_different_elements(words: int, lane_bits: int) -> None:
    assert words * 2048 // lane_bits < PERIOD
    assert math.gcd(PERIOD, words * 2048 // lane_bits) == 1


@pytest.mark.parametrize(
    ("values", "exponents"),
    [
        ((0.5, 0.75), [0]),  # 0.75 = 0.75 x 2^0
        ((1.0, 0.0), [1]),  # 1 = 0.5 x 2^1
        ((4.0, 0.25, 0.25), [3, -1]),  # two blocks, the second padded
        ((0.9999,), [1]),  # rounds to 2^F with F = 8
        ((0.99,), [0]),  # 0.99 x 256 = 253.4 does not
    ],
)
def test_a_block_has_the_smallest_exponent_that_holds_its_largest_element(
    values: tuple[float, ...], exponents: list[int]
) -> None:
    assert block_exponents(float32(*values), fraction_bits=8, block=2).tolist() == exponents


def test_the_lane_bound_is_that_of_the_protocol() -> None:
    # N = 4: g = 2, F = 16 - 1 - 2 = 13; E = 1 for a largest element of 1.5
    bound = lane_sum_bound(np.array([3.0]), float32(1.5), workers=4, lane_bits=16, block=2)
    quantisation = 4 * 2.0 ** (1 - 13 - 1)
    assert bound.tolist() == [quantisation + 2**-24 * (3.0 + quantisation) + 2**-150]


def test_one_worker_needs_no_guard_bit() -> None:
    bound = lane_sum_bound(np.array([0.0]), float32(0.5), workers=1, lane_bits=16, block=1)
    assert math.isclose(bound[0], 2.0**-16, rel_tol=1e-6)  # E = 0, F = 15


def test_a_zero_block_may_be_off_by_next_to_nothing() -> None:
    assert lane_sum_bound(np.array([0.0]), float32(0.0), workers=4, lane_bits=32, block=1)[0] < 1e-40


def test_the_float_bound_grows_with_the_additions() -> None:
    assert float_sum_bound(np.array([2.0]), workers=1).tolist() == [0.0]
    assert math.isclose(float_sum_bound(np.array([2.0]), workers=4)[0], 3 * 2**-24 * 2.0, rel_tol=1e-6)


@pytest.mark.parametrize("lane_bits", LANES)
@pytest.mark.parametrize("length", [600, 300_001])  # within a piece of the comparison, and over three
def test_the_right_sum_passes(expectation: Expectation, lane_bits: int | None, length: int) -> None:
    result = window(expectation.total, 3, length).astype(np.float32)
    found = expectation.compare(result, 3, lane_bits=lane_bits, words=4)
    assert found.wrong_index is None
    assert 0 < found.max_abs_error <= found.bound


@pytest.mark.parametrize("kind", ELEMENT_TYPES.values(), ids=lambda kind: kind.name)
def test_inputs_are_rounded_to_the_type_as_torch_rounds(kind: ElementType) -> None:
    dtype = getattr(torch, kind.name)
    exact = torch.from_numpy(one_period(SEED, 0))
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-8), 0.0])
    for values in (exact, ties):
        assert torch.equal(torch.from_numpy(rounded(values.numpy(), kind)), values.to(dtype).float())
    finfo = torch.finfo(dtype)
    assert (kind.bits, kind.unit, kind.floor) == (
        finfo.bits,
        finfo.eps / 2,
        finfo.smallest_normal * finfo.eps / 2,
    )


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sums_of_half_floats_are_held_to_their_bounds(name: ElementName) -> None:
    kind, dtype = ELEMENT_TYPES[name], getattr(torch, name)
    expected = Expectation(SEED, WORKERS, kind)
    inputs = torch.stack([torch.from_numpy(one_period(SEED, rank, kind)[:5000]) for rank in range(WORKERS)])
    ring = inputs[0].to(dtype)
    for one in inputs[1:]:
        ring += one.to(dtype)
    lanes = torch.from_numpy(all_reduce_array(inputs.numpy(), lane_bits=16, words=4)).to(dtype)
    for result, lane_bits in ((ring, None), (lanes, 16)):
        values = result.float().numpy()
        found = expected.compare(values, 0, lane_bits=lane_bits, words=4)
        assert found.wrong_index is None
        assert 0.05 < found.max_abs_error / found.bound < 1
        values[4321] += 0.25 if dtype == torch.bfloat16 else 0.05
        assert expected.compare(values, 0, lane_bits=lane_bits, words=4).wrong_index == 4321
    assert expected.compare(ring.float().numpy(), 0, lane_bits=32, words=4).wrong_index is not None


@pytest.mark.parametrize("lane_bits", LANES)
@pytest.mark.parametrize("wrong", [2.0, math.nan, math.inf])
@pytest.mark.parametrize("where", [41, 299_999])
def test_a_wrong_element_is_named(
    expectation: Expectation, lane_bits: int | None, wrong: float, where: int
) -> None:
    result = window(expectation.total, 3, 300_001).astype(np.float32)
    result[where] += np.float32(wrong)
    found = expectation.compare(result, 3, lane_bits=lane_bits, words=4)
    assert found.wrong_index == where
    assert not found.max_abs_error <= found.bound


def test_the_result_of_the_iteration_before_is_wrong(expectation: Expectation) -> None:
    stale = window(expectation.total, 2, 600).astype(np.float32)
    assert expectation.compare(stale, 3, lane_bits=8, words=4).wrong_index is not None


def test_one_missing_contribution_is_wrong(expectation: Expectation) -> None:
    missing = (expectation.total - one_period(SEED, 2))[:600].astype(np.float32)
    assert expectation.compare(missing, 0, lane_bits=8, words=4).wrong_index is not None


def test_a_piece_of_the_comparison_holds_whole_blocks(expectation: Expectation) -> None:
    """With 5 words a block has 320 lanes of 32 bits, which divide no power of two: a comparison that cut blocks apart
    would hold a part to the exponent of the wrong elements."""
    result = window(expectation.total, 0, 300_001).astype(np.float32)
    largest = window(expectation.largest, 0, 300_001)
    whole = lane_sum_bound(result.astype(np.float64), largest, WORKERS, 32, 320)
    found = expectation.compare(result, 0, lane_bits=32, words=5)
    assert math.isclose(found.bound, whole.max(), rel_tol=1e-6)
    assert expectation.compare(result[:131_200], 0, lane_bits=32, words=5).wrong_index is None
