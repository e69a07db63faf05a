"""The benchmark's own arithmetic: exact sums, bounds of docs/protocol.md 3.4, and wrong results being seen."""

import math
from fractions import Fraction

import numpy as np
import pytest

from inagg_testbed.allreduce_check import (
    Expectation,
    block_exponents,
    contribution,
    float_sum_bound,
    lane_sum_bound,
)

SEED, WORKERS, LENGTH = 7, 5, 700


def float32(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def test_the_expected_sum_is_exact() -> None:
    inputs = [contribution(SEED, rank, LENGTH) for rank in range(WORKERS)]
    expected = Expectation(SEED, WORKERS, LENGTH).total
    for index in range(LENGTH):
        assert Fraction(expected[index]) == sum(Fraction(float(values[index])) for values in inputs)


def test_contributions_differ_between_ranks_and_repeat_for_a_seed() -> None:
    assert np.array_equal(contribution(1, 0, 9), contribution(1, 0, 9))
    assert not np.array_equal(contribution(1, 0, 9), contribution(1, 1, 9))
    assert not np.array_equal(contribution(1, 0, 9), contribution(2, 0, 9))


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


@pytest.mark.parametrize("lane_bits", [None, 32, 16])
def test_the_right_sum_passes(lane_bits: int | None) -> None:
    expectation = Expectation(SEED, WORKERS, LENGTH)
    result = expectation.total[3:603].astype(np.float32)
    found = expectation.compare(result, 3, lane_bits=lane_bits, words=4)
    assert found.wrong_index is None
    assert found.max_abs_error <= found.bound


@pytest.mark.parametrize("lane_bits", [None, 32, 16])
@pytest.mark.parametrize("wrong", [0.01, math.nan, math.inf])
def test_a_wrong_element_is_named(lane_bits: int | None, wrong: float) -> None:
    expectation = Expectation(SEED, WORKERS, LENGTH)
    result = expectation.total[3:603].astype(np.float32)
    result[41] += np.float32(wrong)
    assert expectation.compare(result, 3, lane_bits=lane_bits, words=4).wrong_index == 41


def test_the_result_of_the_iteration_before_is_wrong() -> None:
    expectation = Expectation(SEED, WORKERS, LENGTH)
    stale = expectation.total[2:602].astype(np.float32)
    assert expectation.compare(stale, 3, lane_bits=16, words=4).wrong_index is not None


def test_one_missing_contribution_is_wrong() -> None:
    expectation = Expectation(SEED, WORKERS, LENGTH)
    missing = (expectation.total - contribution(SEED, 2, LENGTH)).astype(np.float32)
    assert expectation.compare(missing, 0, lane_bits=16, words=4).wrong_index is not None
