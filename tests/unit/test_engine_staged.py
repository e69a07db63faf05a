# SPDX-License-Identifier: Apache-2.0
"""Staged collectives (design D11): floats on a device, among ranks with floats in memory, in virtual time."""

from collections.abc import Sequence

import numpy as np
import pytest
import reference
from numpy.typing import NDArray
from virtual_device import Device, drive
from virtual_network import Impairment, Network, make_network

from inagg._core import LaneBits

BLOCK = 64  # elements of 32 bits in one word
HARSH = Impairment(
    loss=0.1, duplication=0.1, jitter=0.002, straggling=0.05, straggle=0.1, refusal=0.3, delay=0.0005
)


def assert_same_bits(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(np.where(nan, 0, got).view(np.uint32), np.where(nan, 0, expected).view(np.uint32))


def gradients(workers: int, elements: int, seed: int = 1) -> NDArray[np.float32]:
    """inputs[rank, element], of magnitudes that differ from block to block."""
    draws = np.random.default_rng(seed)
    exponents = np.repeat(draws.integers(-20, 20, elements // 64 + 1), 64)[:elements]
    return np.ldexp(draws.standard_normal((workers, elements), dtype=np.float32), exponents)


def start(
    network: Network,
    inputs: NDArray[np.float32],
    staged: Sequence[bool],
    *,
    lane_bits: LaneBits,
    words: int,
    average: bool,
    **speed: float,
) -> tuple[NDArray[np.float32], list[Device | None]]:
    """Submits a collective; the arrays of all ranks, and the devices of some."""
    outputs = inputs.copy()
    devices: list[Device | None] = []
    for rank, engine in enumerate(network.engines):
        device = None
        if staged[rank]:
            device = Device(
                outputs[rank], lane_bits=lane_bits, workers=len(inputs), words=words, average=average
            )
            device.submit(engine)
            drive(network, rank, device, **speed)  # type: ignore[arg-type]
        else:
            engine.submit(outputs[rank], lane_bits=lane_bits, average=average, now=network.now)
        devices.append(device)
    return outputs, devices


def finish(network: Network, devices: Sequence[Device | None]) -> None:
    for engine, device in zip(network.engines, devices, strict=True):
        if device is not None:
            device.finish(engine)


def check(
    network: Network,
    inputs: NDArray[np.float32],
    staged: Sequence[bool],
    *,
    lane_bits: LaneBits = 32,
    words: int = 1,
    average: bool = False,
    **speed: float,
) -> None:
    outputs, devices = start(
        network, inputs, staged, lane_bits=lane_bits, words=words, average=average, **speed
    )
    network.run(len(network.completed[0]) + 1, within=network.now + 60)
    finish(network, devices)
    expected = reference.all_reduce_array(inputs, lane_bits=lane_bits, words=words, average=average)
    for output in outputs:
        assert_same_bits(output, expected)


@pytest.mark.parametrize("elements", [0, 1, 63, 64, 65, 64 * 20 + 1])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_staged_and_plain_ranks_get_the_same_bits(lane_bits: LaneBits, elements: int) -> None:
    network = make_network(3, slots=4, words=1)
    inputs = gradients(3, elements)
    check(network, inputs, [False, True, False], lane_bits=lane_bits)
    check(network, inputs, [True, True, True], lane_bits=lane_bits, average=True)


@pytest.mark.parametrize("workers", [1, 2, 5, 8, 64])
def test_every_number_of_staged_ranks(workers: int) -> None:
    network = make_network(workers, slots=4, words=1)
    check(network, gradients(workers, 300), [True] * workers, lane_bits=16, average=True)
