# SPDX-License-Identifier: Apache-2.0
"""`inagg bench convergence`: how narrow lanes affect a training's loss, and how error feedback restores it.

The models of examples/ train over gloo and through the switch in 32-, 16- and 8-bit lanes, from the same weights on the
same batches. Gradients are float32, or are rounded to bfloat16 before they are summed. Figures of a run:
- losses: mean over ranks of each step;
- final: mean of losses over the last tenth of the steps; against_gloo: final divided by gloo's in float32;
- held_out: loss on data that was not used for training.
"""

import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from inagg_testbed.bench.plan import BATCHES_SEED, WEIGHTS_SEED
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.training_run import OnProgress, follow_training, values_by_step
from inagg_testbed.network.workers import Event
from inagg_testbed.report.pictures import COLOURS, finish

TASKS = ("gpt", "digits")
WARM_UP = 5  # the warm-up is a fifth of the steps
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gradients:
    """How gradients are summed.

    lane_bits: None sums by gloo. warm_up: 32-bit lanes in the first fifth of the steps. dtype: of the gradients that
    are summed; bfloat16 has neither feedback nor a warm-up.
    """

    lane_bits: int | None = None
    feedback: bool = False
    warm_up: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def label(self) -> str:
        """Name in tables and plots."""
        backend = "gloo" if self.lane_bits is None else f"inagg:{self.lane_bits}"
        extras = [", error feedback"] * self.feedback + [", warm-up"] * self.warm_up
        return backend + "".join(extras) + (f", {self.dtype}" if self.dtype != "float32" else "")


_FED_BACK = {Gradients(16, feedback=True): 1.01, Gradients(8, feedback=True, warm_up=True): 1.03}
# The highest final loss, relative to gloo's in float32, that each of these may reach.
TARGETS = _FED_BACK | {Gradients(16, dtype="bfloat16"): 1.01}
ALL_GRADIENTS = (
    Gradients(),
    Gradients(32),
    *_FED_BACK,
    Gradients(8, feedback=True),
    Gradients(8),
    *(Gradients(lane_bits, dtype="bfloat16") for lane_bits in (None, 16, 32)),
)


def run_convergence(
    testbed: Testbed,
    steps: int,
    *,
    tasks: Sequence[str] = TASKS,
    ways: Sequence[Gradients] = ALL_GRADIENTS,
    on_progress: OnProgress,
) -> list[Row]:
    """Train each task in all `ways`, gloo in float32 first, on a testbed that is up. Raises LauncherError."""
    rows: list[Row] = []
    for task in tasks:
        for gradients in ways:
            events = _train(testbed, task, gradients, steps, on_progress)
            rows.append(summarise(task, gradients, events, rows))
    return rows


def _train(
    testbed: Testbed, task: str, gradients: Gradients, steps: int, on_progress: OnProgress
) -> list[tuple[int, Event]]:
    command = [sys.executable, "-m", "inagg_testbed.bench.convergence_worker", task, "--steps", str(steps)]
    command += ["--events", "{events}"]
    if gradients.lane_bits is not None:
        command += ["--lane-bits", str(gradients.lane_bits)]
    if gradients.dtype == "bfloat16":
        command.append("--bfloat16")
    if gradients.feedback:
        command.append("--feedback")
    if gradients.warm_up:
        command += ["--warm-up-steps", str(steps // WARM_UP)]
    return follow_training(
        testbed,
        command,
        name=f"{task}-{len(testbed.groups)}",
        label=f"{task}, {gradients.label}",
        steps=steps,
        on_progress=on_progress,
    )


def summarise(
    task: str, gradients: Gradients, events: Sequence[tuple[int, Event]], before: Sequence[Row]
) -> Row:
    """A run's row. The first row of `before` for the same task is gloo's in float32, unless this run is."""
    losses = [statistics.fmean(found) for _, found in sorted(values_by_step(events, "step", "loss").items())]
    final = statistics.fmean(losses[-max(1, len(losses) // 10) :])
    gloo = next((row["final"] for row in before if row["task"] == task), final)
    return {
        "task": task,
        "dtype": gradients.dtype,
        "lane_bits": gradients.lane_bits,
        "error_feedback": gradients.feedback,
        "warm_up": gradients.warm_up,
        "target": TARGETS.get(gradients),
        "label": gradients.label,
        "losses": losses,
        "final": final,
        "against_gloo": final / gloo,
        "held_out": next(
            event["held_out"] for rank, event in events if rank == 0 and event["event"] == "end"
        ),
    }


def missed(rows: Sequence[Row]) -> list[str]:
    """A message for each run that missed its target."""
    return [
        f"{row['task']}, {row['label']}: {row['against_gloo']:.3f} times gloo's final loss, more than "
        f"{row['target']}"
        for row in rows
        if row["target"] is not None and row["against_gloo"] > row["target"]
    ]


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table, one row a run."""
    header = ["training", "final loss", "over gloo's", "held-out loss"]
    body = [
        [
            f"{row['task']}, {row['label']}",
            f"{row['final']:.4f}",
            f"{row['against_gloo']:.3f}",
            f"{row['held_out']:.4f}",
        ]
        for row in rows
    ]
    return header, body


def seeds(workers: int) -> Row:
    """The seeds of the weights, and of the batches by rank."""
    return {"weights": WEIGHTS_SEED, "batches": [BATCHES_SEED + rank for rank in range(workers)]}


def plot_losses(rows: Sequence[Row], path: Path) -> None:
    """Plot each run's loss minus gloo's, in percent of gloo's, in a panel for each task.

    Losses are means over a twentieth of the steps. gloo is the line at zero.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(5 * len(tasks), 4.2), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        gloo = _smooth(of_task[0]["losses"])
        for colour, row in zip(itertools.cycle(COLOURS), of_task, strict=False):
            excess = [
                100 * (ours / theirs - 1) for ours, theirs in zip(_smooth(row["losses"]), gloo, strict=True)
            ]
            style = "-" if row["lane_bits"] is None or row["error_feedback"] else "--"
            if row["dtype"] == "bfloat16":
                style = ":"
            axes.plot(range(1, len(gloo) + 1), excess, style, color=colour, label=row["label"], linewidth=1.2)
        axes.set_title(task, fontsize=10)
        axes.set_xlabel("step")
    panels[0].set_ylabel("training loss above gloo's (%)")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    finish(figure, path)


def _smooth(losses: Sequence[float]) -> list[float]:
    width = max(1, len(losses) // 20)
    return [statistics.fmean(losses[max(0, end - width) : end]) for end in range(1, len(losses) + 1)]
