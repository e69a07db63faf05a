# SPDX-License-Identifier: Apache-2.0
"""Pictures of the figures that the benchmarks measure, as PNG, PDF or SVG files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inagg_baselines.catalog import BASELINES
from inagg_testbed.bench.device import STAGES
from inagg_testbed.bench.plan import LANE_BITS, SUMMING, BackendSpec
from inagg_testbed.bench.rows import spec_of
from inagg_testbed.report.pictures import COLOURS, finish

# The colour says how wide the lanes are, marker and hatch what sums in them.
_COLOURS = dict(zip((None, *LANE_BITS), COLOURS, strict=False))
_MARKERS = dict.fromkeys(BASELINES, "v") | dict(
    zip(("gloo", *SUMMING), ("o", "o", "D", "P", "s", "^"), strict=True)
)
_LINES = ("-", "--", "-.", (0, (1, 1)))
_HATCHES = dict(zip(SUMMING, ("", "xx", "++", "//", ".."), strict=True))
_GLOO = BackendSpec.parse("gloo")
_SUMMING = tuple(BackendSpec(name=name, lane_bits=bits) for name in SUMMING for bits in LANE_BITS)
_ALL = (_GLOO, *_SUMMING)
Row = dict[str, Any]


def plot_scaling(rows: Sequence[Row], rate_bps: int, path: Path) -> None:
    """Plot time per element against workers and against elements, with dotted lines for line rate.

    A tensor that fits the token buckets of the links can be below its line.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    by_workers, by_elements = figure.subplots(1, 2)
    for axes, axis, other in ((by_workers, "workers", "elements"), (by_elements, "elements", "workers")):
        found = [row for row in rows if row["experiment"] == f"scaling, {axis}"]
        series = [_Series(str(spec), spec, [row for row in found if spec_of(row) == spec]) for spec in _ALL]
        _plot_series(axes, [one for one in series if one.rows], axis, _ns_per_element, rate_bps)
        axes.set_xlabel(f"{axes.get_xlabel()} ({found[0][other]:,} {other})")
    by_workers.set_ylabel(f"time per element (ns), {rate_bps / 1e9:g} Gbit/s links")
    _add_legend((by_workers, by_elements), "dotted: at line rate")
    finish(figure, path)


def plot_allreduce(rows: Sequence[Row], path: Path) -> None:
    """Plot time and busbw of each backend, against that of elements, workers and loss which has most values.

    Lines and bars are medians, dots the iterations. With one value of each there are bars.
    """
    varying = {name: len({row[name] for row in rows}) for name in ("elements", "workers", "loss")}
    axis = max(varying, key=lambda name: varying[name])
    others = [name for name in varying if name != axis and varying[name] > 1]
    grouped: dict[tuple[BackendSpec, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        rest = tuple(_named(name, row[name]) for name in others)
        grouped.setdefault((spec_of(row), rest), []).append(row)
    styles = list(dict.fromkeys(rest for _, rest in grouped))
    series = [
        _Series(", ".join([str(spec), *rest]), spec, found, styles.index(rest))
        for (spec, rest), found in grouped.items()
    ]
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    times, bandwidths = figure.subplots(1, 2)
    _plot_series(times, series, axis, _ms)
    _plot_series(bandwidths, series, axis, _busbw)
    times.set_ylabel("time (ms)")
    bandwidths.set_ylabel("busbw (MB/s)")
    fixed = [_named(name, rows[0][name]) for name in ("elements", "workers") if varying[name] == 1]
    figure.suptitle(", ".join([*fixed, f"{rows[0]['link']} links", rows[0]["topology"]]), fontsize=9)
    _add_legend((times, bandwidths), "dots: iterations")
    finish(figure, path)


def plot_straggler(figures: Row, path: Path) -> None:
    """Plot the packets that ranks send while one is late, and the times of all-reduces without and with it."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    packets, times = figure.subplots(1, 2, width_ratios=(2, 1))
    for number, rank in enumerate(figures["ranks"]):
        seconds, sent, _ = zip(*rank["samples"], strict=True)
        look = {"color": COLOURS[number % len(COLOURS)], "marker": "o", "markersize": 3}
        packets.plot(seconds, sent, label=f"rank {rank['rank']}", **look)
    packets.axhline(figures["window"], color="black", linestyle=":", linewidth=1, label="one window")
    packets.axvline(
        figures["sleep_s"],
        color="black",
        linestyle="--",
        linewidth=1,
        label=f"rank {figures['late_rank']} joins",
    )
    packets.set_xlabel("time since the other ranks began (s)")
    packets.set_ylabel("packets sent, retransmissions included")
    packets.set_xlim(left=0)
    packets.set_ylim(bottom=0)
    packets.legend(frameon=False, fontsize=8)
    _bar(times, 0, figures["prompt_ms"], figures["prompts_ms"], color=COLOURS[1])
    _bar(times, 1, figures["behind_ms"], (), color=COLOURS[3])
    times.set_xticks((0, 1), ("no rank late", "after the late\nrank joins"))
    times.set_ylabel("time of an all-reduce (ms)")
    times.margins(y=0.1)
    finish(figure, path)


def plot_device(figures: Row, path: Path) -> None:
    """Plot how fast the stages of a sum are, beside a copy, and the times of sums by who makes the lanes."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    stages, sums = figure.subplots(1, 2)
    rows = figures["stages"]
    for number, row in enumerate(rows):
        left = 0.8 / len(rows) * (number - (len(rows) - 1) / 2)
        for index, name in enumerate(STAGES):
            look: dict[str, Any] = {
                "width": 0.75 / len(rows),
                "color": _COLOURS[row["lane_bits"]],
                "alpha": 0.4 if row["by"] == "torch" else 0.7 if "bus" in row["by"] else 1.0,
                "label": f"{row['lane_bits']}-bit lanes, {row['by']}" if index == 0 else None,
            }
            _bar(stages, index + left, row[name], (), rotation=90, **look)
    stages.set_xticks(range(len(STAGES)), STAGES)
    stages.set_yscale("log")
    stages.set_ylabel(f"float32 on {figures['settings']['device']} (GB/s)")
    stages.margins(y=0.2)
    stages.legend(frameon=False, fontsize=7)
    groups = list(
        dict.fromkeys((row["elements"], row["lane_bits"]) for row in figures["sums"] if row["lane_bits"])
    )
    ways = list(dict.fromkeys(row["way"] for row in figures["sums"]))
    for index, (elements, lane_bits) in enumerate(groups):
        for number, way in enumerate(ways):
            bits = None if way == "gloo" else lane_bits
            (row,) = (
                row
                for row in figures["sums"]
                if (row["elements"], row["lane_bits"], row["way"]) == (elements, bits, way)
            )
            place = index + 0.8 / len(ways) * (number - (len(ways) - 1) / 2)
            look = {"width": 0.75 / len(ways), "color": COLOURS[number], "label": way if index == 0 else None}
            _bar(sums, place, row["ms"], row["times_ms"], rotation=90, **look)
    sums.set_xticks(
        range(len(groups)), [f"{elements:,}\n{lane_bits} bits" for elements, lane_bits in groups], fontsize=8
    )
    sums.set_yscale("log")
    sums.set_ylabel("time of a sum (ms)")
    sums.margins(y=0.2)
    sums.legend(frameon=False, fontsize=7)
    finish(figure, path)


@dataclass(frozen=True)
class _Series:
    """The rows of one line, or of one bar. style: which of `_LINES` draws it."""

    label: str
    spec: BackendSpec
    rows: list[Row]
    style: int = 0


Measure = Callable[[Row, float], float]  # from a row and the milliseconds of an iteration


def _ms(_row: Row, time_ms: float) -> float:
    return time_ms


def _busbw(row: Row, time_ms: float) -> float:
    return float(row["busbw_MBps"] * row["time_ms"]["p50"] / time_ms)


def _ns_per_element(row: Row, time_ms: float) -> float:
    return float(time_ms * 1e6 / row["elements"])


def _named(name: str, value: Any) -> str:
    return f"{value:.3g} loss" if name == "loss" else f"{value:,} {name}"


def _plot_series(
    axes: Axes, series: Sequence[_Series], axis: str, measure: Measure, rate_bps: int | None = None
) -> None:
    """Plot a measure of each series against `axis`, as bars if that has one value, with its least at line rate."""
    values = sorted({row[axis] for one in series for row in one.rows})
    axes.set_xlabel(axis)
    if len(values) == 1:
        _plot_bars(axes, series, measure, rate_bps)
        axes.set_xlabel(_named(axis, values[0]))
        return
    for one in series:
        points = sorted(one.rows, key=lambda row: row[axis])
        places = [row[axis] for row in points]
        colour, style = _COLOURS[one.spec.lane_bits], _LINES[one.style % len(_LINES)]
        look: dict[str, Any] = {
            "color": colour,
            "linestyle": style,
            "marker": _MARKERS[one.spec.name],
            "markersize": 4,
        }
        axes.plot(places, [measure(row, row["time_ms"]["p50"]) for row in points], label=one.label, **look)
        dots = [(row[axis], measure(row, time)) for row in points for time in row["times_ms"]]
        axes.plot(*zip(*dots, strict=True), "o", color=colour, markersize=2, alpha=0.4, zorder=1)
        if rate_bps is not None:
            ideal = [_at_line_rate(row, measure, rate_bps) for row in points]
            axes.plot(places, ideal, color=colour, linestyle=":", linewidth=1)
    if axis == "elements" and values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_xticks(values)
        axes.set_ylim(bottom=0)


def _plot_bars(axes: Axes, series: Sequence[_Series], measure: Measure, rate_bps: int | None) -> None:
    for number, one in enumerate(series):
        (row,) = one.rows
        look: dict[str, Any] = {
            "color": _COLOURS[one.spec.lane_bits],
            "hatch": _HATCHES.get(one.spec.name, ""),
        }
        samples = [measure(row, time) for time in row["times_ms"]]
        _bar(axes, number, measure(row, row["time_ms"]["p50"]), samples, **look)
        ideal = None if rate_bps is None else _at_line_rate(row, measure, rate_bps)
        if ideal is not None:
            axes.hlines(ideal, number - 0.45, number + 0.45, colors="black", linestyles=":", linewidth=1)
    axes.set_xticks(range(len(series)), [one.label.replace(", ", "\n") for one in series], fontsize=8)
    axes.margins(y=0.1)


def _at_line_rate(row: Row, measure: Measure, rate_bps: int) -> float:
    """The measure if the row's busiest link were busy all the time."""
    return measure(row, 8 * row["theory_bytes"] / rate_bps * 1e3)


def _bar(
    axes: Axes, place: float, height: float, samples: Sequence[float], *, rotation: int = 0, **look: Any
) -> None:
    """A bar with its height above it, and dots for what it is the median of."""
    axes.bar([place], [height], **{"width": 0.75, "edgecolor": "white", "linewidth": 0, **look})
    if len(samples) > 1:
        axes.plot([place] * len(samples), samples, "o", color="black", markersize=2)
    above = max([height, *samples])
    axes.annotate(
        f"{height:.3g}" if height < 1000 else f"{height:,.0f}",
        (place, above),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        rotation=rotation,
    )


def _add_legend(panels: Sequence[Axes], title: str) -> None:
    """One legend, in the first panel that has lines; a panel of bars has its names on the axis."""
    for axes in panels:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, title=title, title_fontsize=8)
            return


def plot_ratios(rows: Sequence[Row], path: Path) -> None:
    """Plot how many times as fast as gloo each backend is, by link and number of workers."""
    measured = {
        (row["link"], row["workers"], spec_of(row)): row["ratio_to_gloo"]
        for row in rows
        if row["ratio_to_gloo"] is not None
    }
    places = list(dict.fromkeys((row["link"], row["workers"]) for row in rows))
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    shown = [spec for spec in _SUMMING if any(key[2] == spec for key in measured)]
    for number, spec in enumerate(shown):
        left = 0.81 / len(shown) * (number - (len(shown) - 1) / 2)
        found = [
            (index + left, measured[*place, spec])
            for index, place in enumerate(places)
            if (*place, spec) in measured
        ]
        where, heights = zip(*found, strict=True)
        look: dict[str, Any] = {"color": _COLOURS[spec.lane_bits], "hatch": _HATCHES[spec.name]}
        bars = axes.bar(
            where, heights, width=0.75 / len(shown), label=str(spec), edgecolor="white", linewidth=0, **look
        )
        labels = axes.bar_label(bars, [_times(height) for height in heights], padding=3, fontsize=8, zorder=5)
        for text in labels:
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    axes.axhline(1, zorder=0, color=_COLOURS[None], linewidth=1, linestyle="--", label="gloo")
    axes.set_xticks(range(len(places)), [_caption(link, workers) for link, workers in places], fontsize=9)
    axes.set_ylabel("times as fast as gloo")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    finish(figure, path)


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def _caption(link: str, workers: int) -> str:
    return f"{link}\n{workers} workers"
