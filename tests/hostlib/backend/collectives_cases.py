# SPDX-License-Identifier: Apache-2.0
"""Shared by the cases of test_collectives.py: inputs that every rank knows, and the bounds of their sums."""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist

import inagg

CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES.append(function)
    return function


def normal(rank: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(shape, generator=generator) * scale


def contributions(make: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """The contributions of all ranks, stacked, in float64."""
    return torch.stack([make(rank) for rank in range(dist.get_world_size())]).double()


def normals(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`normal` of all ranks, rounded to a type, stacked, in float64."""
    return contributions(lambda rank: normal(rank, *shape).to(dtype))


def bound(inputs: torch.Tensor, lane_bits: int = 32) -> float:
    """The error bound of docs/protocol.md, 3.4, for the greatest exponent of all blocks."""
    workers = inputs.shape[0]
    fraction = lane_bits - 1 - math.ceil(math.log2(workers)) if workers > 1 else lane_bits - 1
    finite = inputs[torch.isfinite(inputs)]
    greatest = finite.abs().max().item() if finite.numel() else 0.0
    share, exponent = math.frexp(greatest)
    exponent += round(share * 2**fraction) == 2**fraction
    quantisation = workers * math.ldexp(1.0, exponent - fraction - 1)
    return quantisation + 2.0**-24 * (workers * greatest + quantisation) + 2.0**-150


def assert_sum(result: torch.Tensor, inputs: torch.Tensor, lane_bits: int = 32) -> None:
    error = (result.double() - inputs.sum(0)).abs().max().item() if result.numel() else 0.0
    assert error <= bound(inputs, lane_bits), f"error {error} above {bound(inputs, lane_bits)}"
    assert_same_everywhere(result)


def assert_same_everywhere(result: torch.Tensor) -> None:
    bits = result.detach().contiguous().view(torch.int32).clone()
    gathered = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, bits)
    assert all(torch.equal(bits, other) for other in gathered), "ranks differ"


def through_switch() -> int:
    count: int = inagg.stats()["switch_reductions"]
    return count
