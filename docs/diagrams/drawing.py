# SPDX-License-Identifier: Apache-2.0
"""Boxes, arrows and lines in one look, on matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

IMAGES = Path(__file__).parents[1] / "images"
INK, QUIET = "#222222", "#777777"
HOST, SWITCH, CONTROL, BAD = "#dbe9f6", "#fde7c8", "#dff0d8", "#c0392b"
Point = tuple[float, float]


@contextmanager
def diagram(name: str, width: float, height: float) -> Iterator[Axes]:
    """An empty picture of docs/images/NAME.svg, `width` x `height` units, y downwards; written at the end."""
    with mpl.rc_context({"svg.hashsalt": name, "font.family": "DejaVu Sans", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(width, height))
        figure.subplots_adjust(0, 0, 1, 1)
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        yield axes
        figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str = "white"
) -> None:
    """A box with its text in the middle; the first line is bold."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=colour,
            edgecolor=INK,
            lw=0.9,
        )
    )
    title, _, rest = text.partition("\n")
    lines = rest.count("\n") + 1 if rest else 0
    top = y + height / 2 - 0.085 * lines
    axes.text(x + width / 2, top, title, ha="center", va="center", weight="bold", color=INK)
    if rest:
        axes.text(x + width / 2, top + 0.11, rest, ha="center", va="top", color=INK, size=8, linespacing=1.35)


def note(axes: Axes, x: float, y: float, text: str, **settings: Any) -> None:
    axes.text(x, y, text, **{"color": QUIET, "size": 8, "ha": "center", "va": "center", **settings})


def arrow(
    axes: Axes, start: Point, end: Point, text: str = "", *, both: bool = False, **settings: Any
) -> None:
    """An arrow, with its text above the middle."""
    bend = settings.pop("bend", 0.0)
    colour = settings.pop("colour", INK)
    above = settings.pop("above", 0.1)
    style = {"arrowstyle": "<|-|>" if both else "-|>", "color": colour, "lw": 1, **settings}
    axes.annotate(
        "",
        end,
        start,
        arrowprops={**style, "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0},
    )
    if text:
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - above
        axes.text(*middle, text, ha="center", va="bottom", size=8, color=colour, linespacing=1.3)
