# SPDX-License-Identifier: Apache-2.0
"""A page: one file, all texts escaped, a table beside each picture."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report import fabric as drawings
from inagg_testbed.report.page import page_of, render
from inagg_testbed.report.parts import Page, Panel, Section, Text
from inagg_testbed.report.record import Record, Run
from tests.testbed.report import sample


class Outline(HTMLParser):
    """The elements of a page with their attributes, and the contents of its JSON."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.documents: list[str] = []
        self._in_json = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_json = ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        if self._in_json:
            self.documents.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_json = False

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.elements)


PAGE = render(sample.PAGE)
OUTLINE = Outline(PAGE)


def test_a_page_loads_nothing_and_is_small() -> None:
    links = [attributes.get(name) for _, attributes in OUTLINE.elements for name in ("src", "href")]
    assert [link for link in links if link is not None] == ["data:,", "#data"]
    assert "url(http" not in PAGE
    assert "@import" not in PAGE
    assert len(PAGE) < 1_000_000


def test_texts_cannot_leave_their_places() -> None:
    assert sample.HOSTILE not in PAGE
    assert "img" not in {tag for tag, _ in OUTLINE.elements}
    scripts = [attributes.get("type") for tag, attributes in OUTLINE.elements if tag == "script"]
    assert scripts == ["application/json"] * 5 + [None]  # four pictures, the data, the page's script


def test_the_data_is_in_the_page() -> None:
    assert json.loads(OUTLINE.documents[-1]) == sample.PAGE.data


def test_headings_are_in_order_and_every_picture_has_a_table() -> None:
    levels = [int(tag[1]) for tag, _ in OUTLINE.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels == [1, *[2] * (len(sample.PAGE.sections) + 2)]
    assert dict(OUTLINE.elements)["html"] == {"lang": "en"}
    assert OUTLINE.count("figure") == OUTLINE.count("details") == 5
    assert OUTLINE.count("table") == 7
    named = [attributes["aria-label"] for tag, attributes in OUTLINE.elements if tag == "svg"]
    assert named == [
        "gloo: busiest link: leaf1 to root, 10 MB in both directions; 10 MB between switches",
        f"{sample.HOSTILE}: no link was counted",
    ]


def test_the_best_value_is_marked_in_words_too() -> None:
    (cell,) = [line for line in PAGE.splitlines() if '<td class="number ranked best"' in line]
    assert 'data-value="9.5">9.5' in cell
    assert 'class="unseen"> best<' in cell


def test_an_empty_page_is_a_page() -> None:
    empty = render(Page(title="t", subtitle="s", summary=[], sections=[]))
    assert json.loads(Outline(empty).documents[-1]) == {}


def test_widths_and_colours_of_links_follow_their_bytes() -> None:
    fabric = Fabric.parse("star", hosts=2)
    links = [LinkBytes("h1", "s1:1", 100, 0), LinkBytes("h2", "s1:2", 0, 0)]
    panels = [Panel("a", links), Panel("b", [LinkBytes("h1", "s1:1", 200, 200)])]
    assert drawings.busiest(panels) == 400
    first, second = drawings.draw(fabric, panels[0], 400).lines
    (widest,) = drawings.draw(fabric, panels[1], 400).lines
    assert [line.heat for line in (second, first, widest)] == [0, 1, drawings.HEATS - 1]
    assert second.width < first.width < widest.width
    assert (first.x1, first.y1) != (second.x1, second.y1)
    assert (first.x2, first.y2) == (second.x2, second.y2)
    assert drawings.busiest([Panel("none", [])]) == 1


@pytest.mark.parametrize("topology", ["tree:2x2x2", "leaf-spine:2x4x4", "tree:64x1", "tree:1x1"])
def test_a_fabric_of_any_size_is_drawn_within_its_frame(topology: str) -> None:
    fabric = Fabric.parse(topology)
    links = [LinkBytes(str(trunk.lower), str(trunk.upper), 10**6, 1) for trunk in fabric.trunks]
    links += [LinkBytes(f"h{n}", str(port), 10**6, 1) for n, port in enumerate(fabric.host_ports, 1)]
    drawing = drawings.draw(fabric, Panel("all", links), 10**6)
    assert len(drawing.lines) == len(links)
    assert len({(node.x, node.y) for node in drawing.nodes}) == len(drawing.nodes)
    places = [(node.x, node.y) for node in drawing.nodes] + [(label.x, label.y) for label in drawing.labels]
    assert all(0 < x < drawing.width and 0 < y < drawing.height for x, y in places)


def titled(runs: list[Run]) -> Page:
    return Page(
        title=runs[0].record.kind,
        subtitle="",
        summary=[run.named("fast") for run in runs],
        sections=[Section("s", [Text("t")])],
        environment=[(run.named("links"), "100mbit") for run in runs],
    )


def test_a_page_of_several_runs_names_what_differs() -> None:
    machine = {"CPU": "fast", "torch": "2.9"}
    first = Record(
        "demo", {"n": 1}, command=["inagg", "demo", "--p4", "a b.p4"], machine=machine, when="today"
    )
    other = replace(first, kind="suite", figures={"n": 2}, machine=machine | {"CPU": "slow"})
    page = page_of([Run("a", first), Run("b", other)], {"demo": titled, "suite": titled})  # type: ignore[dict-item]
    assert page.title == "demo; suite"
    assert page.summary == ["a: fast", "b: fast"]
    assert [section.title for section in page.sections] == ["s", "s"]
    assert page.commands == ["a: inagg demo --p4 'a b.p4'", "b: inagg demo --p4 'a b.p4'"]
    environment = dict(page.environment)
    assert (environment["date"], environment["torch"]) == ("today", "2.9")
    assert (environment["a: CPU"], environment["b: CPU"]) == ("fast", "slow")
    assert {name: run["figures"] for name, run in page.data.items()} == {"a": {"n": 1}, "b": {"n": 2}}
    alone = page_of([Run("", first)], {"demo": titled})  # type: ignore[dict-item]
    assert alone.commands == ["inagg demo --p4 'a b.p4'"]
    assert alone.data["figures"] == {"n": 1}
