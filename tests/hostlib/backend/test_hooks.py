# SPDX-License-Identifier: Apache-2.0
"""DDP through inagg.hooks: the rounding errors of narrow lanes are not lost, whatever DDP does to its buckets."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
from tests.hostlib.backend import hooks_worker

WORKER = Path(__file__).with_name("hooks_worker.py")

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=[2, 4], ids=lambda ranks: f"{ranks} ranks")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Run -> the row of each rank."""
    ranks: int = request.param
    found: Rows = {name: [{} for _ in range(ranks)] for name in hooks_worker.RUNS}
    with open_testbed(
        hosts=ranks, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("hooks")
    ) as testbed:
        group = testbed.launch([sys.executable, str(WORKER), "{events}"], name="hooks")
        group.follow(
            lambda rank, row: found[row["run"]][rank].update(row), timeout_s=120, watch=testbed.services
        )
    return found


def distance(rows: Rows, run: str) -> float:
    """The distance of a training's final weights from those of float32 over gloo."""
    ends = [torch.tensor(rows[name][0]["weights"]) for name in (run, "float32 over gloo")]
    return float((ends[0] - ends[1]).norm())


def final_loss(rows: Rows, run: str) -> float:
    curve: list[float] = rows[run][0]["curve"]
    return sum(curve[-10:]) / 10


@pytest.mark.parametrize("run", hooks_worker.RUNS)
def test_all_ranks_end_with_the_same_weights(rows: Rows, run: str) -> None:
    first, *others = (row["weights"] for row in rows[run])
    assert others == [first] * len(others)


def test_with_feedback_8_bits_end_closer_to_float32_than_without(rows: Rows) -> None:
    without = distance(rows, "8 bits")
    assert distance(rows, "8 bits, feedback") < without / 3
    assert distance(rows, "8 bits, feedback, stochastic") < without / 3
    reference = final_loss(rows, "float32 over gloo")
    assert final_loss(rows, "8 bits") > 1.03 * reference
    assert final_loss(rows, "8 bits, feedback") < 1.03 * reference


def test_the_loss_with_16_bits_is_within_a_hundredth_of_float32_s(rows: Rows) -> None:
    reference = final_loss(rows, "float32 over gloo")
    for run in ("16 bits", "16 bits, feedback"):
        assert final_loss(rows, run) == pytest.approx(reference, rel=0.01)


def test_the_warm_up_uses_32_bit_lanes(rows: Rows) -> None:
    assert distance(rows, "8 bits after a warm-up") < 1e-5
    assert rows["8 bits after a warm-up"][0]["left"] == {}


def test_every_parameter_has_a_residual_and_steps_are_counted(rows: Rows) -> None:
    row = rows["8 bits, feedback"][0]
    assert row["step"] == hooks_worker.STEPS
    sizes = [parameter.numel() for parameter in hooks_worker.Model().parameters()]
    assert [len(row["left"][str(place)]) for place in range(len(sizes))] == sizes
    # Half a step of a block with the loud gradient, whose exponent is 3; N = 2 or 4 leaves F = 6 or 5.
    fraction_bits = {2: 6, 4: 5}[len(rows["8 bits, feedback"])]
    greatest = max(abs(x) for part in row["left"].values() for x in part)
    assert 0 < greatest <= 2.0 ** (3 - fraction_bits - 1)
