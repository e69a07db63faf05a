# SPDX-License-Identifier: Apache-2.0
"""`inagg bench late`: what a rank that stalls at random costs a training that waits for it, and one with a deadline.

In each round the net of examples/digits.py is trained twice, with the same batches and the same stalls of the last
rank: without a hook, and with `inagg.hooks.Deadline`. Figures of a run:
- curve: pairs of seconds and accuracy on the test digits, every few steps;
- seconds: until the accuracy is reached;
- late: gradients of the last rank that came too late; computed: its passes; the others compute one in each step.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from inagg_testbed.bench.plan import BATCHES_SEED, WEIGHTS_SEED
from inagg_testbed.errors import ConfigurationError, WrongResultError
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.training_run import OnProgress
from inagg_testbed.network.workers import Event
from inagg_testbed.report.pictures import COLOURS, finish

_START_UP_S = 180.0
_WAYS = ("waiting", "deadline")
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LateBench:
    """What to measure.

    step_s: how long a pass takes at least. every: one of so many passes stalls, at random. stall_steps: for so many
    times the median step so far. accuracy: to reach.
    """

    workers: int
    steps: int = 150
    step_s: float = 0.2
    stall_steps: int = 10
    every: int = 10
    accuracy: float = 0.93
    rounds: int = 3

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.workers < 2:
            raise ConfigurationError("one worker waits for nobody: want 2 or more")

    @property
    def longest_s(self) -> float:
        """Seconds that the runs may take on a busy machine."""
        return self.rounds * self.steps * self.step_s * (2 + 4 * self.stall_steps / self.every) * 4

    @property
    def bound(self) -> float:
        """The least ratio of times: that of a deadline which costs nothing."""
        return 1 / (1 + self.stall_steps / self.every)


def run_late(bench: LateBench, testbed: Testbed, on_progress: OnProgress) -> Row:
    """Measure on a testbed that is up. Raises LauncherError; WrongResultError if ranks end with different weights."""
    events: list[tuple[int, Event]] = []
    steps = 2 * bench.rounds * bench.steps

    def on_event(rank: int, event: Event) -> None:
        events.append((rank, event))
        if rank == 0 and event["event"] == "step":
            on_progress(
                "digits", event["run"] * bench.steps + event["step"] + 1, steps, _WAYS[event["run"] % 2]
            )

    group = testbed.launch(
        [sys.executable, "-m", "inagg_testbed.bench.late_worker", json.dumps(asdict(bench)), "{events}"],
        name=f"late-{len(testbed.groups) + 1}",
        workers=bench.workers,
    )
    group.follow(on_event, timeout_s=_START_UP_S + bench.longest_s, watch=testbed.services)
    return summarise(bench, events)


def summarise(bench: LateBench, events: Sequence[tuple[int, Event]]) -> Row:
    """Compute the figures from the events. Raises WrongResultError."""
    rows = []
    last = bench.workers - 1
    for run in range(2 * bench.rounds):
        of_run = [(rank, event) for rank, event in events if event["run"] == run]
        weights = {event["weights"] for _, event in of_run if event["event"] == "end"}
        if len(weights) != 1:
            raise WrongResultError(f"run {run}: the ranks have {len(weights)} different sets of weights")
        (curve,) = (event["curve"] for _, event in of_run if event["event"] == "run")
        (late,) = (event["late"] for rank, event in of_run if event["event"] == "end" and rank == last)
        rows.append(
            {
                "round": run // 2,
                "way": _WAYS[run % 2],
                "seconds": next((seconds for seconds, share in curve if share >= bench.accuracy), None),
                "late": late,
                "computed": sum(event["event"] == "step" and rank == last for rank, event in of_run),
                "curve": curve,
            }
        )
    ratios = [
        None
        if None in (waiting["seconds"], deadline["seconds"])
        else deadline["seconds"] / waiting["seconds"]
        for waiting, deadline in zip(rows[::2], rows[1::2], strict=True)
    ]
    known = [ratio for ratio in ratios if ratio is not None]
    return {
        **asdict(bench),
        "bound": bench.bound,
        "seeds": {"weights": WEIGHTS_SEED, "batches": BATCHES_SEED},
        "rows": rows,
        "ratios": ratios,
        "ratio": statistics.median(known) if known else None,
    }


def table(figures: Row) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table, one row a run."""
    header = ["round", "training", "time to accuracy", "passes of the last rank", "came too late", "ratio"]
    body = []
    for index, row in enumerate(figures["rows"]):
        ratio = figures["ratios"][index // 2] if index % 2 else None
        body.append(
            [
                str(row["round"] + 1),
                row["way"],
                "not reached" if row["seconds"] is None else f"{row['seconds']:.1f} s",
                str(row["computed"]),
                str(row["late"]),
                "" if ratio is None else f"{ratio:.2f}",
            ]
        )
    return header, body


def title(figures: Row) -> str:
    """Title of the table."""
    median = "" if figures["ratio"] is None else f"; median ratio {figures['ratio']:.2f}"
    stalls = f"for {figures['stall_steps']} steps' time in one of {figures['every']} steps"
    return (
        f"{figures['workers']} workers, {figures['steps']} steps of {figures['step_s'] * 1e3:g} ms; the last one stalls"
        f" {stalls}; accuracy {figures['accuracy']:.0%}{median}, at least {figures['bound']:.2f}"
    )


def plot_late(figures: Row, path: Path) -> None:
    """Plot accuracy over time, one line a run."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for row in figures["rows"]:
        way = _WAYS.index(row["way"])
        seconds, shares = zip(*row["curve"], strict=True)
        label = row["way"] if row["round"] == 0 else None
        axes.plot(seconds, shares, color=COLOURS[way], label=label, linewidth=1.2)
    axes.axhline(figures["accuracy"], color="black", linestyle=":", linewidth=1)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("test digits that are right")
    axes.legend(frameon=False, fontsize=8)
    finish(figure, path)
