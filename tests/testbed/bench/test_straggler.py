# SPDX-License-Identifier: Apache-2.0
"""The figures of a straggler, computed from the waiting ranks' events."""

import math
from typing import Any

import pytest

from inagg_testbed.bench.straggler import StragglerBench, summarise, table
from inagg_testbed.errors import ConfigurationError, WrongResultError

BENCH = StragglerBench(workers=3, sleep_s=2.0)


def events(**end: Any) -> list[tuple[int, dict[str, Any]]]:
    """Ranks 0 and 1 wait for rank 2; rank 0 sends 64 packets and then 2 of them again, rank 1 none."""
    found: list[tuple[int, dict[str, Any]]] = []
    for rank in range(3):
        found += [
            (rank, {"event": "prompt", "seconds": seconds + 0.01 * rank}) for seconds in (0.3, 0.2, 0.4)
        ]
        found.append((rank, {"event": "end", "seconds": 2.25 + rank / 8, "wrong": 0, **end}))
    for rank, again in ((0, 2), (1, 0)):
        for number, seconds in enumerate((0.25, 0.5)):
            sample = {"seconds": seconds, "packets_sent": 64 + number * again, "retransmits": number * again}
            found.append((rank, {"event": "sample", **sample}))
    return found


def test_each_waiting_rank_has_what_it_had_sent_when_the_late_one_woke() -> None:
    ranks = summarise(BENCH, 64, events())["ranks"]
    assert ranks == [
        {"rank": 0, "packets": 66, "resent": 2, "samples": [[0.25, 64, 0], [0.5, 66, 2]]},
        {"rank": 1, "packets": 64, "resent": 0, "samples": [[0.25, 64, 0], [0.5, 64, 0]]},
    ]


def test_times_are_those_of_the_slowest_rank() -> None:
    figures = summarise(BENCH, 64, events())
    assert figures["prompt_ms"] == pytest.approx(320)  # median of 0.32, 0.22 and 0.42 s
    assert figures["behind_ms"] == pytest.approx(500)


def test_the_table_tells_packets_sent_again_by_the_second() -> None:
    assert table(summarise(BENCH, 64, events()))[1] == [["0", "66", "2", "4.0"], ["1", "64", "0", "0.0"]]


def test_a_wrong_sum_is_an_error() -> None:
    with pytest.raises(WrongResultError, match="ranks"):
        summarise(BENCH, 64, events(wrong=3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 1}, "want 2 or more"),
        ({"sleep_s": 0.4}, r"a sleep of 0\.4 s: want 0\.5"),
        ({"sleep_s": math.nan}, "a sleep of nan s"),
        ({"sleep_s": math.inf}, "a sleep of inf s"),
        ({"lane_bits": 24}, "24 lane bits: want 32, 16 or 8"),
        ({"slots": 3}, "3 slots: want a power of two"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        StragglerBench(**{"workers": 2, **wrong})
