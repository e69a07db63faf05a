# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows of two overviews of a job, without a testbed."""

from typing import Any

import pytest
from rich.console import Console

from inagg_contract.documents import Overview
from inagg_testbed.operate.live import late, news, rank_rates, rendered

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


def test_the_latest_rank_is_named_and_those_near_it() -> None:
    before = overview(0.0, *(rank(0, 0.0) for _ in range(4)))
    after = overview(1.0, rank(10, 1.0), rank(10, 0.2), rank(10, 0.79), rank(10, 0.9))
    rates = rank_rates(before, after, after.jobs[0])
    assert late(rates) == [1, 2]


def test_nobody_is_late_by_less_than_a_millisecond_or_in_no_sums() -> None:
    before = overview(0.0, rank(0, 0.0), rank(0, 0.0))
    after = overview(1.0, rank(10, 0.005), rank(10, 0.0))
    assert late(rank_rates(before, after, after.jobs[0])) == []
    idle = overview(2.0, rank(10, 0.005), rank(10, 0.0))
    assert late(rank_rates(after, idle, idle.jobs[0])) == []


def test_a_terminal_shows_ranks_and_who_is_late() -> None:
    before = overview(0.0, rank(0, 0.0), rank(0, 0.0))
    after = overview(1.0, rank(10, 0.5, 100, 2, 90), rank(10, 0.0))
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
