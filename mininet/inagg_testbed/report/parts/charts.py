# SPDX-License-Identifier: Apache-2.0
"""Plots and bars that one can hover, zoom and switch off by series."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inagg_testbed.report.parts.tables import Cell, Column, Table, figure_cell


@dataclass(frozen=True)
class Axis:
    """An axis with its unit in the label. log: values of 0 or less are left out. zero: it begins at 0."""

    label: str
    log: bool = False
    zero: bool = False


@dataclass(frozen=True)
class Series:
    """Points of a plot, joined by a line unless `dots`. A y that is not finite leaves a gap.

    Raises ValueError if there are not as many x as y.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"{self.label}: {len(self.x)} x for {len(self.y)} y")


@dataclass(frozen=True)
class Mark:
    """A vertical line in a plot."""

    x: float
    label: str


@dataclass(frozen=True)
class Plot:
    """Lines that one can hover, zoom and switch off. about: a sentence below the picture."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    about: str = ""

    def spec(self) -> dict[str, Any]:
        """What pictures.js draws."""
        return {
            "kind": "plot",
            "x": vars(self.x),
            "y": vars(self.y),
            "series": [
                {
                    "label": one.label,
                    "x": list(one.x),
                    "y": [finite(value) for value in one.y],
                    "dots": one.dots,
                }
                for one in self.series
            ],
            "marks": [vars(mark) for mark in self.marks],
        }

    def table(self) -> Table:
        """The picture in figures."""
        rows = []
        for one in self.series:
            values = [value for value in one.y if math.isfinite(value)]
            ends = (values[0], values[-1], min(values), max(values)) if values else (None,) * 4
            rows.append([Cell(one.label), figure_cell(len(values)), *map(figure_cell, ends)])
        titles = ("points", "first", "last", "least", "greatest")
        return Table(f"{self.y.label} by series", [Column("series", False), *map(Column, titles)], rows)


@dataclass(frozen=True)
class BarSeries:
    """One bar for each category. low, high: where the error bars end, on the axis; empty: no error bars."""

    label: str
    values: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True)
class Bars:
    """Bars in a group for each category, or stacked. axis: label with unit. reference: a value with a line.

    Raises ValueError if a series has not one value for each category.
    """

    title: str
    axis: str
    categories: Sequence[str]
    series: Sequence[BarSeries]
    stacked: bool = False
    reference: Mark | None = None
    about: str = ""

    def __post_init__(self) -> None:
        for one in self.series:
            for values in (one.values, one.low, one.high):
                if len(values) not in (
                    {len(self.categories)} if values is one.values else {0, len(self.categories)}
                ):
                    raise ValueError(
                        f"{one.label}: {len(values)} values for {len(self.categories)} categories"
                    )

    def spec(self) -> dict[str, Any]:
        """What pictures.js draws."""
        return {
            "kind": "bars",
            "axis": self.axis,
            "categories": list(self.categories),
            "series": [
                {
                    "label": one.label,
                    "values": [finite(value) for value in one.values],
                    "low": [finite(value) for value in one.low],
                    "high": [finite(value) for value in one.high],
                }
                for one in self.series
            ],
            "stacked": self.stacked,
            "reference": None if self.reference is None else vars(self.reference),
        }

    def table(self) -> Table:
        """The picture in figures."""
        columns = [Column("", False)]
        cells: list[list[Cell]] = [[Cell(category)] for category in self.categories]
        for one in self.series:
            for title, values in ((one.label, one.values), ("from", one.low), ("to", one.high)):
                if values:
                    columns.append(Column(title))
                    for row, value in zip(cells, values, strict=True):
                        row.append(figure_cell(value))
        return Table(self.axis, columns, cells)


SPREAD = "from the 10th to the 90th percentile"


def spread(samples: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The ends of an error bar, as SPREAD says; fewer than two samples have none."""
    if len(samples) < 2:
        return None, None
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def finite(value: float | None) -> float | None:
    """The value, or None for what JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None
