# SPDX-License-Identifier: Apache-2.0
"""The page of runs of `inagg bench suite`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inagg_testbed.bench import rows as bench_rows
from inagg_testbed.bench import straggler
from inagg_testbed.bench.pages.rows import DEFINITIONS, Row
from inagg_testbed.bench.rows import spec_of
from inagg_testbed.report.parts import (
    Axis,
    Bars,
    BarSeries,
    Mark,
    Page,
    Part,
    Plot,
    Section,
    Series,
    Table,
    Text,
    Verdict,
    listed,
)
from inagg_testbed.report.record import Run


def contents(runs: Sequence[Run]) -> Page:
    """The page of runs of `inagg bench suite`."""
    sections = [section for run in runs for section in _sections(run, run.record.figures["experiments"])]
    judged = [(run, one) for run in runs for one in run.record.figures["targets"]]
    return Page(
        title="Benchmarks of inagg",
        subtitle="all-reduces on three kinds of links, beside gloo",
        summary=[text for run in runs for text in map(run.named, _sentences(run.record.figures))],
        verdicts=[
            Verdict(one["met"], run.named(f"{one['what']}: {one['figure']} (target {one['target']})"))
            for run, one in judged
        ],
        notices=[
            run.named("These are small sizes, to which the targets do not apply.")
            for run in runs
            if run.record.figures["toy"]
        ],
        sections=[*sections, Section("Definitions", [DEFINITIONS])],
    )


def _sentences(figures: Mapping[str, Any]) -> Iterator[str]:
    targets = figures["targets"]
    if targets:
        yield f"{sum(one['met'] for one in targets)} of {len(targets)} targets are met."
    rows = figures["experiments"].get("allreduce", {}).get("rows", [])
    ratios = [row for row in rows if row["ratio_to_gloo"] is not None and row["lane_bits"] is not None]
    if ratios:
        for word, pick in (("greatest", max), ("least", min)):
            row = pick(ratios, key=lambda each: float(each["ratio_to_gloo"]))
            where = f"{spec_of(row)}, {row['workers']} workers, {row['link']} links"
            yield f"The {word} speedup over gloo is {row['ratio_to_gloo']:.2f}x: {where}."
    yield f"Experiments: {listed(list(figures['experiments']))}."


def _sections(run: Run, experiments: Mapping[str, Any]) -> Iterator[Section]:
    if "allreduce" in experiments:
        yield Section(run.named("speedup"), [_ratios(experiments["allreduce"]["rows"])])
    for name in ("allreduce", "latency", "loss", "scaling"):
        if name in experiments:
            yield Section(run.named(name), list(_by_link(name, experiments[name])))
    if "straggler" in experiments:
        figures = experiments["straggler"]
        table = Table.of_texts("Packets of the waiting ranks", *straggler.table(figures))
        yield Section(run.named("straggler"), [Text(straggler.title(figures)), _straggler(figures), table])
    for name in ("numerics", "switch"):
        if name in experiments:
            yield Section(run.named(name), [_flat(name, experiments[name])])


def _ratios(rows: Sequence[Row]) -> Bars:
    found = {
        (f"{row['link']}, {row['workers']} workers, {row['elements']:,} elements", str(spec_of(row))): row[
            "ratio_to_gloo"
        ]
        for row in rows
        if row["lane_bits"] is not None
    }
    places = list(dict.fromkeys(place for place, _ in found))
    return Bars(
        "Times as fast as gloo",
        "median of the rounds' ratios",
        places,
        [
            BarSeries(spec, [found.get((place, spec)) for place in places])
            for spec in dict.fromkeys(spec for _, spec in found)
        ],
        reference=Mark(1, "gloo"),
    )


def _by_link(name: str, experiment: Mapping[str, Any]) -> Iterator[Part]:
    if name == "scaling":
        for axis in ("workers", "elements"):
            yield from _scaling(axis, experiment["rows"])
    for link, settings in experiment["settings"].items():
        rows = [row for row in experiment["rows"] if row["link"] == link]
        yield Text(f"{settings['link']}; gloo over the {settings['gloo_over']}; {settings['slots']} slots")
        yield Table.of_texts(f"{name}, {link} links", *bench_rows.table(rows))
        caption = f"{name}, {link} links: bytes on the busiest link"
        yield Table.of_texts(caption, *bench_rows.links_table(rows), texts=["theory"])


def _scaling(axis: str, rows: Sequence[Row]) -> Iterator[Plot]:
    found = [row for row in rows if row["experiment"] == f"scaling, {axis}"]
    if found:
        log = axis == "elements"
        yield Plot(
            f"Time per element by {axis}",
            Axis(axis, log=log, zero=not log),
            Axis("median time per element (ns)", log=log, zero=not log),
            [
                Series(
                    str(spec),
                    [row[axis] for row in line],
                    [row["time_ms"]["p50"] * 1e6 / row["elements"] for row in line],
                )
                for spec in dict.fromkeys(map(spec_of, found))
                for line in [
                    sorted((row for row in found if spec_of(row) == spec), key=lambda row: int(row[axis]))
                ]
            ],
        )


def _straggler(figures: Mapping[str, Any]) -> Plot:
    return Plot(
        "Packets that each waiting rank sends",
        Axis("time since the other ranks began (s)", zero=True),
        Axis("packets sent, retransmissions included", zero=True),
        [
            Series(
                f"rank {rank['rank']}",
                [sample[0] for sample in rank["samples"]],
                [sample[1] for sample in rank["samples"]],
            )
            for rank in figures["ranks"]
        ],
        [Mark(figures["sleep_s"], f"rank {figures['late_rank']} joins")],
    )


def _flat(name: str, experiment: Mapping[str, Any]) -> Table:
    """A table of an experiment that is a list of flat rows, or one flat row."""
    rows = experiment.get("rows", [experiment])
    header = list(rows[0])
    numbers = (int, float)
    texts = [title for title in header if not all(isinstance(row.get(title), numbers) for row in rows)]
    return Table.of_texts(
        name, header, [[_short(row.get(title)) for title in header] for row in rows], texts=texts
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
