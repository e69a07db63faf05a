# SPDX-License-Identifier: Apache-2.0
"""Residuals for error feedback: a block's lanes and its residual add up to the block."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg import _core
from inagg_simulator import reference
from inagg_simulator.virtual_network import Impairment, make_network

elements = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.floats(-2, 2, width=32))
blocks = st.lists(elements, min_size=1, max_size=64)
lane_widths = st.sampled_from([8, 16, 32])

pytestmark = pytest.mark.usefixtures("kernels")


@given(blocks, lane_widths, st.integers(1, 64), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 99)))
def test_lanes_and_residual_make_the_element(
    block: list[float], lane_bits: _core.LaneBits, workers: int, louder: int, seed: int | None
) -> None:
    array = np.array(block, np.float32)
    lanes = reference.Lanes(lane_bits, workers)
    found = _core.block_exponent(array, lane_bits=lane_bits, workers=workers, stochastic=seed is not None)
    code = found.code
    code += min(louder, reference.EXPONENT_BIAS + 129 - code) if code else 0  # another rank's exponent
    packed, _ = _core.quantise(array, exponent=code, lane_bits=lane_bits, workers=workers, words=1, seed=seed)
    out = np.full(len(array), np.nan, np.float32)
    _core.residual(array, packed, exponent=code, lane_bits=lane_bits, workers=workers, out=out)
    scale = reference.two_to(code - reference.EXPONENT_BIAS - lanes.fraction_bits) if code else Fraction(0)
    together = reference.together(array.tolist())
    for x, lane, left in zip(together, lanes.unpack(packed), out.tolist(), strict=False):
        exact = Fraction(x) - (lane - lanes.bias) * scale
        # Rounding to nearest leaves at most half a step, which is exact. Stochastic rounding may round it once more.
        assert abs(Fraction(left) - exact) <= (0 if seed is None else abs(exact) * Fraction(1, 2**23))


def test_nothing_is_left_of_nan_and_infinities() -> None:
    array = np.array([np.nan, 1.0, -np.inf, 0.3, np.inf], np.float32)
    code = _core.block_exponent(array, lane_bits=8, workers=2).code
    packed, _ = _core.quantise(array, exponent=code, lane_bits=8, workers=2, words=1)
    out = np.full(5, 7, np.float32)
    _core.residual(array, packed, exponent=code, lane_bits=8, workers=2, out=out)
    # N = 2, W = 8: F = 6, E = 1, a step is 2^-5; 0.3 is 9.6 steps.
    assert out.tolist() == [0.0, 0.0, 0.0, pytest.approx(0.3 - 10 / 32), 0.0]


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_sum_and_the_residuals_make_the_inputs_whatever_is_sent_again(loss: float) -> None:
    # Multiples of 2^-10 below 1: the sums of inputs, residuals and results are exact in float64.
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-1023, 1024, 2000).astype(np.float32) / np.float32(1024) for _ in range(2)]
    network = make_network(2, slots=4, words=1, impairment=Impairment(loss=loss), seed=5)
    arrays = [x.copy() for x in inputs]
    residuals = [np.full(2000, np.nan, np.float32) for _ in inputs]
    for engine, array, left in zip(network.engines, arrays, residuals, strict=True):
        engine.submit(array, lane_bits=8, residual=left)
    network.run(1, within=100.0)
    exact = sum(x.astype(np.float64) for x in inputs)
    for array in arrays:
        assert np.array_equal(array + sum(left.astype(np.float64) for left in residuals), exact)
    assert all(0 < np.abs(left).max() <= 2.0**-6 for left in residuals)


def test_an_outlier_has_the_residual_of_its_own_lane() -> None:
    # N = 2, W = 8: F = 6. Under the exponents 1 and 31 steps are 2^-5 and 2^25.
    inputs = [np.full(64, 1 + 2.0**-7, np.float32) for _ in range(2)]
    inputs[0][[4, 5]] = [2.0**30, 2.0**24 + 2.0**20]
    network = make_network(2, slots=4, words=1)
    arrays = [x.copy() for x in inputs]
    residuals = [np.full(64, np.nan, np.float32) for _ in inputs]
    for engine, array, left in zip(network.engines, arrays, residuals, strict=True):
        engine.submit(array, lane_bits=8, residual=left)
    network.run(1, within=10.0)
    left = np.full(64, 2.0**-7, np.float32)
    assert np.array_equal(residuals[1], left)
    left[[4, 5]] = [0.0, 2.0**20 - 2.0**24]
    assert np.array_equal(residuals[0], left)
    expected = np.full(64, 2.0, np.float32)
    expected[[4, 5]] = [2.0**30 + 1, 2.0**25 + 1]
    assert np.array_equal(arrays[0], expected)


def test_a_residual_of_another_length_is_refused() -> None:
    (engine,) = make_network(1, slots=4, words=1).engines
    with pytest.raises(ValueError, match="the residual has 3 elements, the array 4"):
        engine.submit(np.ones(4, np.float32), residual=np.ones(3, np.float32))
