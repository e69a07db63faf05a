# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows of two overviews of a job, without a testbed."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from inagg_contract.documents import Overview
from inagg_testbed.cli.live import shown_live
from inagg_testbed.errors import NetworkError
from inagg_testbed.network.control import ControllerClient
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.operate.live import Watch, news, rank_rates, rendered
from inagg_testbed.terminal import ProgressView

HEALTH: dict[str, Any] = {
    "switch": "connected",
    "switch_error": None,
    "words": 4,
    "slot_versions": 64,
    "free_slot_versions": 56,
    "jobs": 1,
    "switches": (),
    "links": (),
}


def overview(at: float, *ranks: dict[str, Any], **job: Any) -> Overview:
    """An overview with one job of ranks, each with sums, waited_s, packets, retransmits, chunks."""
    return Overview.model_validate(
        {
            "at": at,
            "version": "1",
            "operators": True,
            "health": HEALTH,
            "jobs": [
                {
                    "id": 7,
                    "name": "train.py",
                    "state": "running",
                    "reason": None,
                    "changing": None,
                    "workers": len(ranks),
                    "slots": 4,
                    "payload_bytes": 1000,
                    "aggregation": "leased",
                    "title": "s1",
                    "tenant": None,
                    "priority": 0,
                    "age_s": at,
                    "ways": [],
                    "leases": [],
                    "ranks": [
                        {
                            "rank": number,
                            "host": f"h{number + 1}",
                            "state": "joined",
                            "waits": {"sums": each["sums"], "waited_s": each["waited_s"]},
                            "traffic": {
                                "packets": each["packets"],
                                "retransmits": each["retransmits"],
                                "chunks": each["chunks"],
                                "window": 3,
                                "window_limit": 8,
                                "rtt_s": 0.002,
                            },
                        }
                        for number, each in enumerate(ranks)
                    ],
                    **job,
                }
            ],
        }
    )


def rank(
    sums: int, waited_s: float, packets: int = 0, retransmits: int = 0, chunks: int = 0
) -> dict[str, Any]:
    return {
        "sums": sums,
        "waited_s": waited_s,
        "packets": packets,
        "retransmits": retransmits,
        "chunks": chunks,
    }


def test_rates_are_those_between_two_overviews() -> None:
    before = overview(10.0, rank(4, 1.0, 100, 1, 50), rank(4, 1.0))
    after = overview(12.0, rank(14, 1.5, 300, 5, 250), rank(14, 1.1))
    first, second = rank_rates(before, after, after.jobs[0]).values()
    assert (first.sums, first.resent, first.goodput) == (5.0, 4 / 200, 200 * 1000 * 8 / 2)
    assert first.late_s == pytest.approx(0.0)
    assert second.late_s == pytest.approx(0.04)
    assert second.resent is None


def test_a_rank_that_has_begun_to_count_anew_has_no_rates() -> None:
    before = overview(10.0, rank(40, 9.0, 100, 10, 50), rank(40, 1.0))
    after = overview(12.0, rank(4, 0.5, 300, 5, 25), rank(50, 2.0))
    first, second = rank_rates(before, after, after.jobs[0]).values()
    assert (first.sums, first.late_s, first.resent, first.goodput) == (None, None, None, None)
    assert (second.sums, second.late_s) == (5.0, None)


def test_a_terminal_shows_ranks_and_who_is_late() -> None:
    before = overview(0.0, rank(0, 0.0), rank(0, 0.0))
    late = [{"rank": 1, "late_s": 0.05, "cause": "computation"}]
    after = overview(1.0, rank(10, 0.5, 100, 2, 90), rank(10, 0.0), late=late)
    console = Console(width=100)
    with console.capture() as capture:
        console.print(rendered(before, after))
    text = capture.get()
    assert "job 7 (train.py): running on s1; rank 1 late" in text
    (line,) = (line.split() for line in text.splitlines() if line.startswith("0 "))
    assert line == ["0", "h1", "joined", "10.0", "0.0", "2.0", "3/8", "2.00%", "0.7"]


def test_lines_tell_each_change_once() -> None:
    running = overview(0.0, rank(0, 0.0))
    changing = overview(1.0, rank(0, 0.0), state="changing", changing="switch s1\nwas lost")
    moved = overview(2.0, rank(0, 0.0), title="2 colocated servers")
    assert news(None, running) == ["job 7 (train.py): running, on s1"]
    assert news(running, running) == []
    assert news(running, changing) == ["job 7 (train.py): changing, on s1: switch s1\\nwas lost"]
    assert news(changing, moved) == ["job 7 (train.py): running, on 2 colocated servers"]
    finished = overview(3.0, rank(0, 0.0), state="finished")
    assert news(moved, finished) == ["job 7 (train.py): finished"]


class Answering:
    """A controller's client. answers: what it gives, in order, the last one for ever. slow: it waits for `go`."""

    def __init__(self, *answers: Overview | Exception, slow: bool = False) -> None:
        self.answers = list(answers)
        self.slow = slow
        self.go = threading.Event()
        self.asked = threading.Event()

    def overview(self) -> Overview:
        self.asked.set()
        if self.slow:
            self.go.wait(10)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def watching(client: Answering, show: Callable[[Overview, Overview], None]) -> Watch:
    return Watch(cast(ControllerClient, client), show)


def test_a_watch_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_testbed.operate.live._INTERVAL_S", 0.0)
    shown = threading.Event()
    client = Answering(NetworkError("cannot enter the namespace"), overview(1.0, rank(0, 0.0)))
    with watching(client, lambda _before, _after: shown.set()):
        assert shown.wait(10)


def test_the_end_of_a_watch_does_not_wait_for_a_slow_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inagg_testbed.operate.live._INTERVAL_S", 0.0)
    shown: list[Overview] = []
    client = Answering(overview(1.0, rank(0, 0.0)), slow=True)
    watch = watching(client, lambda _before, after: shown.append(after))
    with watch:
        assert client.asked.wait(10)
    assert watch._thread.is_alive()  # it waits for the answer still
    client.go.set()
    watch._thread.join(10)
    assert shown == []


def test_it_is_said_that_nothing_is_shown_without_a_controller() -> None:
    console = Console(width=100)
    testbed = cast(Testbed, SimpleNamespace(controller=None))
    with console.capture() as capture, shown_live(testbed, ProgressView(console)):
        pass
    assert capture.get() == "--live: this testbed has no controller, so there is nothing to show\n"
