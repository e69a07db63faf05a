# SPDX-License-Identifier: Apache-2.0
"""Writes report.md, targets.json, plots, report.json and the page report.html of the suite from its JSON files."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inagg_testbed.bench import rows as bench_rows
from inagg_testbed.bench import straggler
from inagg_testbed.bench.pages.suite import contents
from inagg_testbed.bench.plots import plot_ratios, plot_scaling
from inagg_testbed.bench.suite import MEASURED, SCALING_LINK, write
from inagg_testbed.bench.targets import Verdict, verdicts
from inagg_testbed.files import handing_over, write_text
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.report import page as report_page
from inagg_testbed.report.machine import machine_description
from inagg_testbed.report.record import Record

_EXPERIMENTS = (*MEASURED, "numerics", "switch")
TARGETS_HEADER = ("what", "target", "measured", "met")


def read_experiments(folder: Path) -> dict[str, Any]:
    """The figures of the experiments whose files are in the folder, by experiment."""
    paths = {name: folder / f"{name}.json" for name in _EXPERIMENTS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def write_report(folder: Path, *, toy: bool = False) -> list[Verdict]:
    """Write report.md, targets.json, plots, report.json and report.html beside the figures; return the verdicts.

    toy: the figures are of small sizes, to which the targets do not apply; there are no verdicts.
    """
    experiments = read_experiments(folder)
    judged = [] if toy else verdicts(experiments)
    targets = [asdict(one) for one in judged]
    write(folder, "targets", targets)
    plots = folder / "ratios.png", folder / "scaling.png"
    for plot in plots:
        plot.unlink(missing_ok=True)
    with handing_over(*plots):
        if "allreduce" in experiments:
            plot_ratios(experiments["allreduce"]["rows"], plots[0])
        if "scaling" in experiments:
            rate = LinkSpec.parse(SCALING_LINK).rate_bps
            assert rate is not None
            plot_scaling(experiments["scaling"]["rows"], rate, plots[1])
    write_text(folder / "report.md", "\n".join(_markdown(experiments, None if toy else judged)) + "\n")
    figures = {"experiments": experiments, "targets": targets, "toy": toy}
    report_page.write_report(folder, Record("suite", figures), {"suite": contents})
    return judged


def target_rows(judged: Iterable[Verdict]) -> list[tuple[str, str, str, str]]:
    """Rows of the table of targets."""
    return [(one.what, one.target, one.figure, "yes" if one.met else "NO") for one in judged]


def _markdown(experiments: Mapping[str, Any], judged: Sequence[Verdict] | None) -> Iterable[str]:
    yield "# Benchmark"
    yield ""
    yield "; ".join(f"{name}: {value}" for name, value in machine_description().items())
    yield ""
    if judged is None:
        yield "These are small sizes, to which the targets do not apply."
    else:
        yield f"## Targets: {sum(one.met for one in judged)} of {len(judged)} met"
        yield ""
        yield from markdown_table(TARGETS_HEADER, target_rows(judged))
    if "allreduce" in experiments:
        yield from ("", "![times as fast as gloo](ratios.png)")
    if "scaling" in experiments:
        yield from ("", "![time per element](scaling.png)")
    for name in ("allreduce", "latency", "loss", "scaling"):
        if name in experiments:
            yield from ("", f"## {name}")
            yield from _by_link(experiments[name])
    if "straggler" in experiments:
        figures = experiments["straggler"]
        yield from ("", "## straggler", "", straggler.title(figures), "")
        yield from markdown_table(*straggler.table(figures))
    for name in ("numerics", "switch"):
        if name in experiments:
            yield from ("", f"## {name}", "")
            yield from _flat_table(experiments[name])


def _by_link(experiment: Mapping[str, Any]) -> Iterable[str]:
    for link, settings in experiment["settings"].items():
        rows = [row for row in experiment["rows"] if row["link"] == link]
        yield from (
            "",
            f"{settings['link']}; gloo over the {settings['gloo_over']}; {settings['slots']} slots",
            *([f"Inputs: {settings['inputs']}"] if "inputs" in settings else []),
            "",
        )
        yield from markdown_table(*bench_rows.table(rows))
        yield from ("", f"Bytes {' '.join(bench_rows.LINKS_TITLE.split())}:", "")
        yield from markdown_table(*bench_rows.links_table(rows))


def _flat_table(experiment: Mapping[str, Any]) -> Iterable[str]:
    """A table of an experiment that is a list of flat rows, or one flat row."""
    rows = experiment.get("rows", [experiment])
    header = list(rows[0])
    yield from markdown_table(header, [[_short(row.get(name)) for name in header] for row in rows])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """The lines of a table, of which all columns but the first are aligned to the right."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'|'.join('---' if number == 0 else '---:' for number in range(len(header)))}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
