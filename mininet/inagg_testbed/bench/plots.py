# SPDX-License-Identifier: Apache-2.0
"""Plots of the benchmark suite, as PNG files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inagg_testbed.bench.plan import LANE_BITS, OPTIONS, BackendSpec
from inagg_testbed.bench.rows import spec_of
from inagg_testbed.bench.theory import link_bits_per_element
from inagg_testbed.demo.plots import COLOURS, finish

# The colour says how wide the lanes are, marker and hatch what sums in them.
_COLOURS = dict(zip((None, *LANE_BITS), COLOURS, strict=False))
_MARKERS = dict(zip(("gloo", *OPTIONS), ("o", "o", "D", "P", "s", "^"), strict=True))
_HATCHES = dict(zip(OPTIONS, ("", "xx", "++", "//", ".."), strict=True))
_GLOO = BackendSpec.parse("gloo")
_SUMMING = tuple(BackendSpec(name=name, lane_bits=bits) for name in OPTIONS for bits in LANE_BITS)
Row = dict[str, Any]


def plot_scaling(rows: Sequence[Row], rate_bps: int, path: Path) -> None:
    """Plot time per element against workers and against elements, with dotted lines for line rate.

    A tensor that fits the token buckets of the links can be below its line.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    by_workers, by_elements = figure.subplots(1, 2)
    _plot_sweep(by_workers, rows, "workers", rate_bps)
    _plot_sweep(by_elements, rows, "elements", rate_bps)
    by_elements.set_xscale("log")
    by_elements.set_yscale("log")
    by_workers.set_ylim(bottom=0)
    by_workers.set_xlabel(f"workers ({_fixed(rows, 'workers', 'elements'):,} elements)")
    by_elements.set_xlabel(f"elements ({_fixed(rows, 'elements', 'workers')} workers)")
    by_workers.set_ylabel(f"time per element (ns), {rate_bps / 1e9:g} Gbit/s links")
    by_workers.legend(frameon=False, fontsize=8, title="dotted: at line rate", title_fontsize=8)
    finish(figure, path)


def _of(rows: Sequence[Row], axis: str) -> list[Row]:
    return [row for row in rows if row["experiment"] == f"scaling, {axis}"]


def _fixed(rows: Sequence[Row], axis: str, other: str) -> int:
    return int(next(row[other] for row in _of(rows, axis)))


def _plot_sweep(axes: Axes, rows: Sequence[Row], axis: str, rate_bps: int) -> None:
    for spec in (_GLOO, *_SUMMING):
        points = sorted(
            (row for row in _of(rows, axis) if spec_of(row) == spec),
            key=lambda row: row[axis],
        )
        if not points:
            continue
        places = [row[axis] for row in points]
        times = [row["time_ms"]["p50"] * 1e6 / row["elements"] for row in points]
        bits = [link_bits_per_element(spec, row["workers"]) for row in points]
        ideal = [each / rate_bps * 1e9 for each in bits if each is not None]
        colour, marker = _COLOURS[spec.lane_bits], _MARKERS[spec.name]
        axes.plot(places, times, color=colour, marker=marker, markersize=4, label=str(spec))
        axes.plot(places, ideal, color=colour, linestyle=":", linewidth=1)


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
