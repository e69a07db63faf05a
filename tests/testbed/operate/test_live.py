# SPDX-License-Identifier: Apache-2.0
"""`inagg run --live`: a real training in a real browser and as lines, while its switch is killed and comes back."""

import os
import pty
import re
import signal
import subprocess
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from inagg_testbed.network.lifecycle import tagged_processes
from tests import ROOT
from tests.testbed.commands import inagg
from tests.testbed.keeping import INAGG
from tests.testbed.report.browser import MISSING, Browser, Scheme, browser
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not on PATH"),
]
MOST_S = 60
# Two jobs beside that of all ranks.
GROUPS = """
import torch, torch.distributed as dist
dist.init_process_group("inagg")
mine = [dist.new_group([0, 2]), dist.new_group([1, 3])][dist.get_rank() % 2]
while True:
    dist.all_reduce(torch.ones(100_000), group=mine)
    dist.all_reduce(torch.ones(1000))
"""
# A line that is not whole while the ranks are on the screen.
HALF_A_LINE = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("inagg")
print("saved [/tmp/x.pt]", end="", flush=True)
over = torch.zeros(1)
while over.item() < 1:
    over = torch.full((1,), float(os.path.exists(sys.argv[1])))
    dist.all_reduce(over)
print(" twice")
"""


@dataclass
class Training:
    """`inagg run --live`, and what it has printed."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    def follow(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)  # line by line

    def found(self, pattern: str) -> str | None:
        """The first group of the first line that has the pattern."""
        found = (re.search(pattern, line) for line in self.lines)
        return next((each[1] for each in found if each), None)

    def await_line(self, pattern: str) -> str:
        wait_until(lambda: self.found(pattern) is not None, f"it prints {pattern}", MOST_S)
        found = self.found(pattern)
        assert found is not None
        return found

    @property
    def url(self) -> str:
        """Of the page, without the token."""
        return self.await_line(r"live: (\S+)")

    @property
    def token(self) -> str:
        """The operator's."""
        return Path(self.await_line(r"live: .* the token, which is in (.+)$")).read_text().strip()


@contextmanager
def trained(results: Path, *arguments: str) -> Iterator[Training]:
    """A training while the block runs. arguments: of `inagg run`."""
    process = subprocess.Popen(
        [*INAGG, "run", "--live", "--results", str(results), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    training = Training(process)
    reader = threading.Thread(target=training.follow)
    reader.start()
    run = training.await_line(r"run (\w+): ")
    yield training
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    reader.join()
    process.stdout.close()
    assert tagged_processes(run, besides=0) == []


@pytest.fixture(scope="module", name="training")
def _training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """Two ranks learn digits until the tests are done."""
    options = ("--workers", "2", "--management", "--link", "100mbit")
    program = (str(ROOT / "examples" / "digits.py"), "--epochs", "100000")
    with trained(tmp_path_factory.mktemp("live"), *options, *program) as training:
        yield training


@pytest.fixture(scope="module", name="window")
def _window() -> Iterator[Browser]:
    with browser() as found:
        yield found


def shown(window: Browser, selector: str) -> list[str]:
    """The text of each element, read at once, because the page changes each second."""
    script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
    found: list[str] = window.run(script, selector)
    return found


def has(window: Browser, selector: str, text: str) -> bool:
    return any(text in each for each in shown(window, selector))


def figures(window: Browser, column: int) -> list[float]:
    """A column of the ranks' table, without those that are not known."""
    texts = shown(window, f".job tbody td:nth-child({column})")
    return [float(text.split()[0].rstrip("%")) for text in texts if text[:1].isdigit()]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_page_shows_a_training_and_how_it_outlives_its_switch(
    training: Training, window: Browser, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    run = training.await_line(r"run (\w+): ")
    window.look(width, scheme)
    window.visit("about:blank")
    window.visit(f"{training.url}#token={training.token}")
    assert "token" not in window.driver.current_url

    def shows_sums() -> bool:
        return len(sums := figures(window, 6)) == 2 and min(sums) > 0

    wait_until(lambda: has(window, ".job h3", "job 1 (digits.py): running"), "it shows the job", MOST_S)
    wait_until(shows_sums, "it shows both ranks' sums", MOST_S)
    wait_until(lambda: has(window, ".job .what", "on s1"), "the switch sums", MOST_S)
    assert has(window, ".cell.j1 title", "job 1 (digits.py), running")
    wait_until(
        lambda: has(window, ".heat", "job 1 (digits.py), 256 of 256 versions"), "it shows slots", MOST_S
    )
    wait_until(lambda: has(window, ".heat title", "2 of 2 contributions"), "sums are complete", MOST_S)
    busy = "return document.querySelectorAll('#fabric .wire.busy').length"
    wait_until(lambda: window.run(busy) == 2, "both links are busy", MOST_S)
    assert window.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert [found for found in window.contrasts() if found[1] < 4.5] == []
    window.picture(tmp_path / "running.png")
    assert window.complaints() == []

    ways = len(shown(window, ".ways li"))
    assert inagg("kill", "--run", run, "switch").returncode == 0
    wait_until(lambda: has(window, "#troubles li", "switch s1: lost"), "the switch is lost", MOST_S)
    wait_until(lambda: has(window, ".job .what", "colocated servers"), "servers sum", MOST_S)
    window.picture(tmp_path / "killed.png")
    assert "switch s1 was lost" in shown(window, ".ways li")[ways]
    assert has(window, "#log li", "job 1 (digits.py) goes on, on 2 colocated servers")
    wait_until(shows_sums, "the ranks sum again", MOST_S)

    assert inagg("restart", "--run", run, "switch").returncode == 0
    wait_until(lambda: not shown(window, "#troubles li"), "the switch is back", MOST_S)
    wait_until(lambda: has(window, ".job .what", "on s1"), "it sums again", 3 * MOST_S)
    wait_until(
        lambda: "first way is there again" in shown(window, ".ways li")[-1], "the page says why", MOST_S
    )
    window.picture(tmp_path / "back.png")
    assert window.complaints() == []
    training.await_line(r"(job 1 \(digits\.py\): running, on 2 colocated servers)")


def test_keys_reach_everything_and_pause(training: Training, window: Browser) -> None:
    window.look(400)
    window.visit("about:blank")
    window.visit(f"{training.url}#token={training.token}")
    wait_until(lambda: bool(shown(window, ".job tbody tr")), "it shows ranks", MOST_S)
    reached = []
    for _ in range(12):
        window.acting.send_keys(Keys.TAB).perform()
        reached.append(
            window.run(
                "const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.tagName"
            )
        )
    assert {"pause", "fabric", "Ranks of job 1 (digits.py)", "log"} <= set(reached)
    window.driver.find_element(By.TAG_NAME, "body").send_keys("p")
    assert window.find("#pause").get_attribute("aria-pressed") == "true"
    window.acting.send_keys("p").perform()
    assert window.find("#pause").get_attribute("aria-pressed") == "false"
    assert window.complaints() == []


def test_strangers_see_switches_and_are_asked_for_the_token(training: Training, window: Browser) -> None:
    window.visit(training.url)
    window.run("sessionStorage.clear()")
    window.visit("about:blank")
    window.visit(training.url)
    wait_until(lambda: window.find("#login").is_displayed(), "it asks for the token", MOST_S)
    assert not window.find("#jobs-part").is_displayed()
    assert has(window, "#fabric text", "s1")
    window.find("#token").send_keys("tokeń", Keys.ENTER)
    wait_until(lambda: has(window, "#refused", "not the operator's token"), "it refuses another", MOST_S)
    wait_until(lambda: has(window, "#status", "inagg "), "it goes on without a token", MOST_S)
    window.find("#token").send_keys(training.token, Keys.ENTER)
    wait_until(lambda: has(window, ".job h3", "job 1"), "it shows the job", MOST_S)
    assert window.complaints() == []


@pytest.mark.long
def test_the_page_shows_several_jobs_and_switches(window: Browser, tmp_path: Path) -> None:
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    with trained(tmp_path, "--topology", "leaf-spine:2x2x2", "--link", "50mbit", str(script)) as training:
        window.look(1280)
        window.visit("about:blank")
        window.visit(f"{training.url}#token={training.token}")
        wait_until(lambda: len(figures(window, 6)) == 8, "it shows the ranks of three jobs", MOST_S)
        wait_until(lambda: len(shown(window, "#fabric .wire.busy")) == 8, "all links are busy", MOST_S)
        assert [text.partition(":")[0] for text in shown(window, ".slots")] == [
            "spine1",
            "spine2",
            "leaf1",
            "leaf2",
        ]
        for job in (1, 2, 3):
            assert len(shown(window, f"#slots .cell.j{job}")) > 4
        assert window.complaints() == []


def test_the_page_is_for_this_machine_alone_and_read_only(training: Training) -> None:
    assert training.url.startswith("http://127.0.0.1:")
    assert training.token not in "".join(training.lines)
    base = training.url.removesuffix("/live")
    as_operator = {"Authorization": f"Bearer {training.token}"}
    job = {"workers": 2, "slots": 4}
    with httpx.Client(base_url=base, trust_env=False, timeout=10, headers=as_operator) as client:
        assert client.post("/jobs", json=job).status_code == 403
        assert client.delete("/jobs/1").status_code == 403
        assert client.get("/overview", headers={"Host": "pages.example"}).status_code == 403
        assert [each["id"] for each in client.get("/overview").json()["jobs"]] == [1]
        page = client.get("/live").text
    assert "<form" in page
    assert "method=" not in page


def test_a_terminal_shows_ranks_below_the_output(tmp_path: Path) -> None:
    script, over = tmp_path / "half_a_line.py", tmp_path / "over"
    script.write_text(HALF_A_LINE)
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (50, 200))
    process = subprocess.Popen(
        [*INAGG, "run", "--live", "--workers", "2", "--results", str(tmp_path), str(script), str(over)],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(its)
    pieces: list[bytes] = []

    def follow() -> None:
        with suppress(OSError):  # EIO: no process has the terminal open
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)

    def screen() -> str:
        return b"".join(pieces).decode(errors="replace")

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        wait_until(lambda: "RTT ms" in screen(), "it shows the ranks", MOST_S)
    finally:
        over.touch()
        returncode = process.wait(MOST_S)
        reader.join()
        os.close(ours)
    assert returncode == 0, screen()
    assert "saved [/tmp/x.pt] twice" in screen()
    assert "#token=" in screen()
