# SPDX-License-Identifier: Apache-2.0
"""The style that all pictures share."""

from pathlib import Path

from matplotlib.figure import Figure

from inagg_testbed.files import writing

COLOURS = ("#6b7280", "#2563eb", "#0d9488", "#d97706", "#9333ea", "#dc2626")


def finish(figure: Figure, path: Path) -> None:
    """Write a figure without the upper and right side of its frame."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with writing(path):
        figure.savefig(path, dpi=150)
