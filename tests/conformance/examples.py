# SPDX-License-Identifier: Apache-2.0
"""Collectives and networks for hypothesis to choose, and what must hold for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg._core import Engine, LaneBits
from inagg_simulator import reference
from inagg_simulator.recovery import Cost, measure
from inagg_simulator.virtual_device import Device, drive
from inagg_simulator.virtual_network import Impairment, Network

WORDS = 1
# What every example must be done within, in virtual seconds.
BOUND = 300.0


@dataclass(frozen=True)
class Collective:
    elements: int
    lane_bits: LaneBits
    average: bool
    specials: bool
    devices: int = 0  # bit r: rank r has its floats on a device, and stages them


@dataclass(frozen=True)
class Example:
    workers: int
    slots: int
    collectives: list[Collective]
    impairment: Impairment
    first_chunk: int
    seed: int
    lateness: float = 0.0  # seconds that a rank takes to get from one collective to the next, at most


collectives = st.builds(
    Collective,
    elements=st.one_of(st.integers(0, 3), st.integers(60, 70), st.integers(0, 500)),
    lane_bits=st.sampled_from([8, 16, 32]),
    average=st.booleans(),
    specials=st.sampled_from([False, False, True]),
    devices=st.sampled_from([0, 0, 0b0000_0010, 0b0101_0101, 0b1111_1111]),
)


def impairments(losses: Sequence[float] = (0.0, 0.01, 0.05, 0.2, 0.3)) -> st.SearchStrategy[Impairment]:
    """losses: the probabilities to draw from."""
    return st.builds(
        Impairment,
        loss=st.sampled_from(losses),
        duplication=st.sampled_from([0.0, 0.1, 0.5]),
        delay=st.sampled_from([0.0, 0.001]),
        jitter=st.sampled_from([0.0, 0.001, 0.05]),
        straggling=st.sampled_from([0.0, 0.2]),
        straggle=st.sampled_from([0.1, 3.0]),
        refusal=st.sampled_from([0.0, 0.0, 0.5]),
        merging=st.sampled_from([0.0, 0.0001, 0.01]),
    )


def make_inputs(collective: Collective, workers: int, draws: np.random.Generator) -> NDArray[np.float32]:
    shape = (workers, collective.elements)
    inputs = np.ldexp(draws.standard_normal(shape, dtype=np.float32), draws.integers(-3, 4, shape))
    if collective.specials:
        inputs[draws.random(shape) < 0.02] *= np.float32(2.0**60)
        for special in (np.nan, np.inf, -np.inf):
            inputs[draws.random(shape) < 0.02] = special
    return inputs


def check_collectives(network: Network, example: Example) -> None:
    draws = np.random.default_rng(example.seed)
    inputs = [make_inputs(collective, example.workers, draws) for collective in example.collectives]
    outputs = [array.copy() for array in inputs]
    devices: list[tuple[Engine, Device]] = []

    def submit(index: int, rank: int, engine: Engine) -> None:
        how = example.collectives[index]
        array = outputs[index][rank]
        if how.devices >> rank & 1:
            device = Device(
                array, lane_bits=how.lane_bits, workers=example.workers, words=WORDS, average=how.average
            )
            device.submit(engine)
            devices.append((engine, device))
            drive(network, rank, device, scan_s=draws.uniform(0, example.lateness))
        else:
            engine.submit(array, lane_bits=how.lane_bits, average=how.average, now=network.now)

    for rank in range(example.workers):
        times = network.now + np.cumsum(draws.uniform(0, example.lateness, len(outputs)))
        for index, time in enumerate(times):
            network.plan(time, rank, partial(submit, index, rank))
    network.run(len(inputs), within=BOUND)
    network.drain()
    for engine, device in devices:
        device.finish(engine)
    for array, output, collective in zip(inputs, outputs, example.collectives, strict=True):
        check_sum(collective, array, output)
    check_idle(network)


def check_sum(how: Collective, inputs: NDArray[np.float32], outputs: NDArray[np.float32]) -> None:
    """Every rank's output is the exact sum of the inputs, bit for bit."""
    expected = reference.all_reduce_array(inputs, lane_bits=how.lane_bits, words=WORDS, average=how.average)
    for row in outputs:
        nan = np.isnan(expected)
        assert np.array_equal(np.isnan(row), nan)
        assert np.array_equal(row[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def check_idle(network: Network) -> None:
    """No engine has failed, or waits for anything."""
    for engine in network.engines:
        assert engine.failure is None
        assert engine.stats["in_flight"] == 0
        assert engine.deadline() is None


@cache
def without_loss(tree: str, blocks: int = 2000) -> Cost:
    return measure(tree, 0.0, blocks)
