# SPDX-License-Identifier: Apache-2.0
"""Sums of tensors so large that the results go to memory past the caches (numerics/blocks.cpp)."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from inagg import _core
from inagg._core import LaneBits
from inagg_simulator import reference
from inagg_simulator.virtual_network import make_network
from tests.hostlib.native.floats import assert_same_bits, gradients

ELEMENTS = (1 << 18) + 259  # 1 MiB, a block and three elements
WORDS = 32


@pytest.fixture(params=_core.available_kernels())
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every build of the inner loops passes every test."""
    _core.use_kernels(request.param)
    yield
    _core.use_kernels(_core.available_kernels()[0])


def placed(values: NDArray[np.float32], offset: int) -> NDArray[np.float32]:
    """A copy whose first element is `offset` elements behind a multiple of 64 bytes."""
    memory = np.full(values.size + 64, 7.0, np.float32)
    first = (-memory.ctypes.data // 4) % 16 + offset
    memory[first : first + values.size] = values
    return memory[first : first + values.size]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_a_large_tensor_is_summed_wherever_it_lies(lane_bits: LaneBits, average: bool, offset: int) -> None:
    inputs = gradients(3, ELEMENTS)
    inputs[0, 5], inputs[1, ELEMENTS - 1] = np.inf, np.nan
    expected = reference.all_reduce_array(inputs, lane_bits=lane_bits, words=WORDS, average=average)
    network = make_network(3, slots=16, words=WORDS)
    outputs = [placed(row, offset) for row in inputs]
    for engine, output in zip(network.engines, outputs, strict=True):
        engine.submit(output, lane_bits=lane_bits, average=average, now=network.now)
    network.run(1, within=60.0)
    for output in outputs:
        assert_same_bits(output, expected)
        base = output.base
        assert base is not None
        outside = np.ones(base.size, bool)
        first = (output.ctypes.data - base.ctypes.data) // 4
        outside[first : first + output.size] = False
        assert (base[outside] == 7.0).all()
