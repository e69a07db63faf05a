# SPDX-License-Identifier: Apache-2.0
"""A page in a real browser: by mouse and by keyboard, on wide and narrow screens, light, dark and on paper."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from inagg_testbed.report.page import render
from inagg_testbed.report.parts import Axis, Page, Plot, Section, Series
from tests.testbed.report import sample
from tests.testbed.report.browser import MISSING, Browser, Scheme, browser
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not on PATH")

LOSSES, STEPS, RATIOS, STEP = range(4)  # the pictures of the sample


@pytest.fixture(scope="module", name="window")
def _window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module", name="file")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(sample.PAGE))
    return path


@pytest.fixture(name="page")
def _page(window: Browser, file: Path) -> Iterator[Browser]:
    """The sample on a wide screen; whatever a test does, the browser complains of nothing."""
    window.look(1280)
    window.open(file)
    yield window
    assert window.complaints() == []


def chart(page: Browser, number: int) -> str:
    """The selector of a picture, which is scrolled into view."""
    page.run("document.querySelectorAll('.chart').forEach((each, n) => { each.id = `c${n}`; })")
    page.run("document.getElementById(arguments[0]).scrollIntoView({ block: 'center' })", f"c{number}")
    return f"#c{number}"


def tip(page: Browser) -> str:
    return page.find("#tip").text


def drawn(page: Browser, picture: str) -> list[str]:
    """The series that a picture shows."""
    found = page.run(
        "return [...document.querySelectorAll(`${arguments[0]} svg [data-series]`)].map((e) => e.dataset.series)",
        picture,
    )
    return list(dict.fromkeys(found))


def first_tick(page: Browser, picture: str) -> list[str]:
    return page.texts(f"{picture} svg[role=img] > text.quiet")


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_readable_on_screens_of_each_kind(
    window: Browser, file: Path, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    window.look(width, scheme)
    window.open(file)
    assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert window.run(
        "return [...document.querySelectorAll('.chart svg[role=img]')].every((e) => e.clientHeight > 50)"
    )
    wide = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
    scrolled = window.run(f"return {wide}.map((box) => box.getAttribute('aria-label'))")
    assert ("Many figures" in scrolled) == (width == 400)
    wait_until(
        lambda: window.run(f"return {wide}.every((box) => box.tabIndex === 0)"), "the keyboard scrolls"
    )
    contrasts = window.contrasts()
    assert len(contrasts) > 80
    assert [found for found in contrasts if found[1] < 4.5] == []
    assert window.run("return window.escaped") is None
    assert window.complaints() == []
    window.picture(tmp_path / f"{width}-{scheme}.png")
    assert (tmp_path / f"{width}-{scheme}.png").stat().st_size > 50_000


def test_paper_is_white_and_has_no_controls(window: Browser, file: Path) -> None:
    window.look(1280, "dark", media="print")
    window.open(file)
    assert window.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not window.find("#download").is_displayed()
    assert window.find("svg[role=img]").is_displayed()
    assert window.complaints() == []


def test_a_click_on_a_heading_sorts(page: Browser) -> None:
    heading = "main section:nth-of-type(2) table th:nth-child({}) button"

    def order() -> list[str]:
        return page.texts("main section:nth-of-type(2) table:first-of-type td:first-child")[:4]

    assert order() == ["gloo", "inagg:32", "none", "inagg:16"]
    page.find(heading.format(2)).click()
    assert order() == ["inagg:32", "inagg:16", "gloo", "none"]  # by number; without a value last
    page.find(heading.format(2)).click()
    assert order() == ["gloo", "inagg:16", "inagg:32", "none"]
    assert page.find("th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.find(heading.format(1)).send_keys(Keys.ENTER)
    assert order() == ["gloo", "inagg:16", "inagg:32", "none"]
    assert page.texts("th[aria-sort]") == ["backend"]
    page.find(heading.format(3)).send_keys(Keys.SPACE)
    assert order() == ["inagg:32", "none", "gloo", "inagg:16"]  # 1def, 2abc, 9abc, 0123: as h2 is before h10


def test_the_cursor_shows_the_values_of_all_lines(page: Browser) -> None:
    picture = page.find(f"{chart(page, LOSSES)} svg[role=img]")
    page.acting.move_to_element(picture).perform()
    shown = tip(page).splitlines()
    assert re.fullmatch("step: [56]", shown[0])
    assert [line.partition(":")[0] for line in shown[1:2]] == ["gloo"]
    assert any(line.startswith("inagg:32: ") for line in shown)
    assert sample.HOSTILE in tip(page)
    page.acting.move_to_element(page.find("h1")).perform()
    assert not page.find("#tip").is_displayed()


@pytest.mark.parametrize("key", [None, Keys.ENTER, Keys.SPACE], ids=["mouse", "enter", "space"])
def test_the_legend_switches_a_series_off_and_on(page: Browser, key: str | None) -> None:
    picture = chart(page, LOSSES)
    button = page.find(f"{picture} .legend button:first-child")

    def press() -> None:
        button.click() if key is None else button.send_keys(key)

    assert drawn(page, picture) == ["gloo", "inagg:32", sample.HOSTILE]
    press()
    assert drawn(page, picture) == ["inagg:32", sample.HOSTILE]
    assert button.get_attribute("aria-pressed") == "false"
    page.acting.move_to_element(page.find(f"{picture} svg[role=img]")).perform()
    assert "gloo" not in tip(page)
    press()
    assert drawn(page, picture) == ["gloo", "inagg:32", sample.HOSTILE]


@pytest.mark.parametrize("number", [LOSSES, STEPS, RATIOS, STEP])
def test_every_picture_can_be_emptied(page: Browser, number: int) -> None:
    picture = chart(page, number)
    page.run(
        f"document.querySelectorAll('{picture} .legend button[aria-pressed]').forEach((each) => each.click())"
    )
    assert drawn(page, picture) == []
    page.acting.move_to_element(page.find(f"{picture} svg[role=img]")).perform()
    assert not page.find("#tip").is_displayed()


@pytest.mark.parametrize("number", [LOSSES, STEPS, RATIOS, STEP])
def test_a_drag_zooms_and_a_double_click_shows_all_again(page: Browser, number: int) -> None:
    picture = chart(page, number)
    before = first_tick(page, picture)
    svg = page.find(f"{picture} svg[role=img]")
    page.acting.move_to_element(svg).click_and_hold().move_by_offset(150, 0).release().perform()
    assert first_tick(page, picture) != before
    assert page.find(f"{picture} .legend button:last-child").text == "See all"
    page.acting.double_click(page.find(f"{picture} svg[role=img]")).perform()
    assert first_tick(page, picture) == before
    assert not page.find(f"{picture} .legend button:last-child").is_displayed()


def test_a_drag_up_and_down_is_no_zoom(page: Browser) -> None:
    picture = chart(page, LOSSES)
    before = first_tick(page, picture)
    svg = page.find(f"{picture} svg[role=img]")
    page.acting.move_to_element(svg).click_and_hold().move_by_offset(2, 60).release().perform()
    assert first_tick(page, picture) == before


def test_the_keyboard_reads_zooms_and_shows_all_again(page: Browser) -> None:
    picture = chart(page, LOSSES)
    before = first_tick(page, picture)
    canvas = page.find(f"{picture} [tabindex='0']")
    canvas.send_keys(Keys.HOME)
    assert tip(page).splitlines()[:2] == ["step: 1", "gloo: 8"]
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert tip(page).splitlines()[:2] == ["step: 2", "gloo: 4"]
    assert page.run("return document.getElementById('spoken').textContent") == tip(page)
    canvas.send_keys(Keys.END)
    assert tip(page).startswith("step: 10\n")
    canvas.send_keys(Keys.ARROW_RIGHT)  # there is no further one
    assert tip(page).startswith("step: 10\n")
    canvas.send_keys("+")
    assert first_tick(page, picture) != before
    canvas.send_keys("-")
    assert first_tick(page, picture) == before
    canvas.send_keys("+")
    canvas.send_keys("0")
    assert first_tick(page, picture) == before


def test_the_keyboard_reaches_every_picture_and_table(page: Browser) -> None:
    reached = page.run(
        "return [...document.querySelectorAll('.chart, table')]"
        ".map((e) => [e, ...e.querySelectorAll('*')].some((each) => each.tabIndex >= 0))"
    )
    assert len(reached) == 4 + 7
    assert all(reached)


@pytest.mark.parametrize(
    ("number", "stops"),
    [
        (
            STEPS,
            ["gloo, computation: 20", "gloo, communication: 80, from 90 to 120", "inagg:32, computation: 22"],
        ),
        (RATIOS, ["2 workers, inagg:16: 2.5", "2 workers, inagg:8: 3", "4 workers, inagg:8: 4"]),
        (
            STEP,
            [
                "rank 0, computation: forward\n0 to 10 ms (10 ms)",
                "rank 0, computation: backward\n10 to 30 ms (20 ms)",
                "rank 0, sum: bucket 0\n18 to 26 ms (8 ms)",
            ],
        ),
    ],
)
def test_bars_and_spans_say_what_they_are(page: Browser, number: int, stops: list[str]) -> None:
    canvas = page.find(f"{chart(page, number)} [tabindex='0']")
    found = []
    for _ in stops:
        canvas.send_keys(Keys.ARROW_RIGHT)
        found.append(tip(page))
    assert found == stops
    bar = page.find(f"#c{number} [data-series] rect")
    page.acting.move_to_element(bar).perform()
    assert tip(page) == stops[0]


def test_bars_begin_at_zero_beside_each_other_and_on_each_other_in_a_stack(page: Browser) -> None:
    def starts(number: int) -> list[float]:
        chart(page, number)
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.getBBox().x)"
        return [round(x) for x in page.run(script, f"#c{number} g[data-series]")]

    ratios = starts(RATIOS)
    assert len(ratios) == 3
    assert len(set(ratios)) == 1
    steps = starts(STEPS)
    assert steps[0] == steps[2] < steps[1]


def test_gaps_stay_open(page: Browser) -> None:
    chart(page, LOSSES)
    paths = page.run(
        "return [...document.querySelectorAll('#c0 [data-series] path')].map((e) => e.getAttribute('d'))"
    )
    assert [path.count("M") for path in paths] == [2, 1, 1]  # gloo has a NaN in the middle


def test_no_two_lines_look_alike_without_colour(page: Browser) -> None:
    chart(page, LOSSES)
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.getAttribute('stroke-dasharray'))"
    dashes = page.run(script, "#c0 [data-series] path")
    assert len(set(dashes)) == len(dashes) == 3


def test_a_link_of_the_fabric_says_what_it_carries(page: Browser) -> None:
    page.run("document.querySelector('[data-tip]').scrollIntoView({block: 'center'})")
    page.acting.move_to_element(page.find("[data-tip]")).perform()
    assert tip(page) == "h1 to leaf1:1: 4 MB up, 1 MB down"


def test_the_download_is_the_data(page: Browser) -> None:
    page.run(
        "document.getElementById('download').addEventListener('click', (event) => event.preventDefault())"
    )
    page.find("#download").click()
    script = """
    const done = arguments[arguments.length - 1];
    fetch(document.getElementById("download").href).then((answer) => answer.text()).then(done);
    """
    assert json.loads(page.driver.execute_async_script(script)) == sample.PAGE.data


def test_the_page_follows_the_width_of_the_window(page: Browser) -> None:
    picture = chart(page, LOSSES)
    wide = page.run(f"return document.querySelector('{picture} svg[role=img]').viewBox.baseVal.width")
    page.look(400)
    script = f"return document.querySelector('{picture} svg[role=img]').viewBox.baseVal.width"
    wait_until(lambda: page.run(script) < 400, "the picture is drawn anew")
    assert wide > 900


@pytest.mark.parametrize(
    "series",
    [
        [],
        [Series("none", [], [])],
        [Series("one", [3], [5.0])],
        [Series("flat", [1, 2], [0.0, 0.0])],
        [Series("negative", [1, 2], [-1.0, -2.0])],
    ],
    ids=["nothing", "empty", "one point", "flat", "negative"],
)
@pytest.mark.parametrize("log", [False, True])
def test_a_plot_of_hardly_anything_is_drawn(
    window: Browser, tmp_path: Path, series: list[Series], log: bool
) -> None:
    plot = Plot("p", Axis("x", log=log), Axis("y", log=log), series)
    (tmp_path / "page.html").write_text(render(Page("t", "s", [], [Section("s", [plot])])))
    window.look(1280)
    window.open(tmp_path / "page.html")
    window.find(".chart [tabindex='0']").send_keys(Keys.ARROW_RIGHT, "+", "-", "0")
    shapes = window.run("return document.querySelector('.chart svg[role=img]').outerHTML")
    assert "NaN" not in shapes
    assert "Infinity" not in shapes
    assert window.complaints() == []
