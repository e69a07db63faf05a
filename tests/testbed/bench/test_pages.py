# SPDX-License-Identifier: Apache-2.0
"""The page of `inagg bench allreduce`: sentences, tables and pictures, of rows of any kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.bench.allreduce import BenchOutcome
from inagg_testbed.bench.pages.allreduce import contents
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.report.page import page_of, render
from inagg_testbed.report.parts import Bars, Page, Part, Plot, Table, Verdict
from inagg_testbed.report.record import Record, Run, named_runs
from tests.testbed.bench.measured_rows import ROWS, row


def page(*runs: Run) -> Page:
    return contents(runs)


def run_of(rows: list[dict[str, Any]], *wrong: str, name: str = "") -> Run:
    return Run(
        name, Record("allreduce", {"rows": rows, "settings": {"switch": "model"}, "wrong": list(wrong)})
    )


def parts(page: Page) -> list[Part]:
    return [part for section in page.sections for part in section.parts]


def test_the_summary_names_what_is_fastest_and_what_it_sends() -> None:
    found = page(run_of(ROWS))
    assert found.summary == [
        "With 4 workers, 1,000 elements, inagg:16 is fastest: 10 ms (median), 4.00x as fast as gloo.",
        "In one all-reduce the busiest link of a host carries 6 MB with gloo and 4.24 MB with inagg:16, in one"
        " direction.",
    ]
    assert found.verdicts == [Verdict(True, "every sum lies within its error bound (2 rows)")]


def test_a_wrong_sum_is_a_verdict() -> None:
    found = page(
        run_of([row("gloo", None, 1.0, checked=False, max_abs_error=float("inf"))], "gloo: element 3 is 4")
    )
    assert found.verdicts == [Verdict(False, "gloo: element 3 is 4")]
    table = next(part for part in parts(found) if isinstance(part, Table))
    assert table.rows[0][-1].text == "WRONG"
    assert found.summary[0] == "With 4 workers, 1,000 elements, gloo is fastest: 1 ms (median)."


def test_one_case_has_bars_and_marks_the_best() -> None:
    found = parts(page(run_of(ROWS)))
    bars = next(part for part in found if isinstance(part, Bars))
    assert bars.categories == ["gloo", "inagg:16"]
    assert bars.series[0].values == [40.0, 10.0]
    assert bars.series[0].low == pytest.approx([39.2, 9.2])
    assert bars.series[0].high == pytest.approx([41.6, 11.6])
    table = next(part for part in found if isinstance(part, Table))
    assert {column.title: table.best_rows(number) for number, column in enumerate(table.columns)}[
        "p50 ms"
    ] == {1}


@pytest.mark.parametrize(
    ("axis", "values", "log"),
    [("elements", (100, 1000), True), ("workers", (2, 4), False), ("loss", (0.0, 0.01), False)],
)
def test_several_cases_have_lines(axis: str, values: tuple[float, float], log: bool) -> None:
    backends = (("gloo", None), ("inagg", 8))
    rows = [{**row(name, bits, 10.0 + value), axis: value} for value in values for name, bits in backends]
    plot = next(part for part in parts(page(run_of(rows))) if isinstance(part, Plot))
    assert (plot.x.label, plot.x.log, plot.y.log) == (axis, log, log)
    assert [(one.label, list(one.x)) for one in plot.series] == [
        ("gloo", list(values)),
        ("inagg:8", list(values)),
    ]


def test_a_case_that_varies_in_two_ways_has_a_line_for_each_of_the_other() -> None:
    rows = [
        row("gloo", None, 1.0, workers=workers, elements=size) for workers in (2, 4) for size in (1, 2, 3)
    ]
    plot = next(part for part in parts(page(run_of(rows))) if isinstance(part, Plot))
    assert [one.label for one in plot.series] == ["gloo, 2 workers", "gloo, 4 workers"]


def test_runs_beside_each_other_share_a_table() -> None:
    found = page(run_of(ROWS, name="a"), run_of(ROWS, name="b"))
    table = next(part for part in parts(found) if isinstance(part, Table))
    assert [row[0].text for row in table.rows] == ["a", "a", "b", "b"]
    assert next(part for part in parts(found) if isinstance(part, Bars)).categories[2:] == [
        "b: gloo",
        "b: inagg:16",
    ]


def test_a_measurement_without_counted_links_or_second_iterations_has_a_page() -> None:
    rows = [row("gloo", None, 1.0, link_bytes=None, times_ms=[1.0])]
    found = page(run_of(rows))
    assert len(found.summary) == 1
    bars = [part for part in parts(found) if isinstance(part, Bars)]
    assert len(bars) == 1
    assert (bars[0].series[0].low, bars[0].series[0].high) == ([None], [None])


def test_an_outcome_writes_what_its_page_is_made_of(tmp_path: Path) -> None:
    outcome = BenchOutcome(ROWS, {"switch": "model", "link": "100 Mbit/s"}, [], tmp_path)
    written = outcome.write_page()
    assert written == tmp_path / "report.html"
    assert render(page_of(named_runs([tmp_path]), {"allreduce": contents})) == written.read_text()
    assert json.loads((tmp_path / "report.json").read_text())["figures"]["rows"] == ROWS


def test_figures_of_another_form_are_refused() -> None:
    forms: list[dict[str, Any]] = [{"rows": [], "wrong": []}, {"rows": ROWS}, {}]
    for figures in forms:
        with pytest.raises(ConfigurationError, match="a: not the figures of inagg bench allreduce"):
            page(Run("a", Record("allreduce", figures)))
