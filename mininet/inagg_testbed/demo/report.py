# SPDX-License-Identifier: Apache-2.0
"""The demo's files: summary.json, plots, and a self-contained report.html (images embedded)."""

import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inagg_testbed.demo.fabric_plot import plot_fabric
from inagg_testbed.demo.plots import plot_fault, plot_losses, plot_steps
from inagg_testbed.demo.run import INAGG_32, Demo, DemoResult, TrainingResult, links_document, summary
from inagg_testbed.files import handing_over, make_folder, write_text
from inagg_testbed.network.fabric import STAR
from inagg_testbed.report.machine import machine_description
from inagg_testbed.report.page import embedded, render


@dataclass(frozen=True)
class ReportFiles:
    """The files that were written."""

    summary: Path
    report: Path
    plots: tuple[Path, Path]
    links: Path
    fabric: Path
    fault: Path | None = None


def write_report(result: DemoResult, folder: Path) -> ReportFiles:
    """Write all files into `folder`, replacing those of an earlier demo."""
    make_folder(folder)
    (folder / "fault.png").unlink(missing_ok=True)  # of an earlier demo; not every demo has one
    files = ReportFiles(
        folder / "summary.json",
        folder / "report.html",
        (folder / "loss.png", folder / "steps.png"),
        folder / "links.json",
        folder / "fabric.png",
        folder / "fault.png" if _faulty(result) else None,
    )
    more = [] if files.fault is None else [files.fault]
    with handing_over(files.summary, files.report, *files.plots, files.links, files.fabric, *more):
        _write(result, files)
    return files


def _write(result: DemoResult, files: ReportFiles) -> None:
    figures = summary(result)
    write_text(files.summary, json.dumps(figures, indent=2) + "\n")
    plot_losses(result.runs, files.plots[0])
    plot_steps(result.runs, files.plots[1])
    write_text(files.links, json.dumps(links_document(result), indent=2) + "\n")
    plot_fabric(result.demo.fabric, [(run.spec.label, run.links) for run in result.runs], files.fabric)
    faulty = _faulty(result)
    if faulty is not None and files.fault is not None:
        plot_fault([run for run in result.runs if run.spec == INAGG_32] + [faulty], files.fault)
    page = render(
        "report.html.j2",
        summary=figures,
        verdicts=list(verdicts(figures)),
        header=TABLE_HEADER,
        rows=table_rows(result),
        demo=result.demo,
        fabric=result.demo.fabric,
        unmeasured=unmeasured(result.runs),
        quick=QUICK if result.demo.quick else None,
        settings=result.settings,
        logs=result.logs,
        seconds=result.seconds,
        losses_png=embedded(files.plots[0]),
        steps_png=embedded(files.plots[1]),
        fabric_png=embedded(files.fabric),
        fault=None if faulty is None else faulty.spec.fault,
        fault_png=None if files.fault is None else embedded(files.fault),
        machine=machine_description(),
        when=time.strftime("%Y-%m-%d %H:%M"),
    )
    write_text(files.report, page)


def _faulty(result: DemoResult) -> TrainingResult | None:
    """The run in which a switch was killed."""
    return next((run for run in result.runs if run.spec.fault is not None), None)


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
