# SPDX-License-Identifier: Apache-2.0
"""The picture of `inagg bench jobs`, as a PNG, PDF or SVG file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inagg_testbed.report.pictures import COLOURS, finish

_BARS = 0.8  # of the distance between two jobs


def plot_jobs(figures: dict[str, Any], path: Path) -> None:
    """Plot the goodput of each job, when it is done, and which part of the phases are slowed down by how much.

    Bars are medians, dots the rounds.
    """
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = goodputs, completions, slowdowns = figure.subplots(1, 3)
    _plot_jobs(goodputs, figures, "goodput_MBps", "goodput (MB/s)")
    _plot_jobs(completions, figures, "completion_s", "done after (s)")
    _plot_slowdowns(slowdowns, figures["runs"])
    for letter, axes in zip("abc", panels, strict=True):
        axes.set_title(f"({letter})", loc="left", fontsize=10)
    bars, policies = goodputs.get_legend_handles_labels()
    figure.legend(bars, policies, frameon=False, loc="outside upper center", ncols=len(policies))
    finish(figure, path)


def _plot_jobs(axes: Axes, figures: dict[str, Any], what: str, unit: str) -> None:
    rows: Sequence[dict[str, Any]] = figures["rows"]
    width = _BARS / len(rows)
    for number, row in enumerate(rows):
        left = width * (number - (len(rows) - 1) / 2)
        bars = axes.bar(
            [job["job"] + left for job in row["jobs"]],
            [job[what] for job in row["jobs"]],
            width=0.95 * width,
            color=COLOURS[1 + number],
            label=row["policy"],
        )
        axes.bar_label(
            bars,
            [_summed_by(job) for job in row["jobs"]],
            label_type="center",
            rotation=90,
            color="white",
            fontsize=8,
        )
        rounds = [run["jobs"] for run in figures["runs"] if run["policy"] == row["policy"]]
        dots = [(job["job"] + left, job[what]) for jobs in rounds for job in jobs]
        if len(rounds) > 1:
            axes.plot(*zip(*dots, strict=True), "o", color="black", markersize=2)
    axes.set_xticks([job["job"] for job in rows[0]["jobs"]])
    axes.set_xlabel("job (in the bars: what does its sums)")
    axes.set_ylabel(unit)
    axes.margins(y=0.2)


def _summed_by(job: dict[str, Any]) -> str:
    name = "/".join(dict.fromkeys(job["sums_by"]))
    return f"{name} {job['in_switch']:.0%}" if 0 < job["in_switch"] < 1 else name


def _plot_slowdowns(axes: Axes, runs: Sequence[dict[str, Any]]) -> None:
    for number, policy in enumerate(dict.fromkeys(run["policy"] for run in runs)):
        found = [
            phase["slowdown"]
            for run in runs
            if run["policy"] == policy
            for job in run["jobs"]
            for phase in job["phases"]
        ]
        axes.ecdf(found, color=COLOURS[1 + number])
    axes.set_xlim(left=0)
    axes.set_xlabel("slowdown (time of a phase / of a job alone)")
    axes.set_ylabel("part of the phases")
