# SPDX-License-Identifier: Apache-2.0
"""`inagg report` and `inagg explain`: pages of runs whose figures are in folders, and what limits the runs."""

from pathlib import Path
from typing import Annotated

import typer

from inagg_testbed.cli.options import console, errors_explained
from inagg_testbed.files import check_writable, write_text


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders with report.json, such as results/demo.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The page; by default report.html, in the folder of an only RUN."
        ),
    ] = None,
) -> None:
    """Write the page of a run again, or one page of several runs.

    A RUN is a folder into which `inagg demo`, `inagg compare`, `inagg bench allreduce` or `inagg bench suite` has
    written report.json. Demos share tables and plots, and so do comparisons, and all-reduces.

    Example: inagg report results/demo

    Example: inagg report star/demo tree/demo --output both.html
    """
    with errors_explained():
        from inagg_testbed.bench.pages import allreduce, suite
        from inagg_testbed.compare import page as compare
        from inagg_testbed.demo import page as demo
        from inagg_testbed.report.page import Contents, page_of, render
        from inagg_testbed.report.record import PAGE, Kind, named_runs

        found = named_runs(runs)
        path = output or (runs[0] / PAGE if len(runs) == 1 else Path(PAGE))
        check_writable(path)
        contents: dict[Kind, Contents] = {
            "demo": demo.contents,
            "allreduce": allreduce.contents,
            "suite": suite.contents,
            "compare": compare.contents,
        }
        write_text(path, render(page_of(found, contents)))
        console.print(f"report: {path.resolve()}", highlight=False, soft_wrap=True)


def explain(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of `inagg compare` or `inagg demo`, such as results/compare."
        ),
    ],
) -> None:
    """Say what limits a run, and what to change.

    For each architecture the causes of a step's time, and remedies in order of gain. Of a comparison also what theory
    predicts, and on which links, for which models and with how many workers inagg pays.

    Example: inagg explain results/compare
    """
    with errors_explained():
        from inagg_testbed.compare.advice import advice

        for line in advice(run):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
