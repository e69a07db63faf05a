# SPDX-License-Identifier: Apache-2.0
"""Tables that can be sorted."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from inagg_testbed.report.parts.texts import megabytes

Best = Literal["min", "max"]
_NUMBER = re.compile(r"[<>=~ ]*(-?[\d,]*\.?\d+(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class Cell:
    """A cell of a table. value: what the column is sorted by, and compared by for the best; None: sorted last."""

    text: str
    value: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """A cell with the number that its text begins with, as in 1,234, 2.5x, 97% or <= 3; no number: None."""
        found = _NUMBER.match(text)
        return cls(text, float(found[1].replace(",", "")) if found else None)


@dataclass(frozen=True)
class Column:
    """A column of a table. numeric: aligned to the right and sorted by value. best: which value is marked."""

    title: str
    numeric: bool = True
    best: Best | None = None


@dataclass(frozen=True)
class Table:
    """A table that can be sorted. Raises ValueError if a row has not one cell for each column."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.caption}: a row of {len(row)} cells for {len(self.columns)} columns")

    @classmethod
    def of_texts(
        cls,
        caption: str,
        header: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        texts: Collection[str] = (),
        best: Mapping[str, Best] | None = None,
    ) -> "Table":
        """A table as a terminal shows it: numbers, but for the first column and those whose titles are in `texts`.

        best: the value that is marked, by title.
        """
        columns = [
            Column(title, number > 0 and title not in texts, (best or {}).get(title))
            for number, title in enumerate(header)
        ]
        cells = [
            [
                Cell.parse(text) if column.numeric else Cell(text)
                for text, column in zip(row, columns, strict=True)
            ]
            for row in rows
        ]
        return cls(caption, columns, cells)

    def best_rows(self, column: int) -> set[int]:
        """The rows with the best value of a column: none if it marks none, or if all values are alike."""
        wanted = self.columns[column].best
        values = {
            number: value for number, row in enumerate(self.rows) if (value := row[column].value) is not None
        }
        if wanted is None or len(set(values.values())) < 2:
            return set()
        most = min(values.values()) if wanted == "min" else max(values.values())
        return {number for number, value in values.items() if value == most}


def figure_cell(value: float | None) -> Cell:
    """A number with four digits, or all of an integer."""
    if value is None:
        return Cell("")
    return Cell(f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}", value)


def megabytes_cell(count: int) -> Cell:
    """Bytes, in 10^6."""
    return Cell(megabytes(count), count)
