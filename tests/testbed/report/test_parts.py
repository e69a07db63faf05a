# SPDX-License-Identifier: Apache-2.0
"""The parts of a page: what they refuse, and what they say in figures."""

import math

import pytest

from inagg_testbed.report.parts import (
    Axis,
    Bars,
    BarSeries,
    Best,
    Cell,
    Column,
    Plot,
    Series,
    Span,
    Table,
    Timeline,
    TimelineRow,
    listed,
    megabytes,
    spread,
)
from inagg_testbed.report.parts.timelines import covered, lanes
from tests.testbed.report import sample


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5", 1234.5),
        ("2.50x", 2.5),
        ("97%", 97.0),
        ("<= 3", 3.0),
        ("-0.5", -0.5),
        ("1e-05", 1e-5),
        (".5", 0.5),
        ("-", None),
        ("", None),
        ("WRONG", None),
    ],
)
def test_a_cell_is_sorted_by_the_number_that_it_begins_with(text: str, value: float | None) -> None:
    assert Cell.parse(text) == Cell(text, value)


def test_a_table_refuses_a_row_of_another_length() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells for 2 columns"):
        Table("t", [Column("a"), Column("b")], [[Cell("1")]])


def test_text_columns_of_a_table_have_no_values() -> None:
    table = Table.of_texts("t", ["run", "ms", "weights"], [["2 ways", "3.5", "12ab"]], texts=["weights"])
    assert [column.numeric for column in table.columns] == [False, True, False]
    assert [cell.value for cell in table.rows[0]] == [None, 3.5, None]


@pytest.mark.parametrize(
    ("values", "best", "marked"),
    [
        ([3.0, 1.0, None], "min", {1}),
        ([3.0, 1.0, 3.0], "max", {0, 2}),
        ([3.0, 1.0], None, set()),
        ([2.0, 2.0], "min", set()),  # all are best: a mark says nothing
        ([2.0], "min", set()),
        ([], "min", set()),
    ],
)
def test_the_best_value_of_a_column_is_marked(
    values: list[float | None], best: Best | None, marked: set[int]
) -> None:
    table = Table("t", [Column("ms", best=best)], [[Cell("", value)] for value in values])
    assert table.best_rows(0) == marked


def test_a_series_has_as_many_x_as_y() -> None:
    with pytest.raises(ValueError, match="gloo: 2 x for 1 y"):
        Series("gloo", [1, 2], [1.0])


def test_a_plot_says_in_figures_what_it_shows() -> None:
    table = sample.LOSSES.table()
    assert [column.title for column in table.columns] == [
        "series",
        "points",
        "first",
        "last",
        "least",
        "greatest",
    ]
    assert [cell.text for cell in table.rows[0]] == ["gloo", "9", "8", "0.1", "0.1", "8"]
    assert sample.LOSSES.spec()["series"][0]["y"][4] is None  # NaN, which JSON has not


def test_a_plot_without_values_has_a_table() -> None:
    empty = Plot("p", Axis("x"), Axis("y"), [Series("none", [1], [math.nan]), Series("empty", [], [])])
    assert [[cell.text for cell in row] for row in empty.table().rows] == [
        ["none", "0", "", "", "", ""],
        ["empty", "0", "", "", "", ""],
    ]


@pytest.mark.parametrize("field", ["values", "low", "high"])
def test_bars_have_one_value_for_each_category(field: str) -> None:
    values = {"values": [1.0, 2.0]} | {field: [1.0]}
    with pytest.raises(ValueError, match="one: 1 values for 2 categories"):
        Bars("b", "ms", ["x", "y"], [BarSeries("one", **values)])


def test_bars_say_in_figures_what_they_show() -> None:
    table = sample.STEPS.table()
    assert [column.title for column in table.columns] == ["", "computation", "communication", "from", "to"]
    assert [cell.text for cell in table.rows[1]] == ["inagg:32", "22", "40", "58", "70"]
    assert [cell.text for cell in sample.RATIOS.table().rows[1]] == ["4 workers", "", "4"]


def test_a_span_does_not_end_before_it_starts() -> None:
    Span("nothing", "wait", 2, 2)
    with pytest.raises(ValueError, match="bucket 0: ends at 1 ms, before it starts at 2 ms"):
        Span("bucket 0", "sum", 2, 1)


def test_spans_at_the_same_time_have_lanes_of_their_own() -> None:
    spans = [Span("", "", *ends) for ends in ((0, 10), (10, 30), (18, 26), (24, 42), (26, 28))]
    assert lanes(spans) == [0, 0, 1, 2, 1]
    assert lanes(spans[::-1]) == [1, 2, 1, 0, 0]
    assert lanes([]) == []


def test_time_is_counted_once_where_spans_overlap() -> None:
    assert covered([]) == 0
    assert covered([Span("", "", 0, 10), Span("", "", 5, 12), Span("", "", 6, 7), Span("", "", 20, 21)]) == 13


def test_a_timeline_says_in_figures_what_each_rank_does() -> None:
    assert sample.STEP.kinds == ["computation", "sum", "wait"]
    assert [[cell.text for cell in row] for row in sample.STEP.table().rows] == [
        ["rank 0", "30", "24", "8", "50"],
        ["rank 1", "20", "20", "0", "50"],
    ]
    assert Timeline("t", [TimelineRow("rank 0", [])]).table().rows == [[Cell("rank 0"), Cell("")]]


def test_a_fabric_says_in_figures_what_its_links_carry() -> None:
    assert [[cell.text for cell in row] for row in sample.FABRIC.table().rows] == [
        ["gloo", "h1", "leaf1:1", "4", "1"],
        ["gloo", "leaf1:101", "root:1", "8", "2"],
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (12, "<0.001"), (5_500, "0.0055"), (62_400_000, "62.4"), (2_345_600_000, "2,346")],
)
def test_bytes_have_three_digits(count: int, text: str) -> None:
    assert megabytes(count) == text


def test_an_error_bar_needs_two_samples() -> None:
    assert spread([]) == spread([1.0]) == (None, None)
    assert spread([float(value) for value in range(101)]) == (10.0, 90.0)


def test_lists_read_as_sentences() -> None:
    assert [listed(texts) for texts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
