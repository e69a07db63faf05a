# SPDX-License-Identifier: Apache-2.0
"""The demo's plots, as PNG files."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from inagg_testbed.demo.run import TrainingResult
from inagg_testbed.report.pictures import COLOURS, finish

_COMPUTE = "#cbd5e1"
_STYLES = ("-", "-", "-", "--", ":")


def plot_losses(runs: Sequence[TrainingResult], path: Path) -> None:
    """Plot training loss against steps and against time: step by step the curves agree, in time they differ."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    by_step, by_time = figure.subplots(1, 2, sharey=True)
    for number, run in enumerate(runs):
        look = {"color": COLOURS[number % len(COLOURS)], "linestyle": _STYLES[number % len(_STYLES)]}
        by_step.plot(range(1, len(run.losses) + 1), run.losses, label=run.spec.label, **look)
        by_time.plot(_elapsed_seconds(run), run.losses, **look)
    by_step.set_xlabel("step")
    by_step.set_ylabel("training loss")
    by_step.set_yscale("log")
    by_time.set_xlabel("time in steps (s)")
    by_step.legend(frameon=False, fontsize=8)
    finish(figure, path)


def plot_steps(runs: Sequence[TrainingResult], path: Path) -> None:
    """Plot time per step, split into computation and communication."""
    figure = Figure(figsize=(8, 0.8 + 0.6 * len(runs)), layout="constrained")
    axes = figure.subplots()
    labels = [run.spec.label for run in runs]
    communication = [run.comm_ms_p50 for run in runs]
    compute = [run.step_ms_p50 - run.comm_ms_p50 for run in runs]
    computing = axes.barh(labels, compute, color=_COMPUTE)
    colours = [COLOURS[number % len(COLOURS)] for number in range(len(runs))]
    communicating = axes.barh(labels, communication, left=compute, color=colours)
    for bars, values, colour in ((computing, compute, "black"), (communicating, communication, "white")):
        axes.bar_label(
            bars, [f"{value:.0f}" for value in values], label_type="center", color=colour, fontsize=9
        )
    axes.bar_label(communicating, [f"{run.step_ms_p50:.0f} ms" for run in runs], padding=4, fontsize=9)
    axes.set_xlabel("median time per step (ms): computation (grey) and communication (coloured)")
    axes.set_xlim(0, 1.12 * max(run.step_ms_p50 for run in runs))
    axes.invert_yaxis()
    finish(figure, path)


def plot_fault(runs: Sequence[TrainingResult], path: Path) -> None:
    """Plot each step's time, of the run in which a switch was killed, which is the last, and of one without."""
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, run in enumerate(runs):
        steps = range(1, len(run.step_ms) + 1)
        axes.plot(
            steps, [ms / 1e3 for ms in run.step_ms], label=run.spec.label, color=COLOURS[number], marker="."
        )
    if (fault := runs[-1].spec.fault) is not None:
        for number, step in enumerate(fault.steps):
            label = None if number else f"{fault.part} is killed"
            axes.axvline(step, color="#6b7280", linestyle=":", label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("time of the step (s)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    finish(figure, path)


def _elapsed_seconds(run: TrainingResult) -> list[float]:
    elapsed, total = [], 0.0
    for step in run.step_ms:
        total += step / 1e3
        elapsed.append(total)
    return elapsed
