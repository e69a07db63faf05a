# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison says what its figures say."""

import pytest

from inagg_testbed.compare.figures import ComparisonFigures, Link
from inagg_testbed.compare.page import contents
from inagg_testbed.compare.timeline import SpanFigures, StepTimeline
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.report.page import page_of, render
from inagg_testbed.report.parts import Bars, FabricPicture, Page, Plot, Table, Text, Timeline
from inagg_testbed.report.record import Record, Run
from tests.testbed.compare.examples import comparison, run

LINKS = [Link(lower=f"h{number}", upper=f"s1:{number}", up=1000, down=2000) for number in range(1, 5)]


def page(*comparisons: ComparisonFigures) -> Page:
    """The page of these."""
    names = [""] if len(comparisons) == 1 else [f"run {number}" for number in range(len(comparisons))]
    records = [Record("compare", each.model_dump(mode="json")) for each in comparisons]
    return page_of([Run(*pair) for pair in zip(names, records, strict=True)], {"compare": contents})


def example(until: str | None = None) -> ComparisonFigures:
    """Two architectures, twice each."""
    times = {"ring": (10.0, 12.0), "inagg:32": (5.0, 4.0)}
    runs = [
        run(way, 100 if way == "ring" else 50, repeat, times[way][repeat]).model_copy(
            update={"judged": [(3, 0.5, 0.8), (5, 1.0, 0.9)], "quality": 0.9, "links": LINKS}
        )
        for repeat in range(2)
        for way in times
    ]
    return comparison(*runs, until=until)


def test_sentences_have_the_time_of_a_step_and_its_gain() -> None:
    first, second, third = page(example()).summary
    assert first == "A step takes 100 ±0 ms with ring and 50 ±0 ms with inagg:32 (2.00x as fast as ring)."
    assert second.startswith("In a step the busiest link of a host carries 0.002 MB with ring")
    assert third == "The model ends with an accuracy of 0.9 with ring and 0.9 with inagg:32."


def test_with_a_target_they_have_the_time_to_it() -> None:
    first, *_ = page(example(until="accuracy=0.9")).summary
    assert (
        "reaches accuracy=0.9 after 11.0 ±12.7 s with ring and after 4.5 ±6.4 s with inagg:32 (2.50x" in first
    )
    never = comparison(run("ring", 100), run("inagg:32", 50), until="accuracy=0.9")
    assert "never with ring and never with inagg:32" in page(never).summary[0]


def test_pictures_have_all_architectures() -> None:
    parts = [part for section in page(example()).sections for part in section.parts]
    (bars,) = [part for part in parts if isinstance(part, Bars)]
    assert bars.categories == ["ring", "inagg:32"]
    plots = [part for part in parts if isinstance(part, Plot)]
    assert [[one.label for one in plot.series] for plot in plots] == [["ring", "inagg:32"]] * 3
    (fabric,) = [part for part in parts if isinstance(part, FabricPicture)]
    assert [panel.label for panel in fabric.panels] == ["ring", "inagg:32"]


def test_the_predicted_step_stands_beside_the_measured_one() -> None:
    (section,) = [each for each in page(example()).sections if each.title == "What theory predicts"]
    table, payoff = section.parts
    assert isinstance(table, Table)
    assert [column.title for column in table.columns][-2:] == ["predicted step ms", "mean step ms"]
    assert [row[0].text for row in table.rows] == ["ring", "inagg:32"]
    assert isinstance(payoff, Text)
    assert payoff.text.startswith("inagg:32 is predicted to be at least 1.1x as fast as ring: ")


def test_a_kind_of_span_has_one_colour_in_all_timelines() -> None:
    def step_of(*kinds: str) -> StepTimeline:
        spans = [SpanFigures(kind=kind, begin_ms=0, end_ms=10, bytes=2_000_000) for kind in kinds]
        return StepTimeline(step=5, ranks=[spans, spans])

    trainings = {"ring": step_of("all_reduce", "wait"), "local:2": step_of("exchange", "forward")}
    runs = [run(way, 100).model_copy(update={"timeline": step}) for way, step in trainings.items()]
    found = page(comparison(*runs))
    ring, local = [part for section in found.sections for part in section.parts if isinstance(part, Timeline)]
    assert ring.kinds == local.kinds == ["forward", "wait", "all_reduce", "exchange"]
    assert (ring.title, [row.label for row in ring.rows]) == ("ring, step 5", ["rank 0", "rank 1"])
    assert [span.name for span in ring.rows[0].spans] == ["all_reduce 2 MB", "wait"]
    assert "A step on each rank" in render(found)
    assert "A step on each rank" not in render(page(example()))


def test_comparisons_beside_each_other_are_named() -> None:
    text = render(page(example(), example()))
    assert "run 1: inagg:32" in text
    assert "run 0: A step takes" in text


def test_a_program_without_losses_has_a_page() -> None:
    bare = run("ring", 100).model_copy(update={"losses": [None], "quality": None})
    assert "A step takes 100 ms with ring." in render(page(comparison(bare)))


def test_other_figures_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"not the figures of a comparison: (schema_version|settings)"
    ):
        page_of([Run("", Record("compare", {"rows": []}))], {"compare": contents})
    with pytest.raises(ConfigurationError, match="nothing has run"):
        page(comparison())
