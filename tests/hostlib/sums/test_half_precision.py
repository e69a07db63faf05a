# SPDX-License-Identifier: Apache-2.0
"""Half floats: their lanes by default, and the error of sums in 16-bit lanes beside that of a ring that rounds to the
type at each step (docs/protocol.md, 3.5)."""

import runpy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg.options import Options
from inagg.sums.elements import LEAST_HALVES, lane_bits_of
from inagg_contract.lanes import LaneWidth
from inagg_simulator.reference import all_reduce_array
from tests import ROOT

BLOCK = 512  # elements of a chunk of 4 words
DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]] = {
    "normal": lambda draw, shape: draw.standard_normal(shape),
    "normal with a common mean 10 times as great": lambda draw, shape: 1 + draw.standard_normal(shape) / 10,
    "Student's t with 3 degrees of freedom, about": lambda draw, shape: draw.standard_t(3, shape),
    "normal, 1 of 20 not zero": lambda draw, shape: draw.standard_normal(shape) * (draw.random(shape) < 0.05),
}


def square_errors(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean square errors of each chunk, of sums of inputs[rank, element]: in 16-bit lanes, and by a ring."""
    exact = inputs.double().sum(0)
    lanes = torch.from_numpy(all_reduce_array(inputs.float().numpy(), lane_bits=16, words=4)).to(inputs.dtype)
    ring = inputs[0].clone()
    for contribution in inputs[1:]:
        ring += contribution
    ours, theirs = ((result.double() - exact).square().view(-1, BLOCK).mean(1) for result in (lanes, ring))
    return ours, theirs


def drawn(
    name: str, ranks: int, dtype: torch.dtype, blocks: int, seed: int, scale: float = 1.0
) -> torch.Tensor:
    values = DRAWS[name](np.random.default_rng(seed), (ranks, blocks * BLOCK))
    return torch.from_numpy(values * scale).to(dtype)


@given(
    name=st.sampled_from(["normal", "normal with a common mean 10 times as great"]),
    ranks=st.integers(3, 32),
    exponent=st.integers(-60, 60),
    seed=st.integers(0, 1 << 32),
)
def test_each_chunk_of_bfloat16_is_closer_to_the_sum_than_a_rings(
    name: str, ranks: int, exponent: int, seed: int
) -> None:
    ours, theirs = square_errors(drawn(name, ranks, torch.bfloat16, 4, seed, 2.0**exponent))
    assert (ours < theirs).all()


RANKS = (2, 4, 8, 16, 32)


def page() -> dict[tuple[torch.dtype, str], list[float]]:
    """The rows of the table of docs/protocol.md, 3.5, with elements of DRAWS."""
    found, dtype = {}, torch.float32
    section = (ROOT / "docs" / "protocol.md").read_text().partition("### 3.5")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        dtype = getattr(torch, cells[0], dtype) if cells[0] else dtype
        if len(cells) == 7 and cells[1] in DRAWS:
            found[dtype, cells[1]] = [float(cell) for cell in cells[2:]]
    return found


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_errors_are_those_of_the_page(dtype: torch.dtype, name: str) -> None:
    for ranks, stated in zip(RANKS, page()[dtype, name], strict=True):
        ours, theirs = square_errors(drawn(name, ranks, dtype, 200, seed=ranks))
        varies = name.endswith("about")
        assert ours.mean() / theirs.mean() == pytest.approx(stated, rel=0.6 if varies else 0.15), ranks


def test_gradients_of_a_model_in_bfloat16_are_closer_to_the_sum_than_a_rings() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "digits.py"))
    torch.manual_seed(0)
    model, (training, _) = example["make_model"](), example["load_data"]()
    images, labels = training.tensors
    steps = torch.optim.SGD(model.parameters(), lr=0.05)

    def gradient(step: int, rank: int) -> torch.Tensor:
        some = torch.randperm(len(images), generator=torch.Generator().manual_seed(100 * step + rank))[:16]
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images[some]), labels[some]).backward()
        flat = torch.cat([one.grad.flatten() for one in model.parameters()])
        return flat[: len(flat) // BLOCK * BLOCK].bfloat16()

    for step in range(41):
        if step % 20 == 0:
            gradients = torch.stack([gradient(step, rank) for rank in range(32)])
            for ranks in RANKS[1:]:
                ours, theirs = square_errors(gradients[:ranks])
                assert ours.mean() < 0.7 * theirs.mean(), (step, ranks)
                assert (ours <= theirs).double().mean() > 0.9, (step, ranks)
        gradient(step, 99)
        steps.step()


@pytest.mark.parametrize(
    ("dtype", "elements", "ranks", "settings", "lane_bits"),
    [
        (torch.bfloat16, LEAST_HALVES, 32, {}, 16),
        (torch.bfloat16, LEAST_HALVES, 33, {}, 32),
        (torch.bfloat16, LEAST_HALVES - 1, 4, {}, 32),
        (torch.float16, LEAST_HALVES, 8, {}, 16),
        (torch.float16, LEAST_HALVES, 9, {}, 32),
        (torch.float32, LEAST_HALVES, 4, {}, 32),
        (torch.float32, LEAST_HALVES, 4, {"half_lane_bits": 8}, 32),
        (torch.bfloat16, 1, 64, {"half_lane_bits": 16}, 16),
        (torch.bfloat16, 1, 4, {"lane_bits": 8}, 8),
        (torch.bfloat16, LEAST_HALVES, 4, {"lane_bits": 8, "half_lane_bits": 32}, 32),
        (torch.int16, LEAST_HALVES, 4, {"lane_bits": 8, "half_lane_bits": 8}, 32),
    ],
)
def test_lanes_of_each_type(
    dtype: torch.dtype, elements: int, ranks: int, settings: dict[str, int], lane_bits: LaneWidth
) -> None:
    assert lane_bits_of(dtype, elements, ranks, Options(**settings)) == lane_bits
