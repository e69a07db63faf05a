# SPDX-License-Identifier: Apache-2.0
"""Gradients, and the comparison of bits."""

import numpy as np
from numpy.typing import NDArray


def gradients(workers: int, elements: int, seed: int = 1) -> NDArray[np.float32]:
    """inputs[rank, element]; magnitudes differ between blocks."""
    draws = np.random.default_rng(seed)
    exponents = np.repeat(draws.integers(-20, 20, elements // 64 + 1), 64)[:elements]
    return np.ldexp(draws.standard_normal((workers, elements), dtype=np.float32), exponents)


def assert_same_bits(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(np.where(nan, 0, got).view(np.uint32), np.where(nan, 0, expected).view(np.uint32))
