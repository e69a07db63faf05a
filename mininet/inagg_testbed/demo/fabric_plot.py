# SPDX-License-Identifier: Apache-2.0
"""Draws a fabric with the bytes on each of its links: one panel for each training run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from inagg_testbed.files import writing
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report.fabric import Place, layout

_COLOURS = "YlOrRd"
_MOST_LABELLED = 16  # hosts whose links have room for figures
_LEVEL_HEIGHT = 0.9  # inches, as widths are
_MOST_ABOVE = 2  # spines between whose crossing links figures have room
_FIGURES: dict[str, Any] = {"fontsize": 7, "ha": "center"}
_HALF_LABEL = 9  # points: half of the height of a label


def plot_fabric(fabric: Fabric, runs: Sequence[tuple[str, Sequence[LinkBytes]]], path: Path) -> None:
    """Draw one panel for each (label, bytes by link) of `runs`. Colour and width show bytes in both directions."""
    columns = min(2, len(runs))
    lines = -(-len(runs) // columns)
    places = layout(fabric)
    height = 1.0 + _LEVEL_HEIGHT * (1 + max(-y for _, y in places.values()))
    figure = Figure(figsize=(columns * _panel_width(fabric), lines * height), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    most = max((link.up + link.down for _, found in runs for link in found), default=0)
    most_mb = max(most, 1) / 1e6
    for axes, (label, found) in zip(panels, runs, strict=False):
        _draw(axes, fabric, places, found, most_mb)
        trunks = sum(link.up + link.down for link in found if ":" in link.lower)
        note = "" if fabric.is_star else f": {trunks / 1e6:,.0f} MB between switches"
        axes.set_title(f"{label}{note}", fontsize=10)
    for axes in panels:
        axes.axis("off")
    scale = ScalarMappable(Normalize(0, most_mb), _COLOURS)
    figure.colorbar(scale, ax=list(panels), label="MB on a link, both directions", shrink=0.6)
    with writing(path):
        figure.savefig(path, dpi=150)


def _panel_width(fabric: Fabric) -> float:
    return max(5.0, 0.55 * fabric.size)


def _draw(
    axes: Axes,
    fabric: Fabric,
    places: dict[str, Place],
    links: Sequence[LinkBytes],
    most_mb: float,
) -> None:
    for link in links:
        lower, upper = (places[end.partition(":")[0]] for end in (link.lower, link.upper))
        total = (link.up + link.down) / 1e6
        colour, width = colormaps[_COLOURS](total / most_mb), 1 + 5 * total / most_mb
        axes.plot(*zip(lower, upper, strict=True), color=colour, linewidth=width, zorder=1)
        figures = f"↑{link.up / 1e6:,.0f}\n↓{link.down / 1e6:,.0f}"
        if ":" not in link.lower:
            if fabric.size <= _MOST_LABELLED:
                axes.annotate(figures, lower, (0, -9), textcoords="offset points", va="top", **_FIGURES)
        elif (
            sum(trunk.lower.switch == link.lower.partition(":")[0] for trunk in fabric.trunks) <= _MOST_ABOVE
        ):
            _label_beside(axes, fabric, figures, lower, upper, width)
    for name, (x, y) in places.items():
        switch = name in fabric.switches
        box = {"boxstyle": "round,pad=0.3" if switch else "circle,pad=0.2"}
        look = {"facecolor": "#dbeafe" if switch else "#f3f4f6", "edgecolor": "#6b7280", **box}
        axes.text(x, y, name, fontsize=8, ha="center", va="center", bbox=look, zorder=3)
    axes.set_xlim(0.4, fabric.size + 0.6)
    axes.set_ylim(min(y for _, y in places.values()) - 0.6, 0.4)


def _label_beside(axes: Axes, fabric: Fabric, figures: str, lower: Place, upper: Place, width: float) -> None:
    """Write a link's figures beside its line, on the outer side, nearer to the lower end, where links are apart."""
    x, y = (0.62 * low + 0.38 * high for low, high in zip(lower, upper, strict=True))
    lean = (upper[0] - lower[0]) * _panel_width(fabric) / fabric.size / _LEVEL_HEIGHT
    to_the_left = lean > 0 or (lean == 0 and x <= (fabric.size + 1) / 2)
    away = width / 2 + 2 + abs(lean) * _HALF_LABEL
    place = (-away if to_the_left else away, 0.0)
    axes.annotate(
        figures,
        (x, y),
        place,
        textcoords="offset points",
        va="center",
        **{**_FIGURES, "ha": "right" if to_the_left else "left"},
    )
