# SPDX-License-Identifier: Apache-2.0
"""The figures of a demo in words: the table, what it shows, and what a reader must know before it."""

import statistics
from collections.abc import Iterable
from typing import Any

from inagg_testbed.demo.run import Demo, DemoResult, TrainingResult, summary
from inagg_testbed.network.fabric import STAR

TABLE_HEADER = (
    "training",
    "test acc.",
    "step ms",
    "compute ms",
    "comm ms",
    "step gain",
    "comm gain",
    "MB sent",
    "resent",
    "weights",
)

QUICK = "quick run: so few steps show that everything works, not how well"


def heading(demo: Demo) -> str:
    """Title of the table."""
    text = f"{demo.workers} workers, {demo.link_name}, switch: {demo.switch}"
    if demo.topology != STAR:
        text += f", {demo.topology}, {demo.uplink_name or demo.link_name} between switches"
    return f"{text} ({QUICK})" if demo.quick else text


def unmeasured(runs: Iterable[TrainingResult]) -> str | None:
    """A note on the runs whose communication time is unknown, and why; None without such runs."""
    names = [run.spec.label for run in runs if run.comm_ms_p50 == 0]
    if not names:
        return None
    return (
        f"communication of {', '.join(names)} is shown as 0 ms: its compute time is longer than its step time, because "
        "the machine is busy, the steps are too few, or there is one worker"
    )


def table_rows(result: DemoResult) -> list[tuple[str, ...]]:
    """Rows of the table in the terminal and in the report."""
    figures = summary(result)["runs"]
    gloo = next((run["step_ms_p50"] for run in figures if run["backend"] == "gloo"), None)
    return [
        _row(run, None if gloo is None else gloo / figure["step_ms_p50"], figure["speedup_comm"])
        for run, figure in zip(result.runs, figures, strict=True)
    ]


def _row(run: TrainingResult, step_gain: float | None, comm_gain: float | None) -> tuple[str, ...]:
    return (
        run.spec.label,
        f"{run.accuracy:.2%}",
        f"{run.step_ms_p50:.0f}",
        f"{run.compute_ms:.0f}",
        f"{run.comm_ms_p50:.0f}",
        "-" if step_gain is None else f"{step_gain:.2f}x",
        "-" if comm_gain is None else f"{comm_gain:.2f}x",
        f"{run.bytes_sent_per_worker / 1e6:.0f}",
        str(run.retransmits),
        run.weights_sha256[:8],
    )


def verdicts(figures: dict[str, Any]) -> Iterable[tuple[bool, str]]:
    """(true, statement) for each claim that the demo tests: whether it holds, and what was found."""
    accuracies = {run["backend"]: run["accuracy"] for run in figures["runs"] if run["backend"] == "gloo"}
    if "gloo" in accuracies:
        apart = max(abs(run["accuracy"] - accuracies["gloo"]) for run in figures["runs"])
        yield (
            apart <= 0.01,
            f"all accuracies within {100 * apart:.2f} percentage points of gloo's (at most 1)",
        )
    identical = figures["weights_identical_under_loss"]
    if identical is not None:
        relation = "bit-identical to" if identical else "DIFFERENT from"
        yield identical, f"final weights under injected loss are {relation} those of the lossless run"
    identical = figures.get("weights_identical_after_fault")
    if identical is not None:
        (run,) = (run for run in figures["runs"] if "fault" in run)
        part, steps, seconds = run["fault"]["part"], run["fault"]["steps"], run["interruptions_s"]
        relation = "bit-identical to" if identical else "DIFFERENT from"
        when = f"at step {steps[0]}" if len(steps) == 1 else f"{len(steps)} times"
        median = f"{statistics.median(seconds):.1f} s"
        after = median if len(steps) == 1 else f"{median} (median; {max(seconds):.1f} s at most)"
        yield (
            identical,
            f"{part} was killed {when} and started again: training went on after {after}, and its final weights are "
            f"{relation} those of the undisturbed run",
        )
