# SPDX-License-Identifier: Apache-2.0
"""Timelines of a step: what each rank does when."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from inagg_testbed.report.parts.tables import Cell, Column, Table, figure_cell


@dataclass(frozen=True)
class Span:
    """Something that lasts, from `start` to `end` in ms. kind: what has one colour, such as computation."""

    name: str
    kind: str
    start: float
    end: float

    def __post_init__(self) -> None:
        if not self.start <= self.end:
            raise ValueError(f"{self.name}: ends at {self.end:g} ms, before it starts at {self.start:g} ms")


@dataclass(frozen=True)
class TimelineRow:
    """The spans of a rank. Spans at the same time are drawn below each other."""

    label: str
    spans: Sequence[Span]


@dataclass(frozen=True)
class Timeline:
    """What each rank does when: one row a rank, time from left to right in ms.

    first_kinds: come first, whether they appear or not, so that a kind has one colour in several pictures.
    """

    title: str
    rows: Sequence[TimelineRow]
    about: str = ""
    first_kinds: Sequence[str] = ()

    @property
    def kinds(self) -> list[str]:
        """The kinds of spans, in the order in which they first appear."""
        own = (span.kind for row in self.rows for span in row.spans)
        return list(dict.fromkeys([*self.first_kinds, *own]))

    def spec(self) -> dict[str, Any]:
        """What pictures.js draws."""
        return {
            "kind": "timeline",
            "axis": "time (ms)",
            "kinds": self.kinds,
            "rows": [
                {
                    "label": row.label,
                    "spans": [
                        {**vars(span), "kind": self.kinds.index(span.kind), "lane": lane}
                        for span, lane in zip(row.spans, lanes(row.spans), strict=True)
                    ],
                }
                for row in self.rows
            ],
        }

    def table(self) -> Table:
        """The picture in figures: for how long each rank does each kind, spans at the same time counted once."""
        rows = [
            [
                Cell(row.label),
                *(
                    figure_cell(covered(span for span in row.spans if span.kind == kind))
                    for kind in self.kinds
                ),
                figure_cell(max((span.end for span in row.spans), default=None)),
            ]
            for row in self.rows
        ]
        columns = [Column("rank", False), *map(Column, self.kinds), Column("ends at")]
        return Table("ms of each kind", columns, rows)


def lanes(spans: Sequence[Span]) -> list[int]:
    """The lane of each span: the first in which it overlaps no other. Spans that only touch share a lane."""
    free_from: list[float] = []
    found = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda number: (spans[number].start, number)):
        span = spans[index]
        lane = next((lane for lane, free in enumerate(free_from) if free <= span.start), len(free_from))
        free_from[lane:] = [span.end, *free_from[lane + 1 :]]
        found[index] = lane
    return found


def covered(spans: Iterable[Span]) -> float:
    """ms in which at least one of the spans lasts."""
    total, until = 0.0, -math.inf
    for span in sorted(spans, key=lambda one: one.start):
        total += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return total
