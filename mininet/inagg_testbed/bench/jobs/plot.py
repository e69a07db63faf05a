# SPDX-License-Identifier: Apache-2.0
"""The picture of `inagg bench jobs`, as a PNG file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inagg_testbed.demo.plots import COLOURS, finish

_BARS = 0.8  # of the distance between two jobs


def plot_jobs(figures: dict[str, Any], path: Path) -> None:
    """Plot the goodput of each job, when it is done, and which part of the phases are slowed down by how much."""
    figure = Figure(figsize=(15, 4), layout="constrained")
    goodputs, completions, slowdowns = figure.subplots(1, 3)
    _plot_jobs(goodputs, figures["rows"], "goodput_MBps", "goodput (MB/s)")
    goodputs.legend(frameon=False, fontsize=8, loc="upper center", ncols=len(figures["rows"]))
    _plot_jobs(completions, figures["rows"], "completion_s", "done after (s)")
    _plot_slowdowns(slowdowns, figures["runs"])
    finish(figure, path)


def _plot_jobs(axes: Axes, rows: Sequence[dict[str, Any]], what: str, unit: str) -> None:
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
        names = ["/".join(dict.fromkeys(job["sums_by"])) for job in row["jobs"]]
        axes.bar_label(bars, names, label_type="center", rotation=90, color="white", fontsize=8)
    axes.set_xticks([job["job"] for job in rows[0]["jobs"]])
    axes.set_xlabel("job (in the bars: what does its sums)")
    axes.set_ylabel(unit)
    axes.margins(y=0.2)


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
    axes.set_xlabel("time of a phase / the same all-reduces of a job alone")
    axes.set_ylabel("part of the phases")
