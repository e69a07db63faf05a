# SPDX-License-Identifier: Apache-2.0
"""The page of runs of `inagg bench allreduce`."""

import itertools
from collections.abc import Iterator, Sequence

from inagg_testbed.bench.pages.rows import DEFINITIONS, Row, by_iteration, named_value, row_parts
from inagg_testbed.bench.rows import spec_of
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.report.parts import Page, Section, Verdict, counts, listed, megabytes
from inagg_testbed.report.record import Run


def contents(runs: Sequence[Run]) -> Page:
    """The page of runs of `inagg bench allreduce`. Raises ConfigurationError for figures of another form."""
    found = [(run, _rows(run)) for run in runs]
    together = [{**row, "run": run.name} for run, rows in found for row in rows]
    return Page(
        title="All-reduce in the switch, compared with gloo",
        subtitle="; ".join(dict.fromkeys(_conditions(rows) for _, rows in found)),
        summary=[run.named(text) for run, rows in found for text in _sentences(rows)],
        verdicts=[Verdict(False, run.named(text)) for run, _ in found for text in run.record.figures["wrong"]]
        or [
            Verdict(
                True, f"every sum lies within its error bound ({sum(len(rows) for _, rows in found)} rows)"
            )
        ],
        sections=[
            Section("Result", [*row_parts(together), by_iteration(together)]),
            Section("Definitions", [DEFINITIONS]),
        ],
        environment=[(run.named(name), value) for run, _ in found for name, value in _environment(run)],
    )


def _rows(run: Run) -> list[Row]:
    rows = run.record.figures.get("rows")
    if not isinstance(rows, list) or not rows or "wrong" not in run.record.figures:
        raise ConfigurationError(
            run.named("not the figures of inagg bench allreduce: rows or wrong are missing")
        )
    return rows


def _conditions(rows: Sequence[Row]) -> str:
    row = rows[0]
    return f"{counts(each['workers'] for each in rows)} workers, {row['link']} links, {row['topology']}"


def _environment(run: Run) -> Iterator[tuple[str, str]]:
    settings = run.record.figures["settings"]
    for name in ("switch", "link", "uplink", "gloo_over", "slots", "inputs"):
        if settings.get(name) is not None:
            yield name.replace("_", " "), str(settings[name])
    if "impair" in settings:
        yield "impaired", " ".join(settings["impair"])


def _sentences(rows: Sequence[Row]) -> Iterator[str]:
    """What is fastest in each case, and what it sends over the busiest link."""
    groups = [list(group) for _, group in itertools.groupby(sorted(rows, key=_case), key=_case)]
    for group in groups[-2:]:  # the largest cases say most
        fastest = min(group, key=lambda row: row["time_ms"]["p50"])
        where = ", ".join(named_value(name, fastest[name]) for name in ("workers", "elements"))
        ratio = fastest["ratio_to_gloo"]
        than = "" if ratio is None or spec_of(fastest).name == "gloo" else f", {ratio:.2f}x as fast as gloo"
        yield f"With {where}, {spec_of(fastest)} is fastest: {fastest['time_ms']['p50']:.4g} ms (median){than}."
    sent = [
        f"{megabytes(row['link_bytes'])} MB with {spec_of(row)}"
        for row in groups[-1]
        if row["link_bytes"] is not None
    ]
    if sent:
        yield f"In one all-reduce the busiest link of a host carries {listed(sent)}, in one direction."


def _case(row: Row) -> tuple[float, ...]:
    return tuple(row[name] for name in ("loss", "workers", "elements"))
