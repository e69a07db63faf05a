# SPDX-License-Identifier: Apache-2.0
"""The demo's files: summary.json, links.json, pictures, report.json with all figures, and the page report.html."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from inagg_testbed.demo.fabric_plot import plot_fabric
from inagg_testbed.demo.page import contents
from inagg_testbed.demo.plots import plot_fault, plot_losses, plot_steps
from inagg_testbed.demo.run import INAGG_32, DemoResult, TrainingResult, links_document, summary
from inagg_testbed.files import handing_over, make_folder, write_text
from inagg_testbed.report import page
from inagg_testbed.report.record import FILE, PAGE, Record


@dataclass(frozen=True)
class ReportFiles:
    """The files that were written."""

    summary: Path
    report: Path
    plots: tuple[Path, Path]
    links: Path
    fabric: Path
    record: Path
    fault: Path | None = None


def write_report(result: DemoResult, folder: Path) -> ReportFiles:
    """Write all files into `folder`, replacing those of an earlier demo."""
    make_folder(folder)
    (folder / "fault.png").unlink(missing_ok=True)  # of an earlier demo; not every demo has one
    files = ReportFiles(
        folder / "summary.json",
        folder / PAGE,
        (folder / "loss.png", folder / "steps.png"),
        folder / "links.json",
        folder / "fabric.png",
        folder / FILE,
        folder / "fault.png" if _faulty(result) else None,
    )
    more = [] if files.fault is None else [files.fault]
    with handing_over(*files.plots, files.fabric, *more):
        _write(result, files)
    return files


def _write(result: DemoResult, files: ReportFiles) -> None:
    write_text(files.summary, json.dumps(summary(result), indent=2) + "\n")
    plot_losses(result.runs, files.plots[0])
    plot_steps(result.runs, files.plots[1])
    write_text(files.links, json.dumps(links_document(result), indent=2) + "\n")
    plot_fabric(result.demo.fabric, [(run.spec.label, run.links) for run in result.runs], files.fabric)
    faulty = _faulty(result)
    if faulty is not None and files.fault is not None:
        plot_fault([run for run in result.runs if run.spec == INAGG_32] + [faulty], files.fault)
    page.write_report(files.report.parent, Record("demo", asdict(result)), {"demo": contents})


def _faulty(result: DemoResult) -> TrainingResult | None:
    """The run in which a switch was killed."""
    return next((run for run in result.runs if run.spec.fault is not None), None)
