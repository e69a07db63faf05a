# SPDX-License-Identifier: Apache-2.0
"""bfloat16 and float16 in the memory of the host: the core reads them, and writes their sums."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg import _core
from inagg_simulator.virtual_network import PERFECT, Impairment, Network, make_network
from tests.hostlib.native.floats import gradients

HALVES = [torch.bfloat16, torch.float16]
ALL = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)


def bits(halves: torch.Tensor) -> NDArray[np.int16]:
    """The bits, the same for every NaN."""
    return halves.masked_fill(halves.isnan(), torch.nan).view(torch.int16).numpy()


def narrowed(floats: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    found = torch.zeros(floats.numel(), dtype=dtype)
    _core.narrow(floats.numpy(), found)
    return found


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", HALVES)
class TestConversions:
    @pytest.mark.parametrize("size", [1 << 16, 257, 64, 63, 1, 0])
    def test_every_half_is_one_float(self, dtype: torch.dtype, size: int) -> None:
        halves = ALL[-size:].view(dtype) if size else ALL[:0].view(dtype)
        floats = torch.zeros(size)
        _core.widen(halves, floats.numpy())
        assert torch.equal(floats.isnan(), halves.isnan())
        numbers = ~halves.isnan()
        assert torch.equal(
            floats.view(torch.int32)[numbers], halves.to(torch.float32).view(torch.int32)[numbers]
        )
        assert np.array_equal(bits(narrowed(floats, dtype)), bits(halves))

    def test_floats_at_and_beside_the_middle_of_two_halves_round_to_nearest_even(
        self, dtype: torch.dtype
    ) -> None:
        """Every middle, one float above and one below; the middle above the greatest half rounds to an infinity."""
        halves = ALL.view(dtype)
        dropped = 16 if dtype == torch.bfloat16 else 13
        places = halves[halves.isfinite()].to(torch.float32).view(torch.int32)
        near = torch.cat([places + (1 << (dropped - 1)) + by for by in (-1, 0, 1)]).view(torch.float32)
        step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        subnormal = (torch.arange(3000) - 1500) * (step / 4)
        for floats in (
            near,
            subnormal,
            torch.tensor([torch.inf, -torch.inf, torch.nan, 3.4e38, -0.0, 1e-45]),
        ):
            assert np.array_equal(bits(narrowed(floats, dtype)), bits(floats.to(dtype)))

    @given(seed=st.integers(0, 1 << 32), size=st.integers(0, 700))
    def test_any_bits_round_as_torch_rounds_them(self, dtype: torch.dtype, seed: int, size: int) -> None:
        drawn = np.random.default_rng(seed).integers(0, 1 << 32, size, dtype=np.uint32)
        floats = torch.from_numpy(drawn.view(np.float32))
        assert np.array_equal(bits(narrowed(floats, dtype)), bits(floats.to(dtype)))


def sums(
    network: Network, inputs: Sequence[torch.Tensor], arguments: Mapping[str, Any]
) -> list[torch.Tensor]:
    """What arrays of any type hold after their collective, by rank."""
    outputs = [tensor.clone() for tensor in inputs]
    for engine, output in zip(network.engines, outputs, strict=True):
        engine.submit(output, now=network.now, **arguments)
    network.run(1, within=60.0)
    return outputs


def check(
    inputs: NDArray[np.float32],
    dtype: torch.dtype,
    *,
    words: int = 1,
    impairment: Impairment = PERFECT,
    **arguments: Any,
) -> Network:
    """Checks that halves have the sums of the same float32 elements, rounded once more. Returns the network."""
    halves = [torch.from_numpy(row).to(dtype) for row in inputs]
    network = make_network(len(inputs), slots=8, words=words, impairment=impairment, seed=3)
    found = sums(network, halves, arguments)
    plain = make_network(len(inputs), slots=8, words=words)
    expected = sums(plain, [half.to(torch.float32) for half in halves], arguments)
    for half, floats in zip(found, expected, strict=True):
        assert np.array_equal(bits(half), bits(floats.to(dtype)))
    return network


@pytest.mark.parametrize("dtype", HALVES)
class TestSums:
    @pytest.mark.parametrize("lane_bits", [8, 16, 32])
    @pytest.mark.parametrize("elements", [0, 1, 63, 64, 65, 3000])
    def test_halves_of_every_size_have_the_sums_of_floats(
        self, dtype: torch.dtype, elements: int, lane_bits: int
    ) -> None:
        for average in (False, True):
            check(gradients(3, elements), dtype, lane_bits=lane_bits, average=average)

    # 1 MiB is streamed past the caches.
    @pytest.mark.parametrize("elements", [(1 << 19) - 1, 1 << 19, (1 << 19) + 777])
    def test_large_ones_too(self, dtype: torch.dtype, elements: int) -> None:
        check(gradients(2, elements), dtype, words=32, lane_bits=16)

    @pytest.mark.parametrize("words", [1, 5, 255])
    def test_whatever_fits_a_packet(self, dtype: torch.dtype, words: int) -> None:
        check(gradients(2, 70_000), dtype, words=words, lane_bits=8)

    @pytest.mark.parametrize("lane_bits", [8, 16, 32])
    @pytest.mark.parametrize("average", [False, True])
    def test_nan_infinities_outliers_and_overflows_with_loss(
        self, dtype: torch.dtype, lane_bits: int, average: bool
    ) -> None:
        inputs = gradients(4, 1500)
        greatest = torch.finfo(dtype).max
        inputs[:, 0:64] *= np.float32(2.0**-14)  # subnormals of float16
        inputs[1, ::90] = np.nan
        inputs[2, 100::130] = np.inf
        inputs[3, 100::170] = -np.inf
        inputs[:, 300:500] *= np.float32(2.0**-10)
        inputs[1, 310::20] = greatest
        inputs[2, 330::20] = greatest
        loss = Impairment(loss=0.2, jitter=0.01)
        network = check(inputs, dtype, impairment=loss, lane_bits=lane_bits, average=average)
        stats = network.engines[0].stats
        assert stats["wide_blocks"] > 0
        assert stats["special_blocks"] > stats["wide_blocks"]

    def test_stochastic_rounding_draws_what_floats_draw(self, dtype: torch.dtype) -> None:
        check(gradients(3, 5000), dtype, lane_bits=16, stochastic=7)

    def test_a_rank_may_have_floats_where_another_has_halves(self, dtype: torch.dtype) -> None:
        ones = torch.ones(500)
        network = make_network(2, slots=4, words=1)
        half, floats = sums(network, [ones.to(dtype), ones], {"lane_bits": 16})
        assert bool((half == 2).all())
        assert bool((floats == 2).all())

    def test_memory_beside_them_stays(self, dtype: torch.dtype) -> None:
        memory = torch.ones(302, dtype=dtype)
        network = make_network(2, slots=4, words=1)
        network.engines[0].submit(memory[1:301], lane_bits=16)
        network.engines[1].submit(torch.ones(300, dtype=dtype), lane_bits=16)
        network.run(1, within=60.0)
        assert memory.tolist() == [1, *[2] * 300, 1]

    def test_they_have_no_residual(self, dtype: torch.dtype) -> None:
        (engine,) = make_network(1, slots=1, words=1).engines
        with pytest.raises(ValueError, match="only an array of float32 has a residual"):
            engine.submit(torch.ones(3, dtype=dtype), residual=np.ones(3, np.float32))


@pytest.mark.parametrize("dtype", [torch.int16, torch.float64, torch.int32])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    (engine,) = make_network(1, slots=1, words=1).engines
    with pytest.raises(TypeError, match="must be of float32, bfloat16 or float16"):
        engine.submit(torch.ones(3, dtype=dtype))
