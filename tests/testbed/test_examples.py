# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ reach their losses, several at a time on one switch."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_testbed.bench.convergence import (
    TARGETS,
    Gradients,
    missed,
    plot_losses,
    run_convergence,
    summarise,
    table,
)
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import Event

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory, forked_processes: None) -> Iterator[Testbed]:
    results = tmp_path_factory.mktemp("results")
    with open_testbed(hosts=2, link=LinkSpec.parse("unshaped"), results_root=results) as testbed:
        yield testbed


@pytest.mark.netns
def test_two_jobs_learn_side_by_side(testbed: Testbed) -> None:
    digits = testbed.launch([sys.executable, str(EXAMPLES / "digits.py"), "--epochs", "3"], name="digits")
    gpt = testbed.launch([sys.executable, str(EXAMPLES / "gpt.py"), "--steps", "20"], name="gpt")
    for group in (digits, gpt):
        group.follow(lambda _rank, _event: None, timeout_s=120, watch=testbed.services)
    logs = {
        group: (testbed.results / f"{group}-rank0.log").read_text().splitlines()
        for group in ("digits", "gpt")
    }
    last_epoch = next(line for line in logs["digits"] if line.startswith("epoch 3: "))
    assert float(last_epoch.split()[2].rstrip("%")) > 80
    loss = next(line for line in logs["gpt"] if line.startswith("step 20: "))
    assert float(loss.split()[2]) < 3.2  # 5.5: guessing; 3.26: frequencies of bytes only


@pytest.mark.netns
def test_error_feedback_and_bfloat16_keep_up_with_float32(testbed: Testbed, tmp_path: Path) -> None:
    halves = [Gradients(lane_bits, dtype="bfloat16") for lane_bits in (None, 16)]
    ways = (Gradients(), Gradients(8, feedback=True, warm_up=True), *halves)
    rows = run_convergence(testbed, 10, tasks=("digits",), ways=ways, on_progress=lambda *_: None)
    # The same weights, the same batch.
    assert len({row["losses"][0] for row in rows}) == 1
    assert len({tuple(row["losses"]) for row in rows}) == len(ways)
    assert missed(rows) == []
    assert [line[0] for line in table(rows)[1]] == [
        "digits, gloo",
        "digits, inagg:8, error feedback, warm-up",
        "digits, gloo, bfloat16",
        "digits, inagg:16, bfloat16",
    ]
    plot_losses(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_ends_too_high_has_missed_its_target() -> None:
    def events(loss: float) -> list[tuple[int, Event]]:
        steps = [
            (0, {"event": "step", "step": 0, "loss": 9.0}),
            (0, {"event": "step", "step": 1, "loss": loss}),
        ]
        return [*steps, (0, {"event": "end", "held_out": loss})]

    rows = [summarise("gpt", Gradients(), events(2.0), [])]
    rows += [summarise("gpt", gradients, events(2.05), rows) for gradients in (*TARGETS, Gradients(8))]
    assert [row["against_gloo"] for row in rows] == [1.0, *[1.025] * 4]
    assert missed(rows) == [
        "gpt, inagg:16, error feedback: 1.025 times gloo's final loss, more than 1.01",
        "gpt, inagg:16, bfloat16: 1.025 times gloo's final loss, more than 1.01",
    ]
