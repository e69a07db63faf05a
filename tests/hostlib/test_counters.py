# SPDX-License-Identifier: Apache-2.0
"""The figures of a group: their differences in a `with` block, and the rank that the others wait for."""

from typing import Any

import pytest

from inagg.counters import Stats, Tally, longest_wait, straggler
from inagg_contract.lateness import late_ranks


def test_the_rank_that_waits_least_is_the_one_waited_for() -> None:
    waits = {
        0: {"sums": 10, "waited_s": 2.0},
        1: {"sums": 10, "waited_s": 0.1},
        2: {"sums": 5, "waited_s": 1.25},
    }
    assert straggler(waits) == {"rank": 1, "late_s": 0.25 - 0.01}


def test_nobody_is_late_where_nothing_is_known() -> None:
    assert straggler({}) is None
    assert straggler({0: {"sums": 3, "waited_s": 1.0}}) is None
    assert straggler({0: {"sums": 3, "waited_s": 1.0}, 1: {"sums": 0, "waited_s": 0.0}}) is None


def waited(collective: int, seconds: float, sums: int = 0) -> dict[str, Any]:
    longest = {"collective": collective, "waited_s": seconds, "call": "barrier()"}
    return {"sums": sums, "waited_s": seconds, "longest_wait": longest}


def test_the_rank_that_began_last_is_the_one_whose_longest_wait_was_in_another_collective() -> None:
    longest = {"collective": 7, "waited_s": 25.0, "call": "barrier()"}
    assert longest_wait({0: waited(7, 25.0), 1: waited(3, 0.5), 2: waited(7, 24.0)}) == {**longest, "rank": 1}
    assert longest_wait({0: waited(7, 25.0), 1: {"longest_wait": None}}) == {**longest, "rank": 1}
    assert longest_wait({0: waited(7, 25.0), 1: waited(7, 0.001), 2: waited(7, 24.0)}) == {
        **longest,
        "rank": 1,
    }


def test_of_two_ranks_that_may_have_begun_last_none_is_named() -> None:
    waits = {0: waited(7, 25.0), 1: waited(3, 0.5), 2: waited(4, 0.5)}
    assert longest_wait(waits) == {"collective": 7, "waited_s": 25.0, "call": "barrier()", "rank": None}
    forgotten = {0: waited(0, 25.0), 1: waited(0, 3.0)}
    assert longest_wait(forgotten) == {"collective": 0, "waited_s": 25.0, "call": "barrier()", "rank": None}
    assert longest_wait({}) is longest_wait({0: {}, 1: {"longest_wait": None}}) is None


def reported(waited_s: float, loading_s: float = 0.0, rtt_s: float = 0.0005) -> dict[str, Any]:
    """A rank's report of ten sums."""
    return {"sums": 10, "waited_s": waited_s, "loading_s": loading_s, "rtt_s": rtt_s}


def test_late_ranks_are_named_with_what_makes_them_late() -> None:
    waits = {0: reported(2.0, 0.1), 1: reported(0.0, 0.1), 2: reported(2.0), 3: reported(0.5, 1.6)}
    assert late_ranks(waits) == [
        {"rank": 1, "late_s": 0.2, "cause": "computation"},
        {"rank": 3, "late_s": pytest.approx(0.15), "cause": "data loading"},
    ]


def test_loaders_that_all_ranks_wait_for_make_nobody_late() -> None:
    waits = {0: reported(1.0, 5.0), 1: reported(0.0, 5.0), 2: reported(1.0, 5.0)}
    assert late_ranks(waits) == [{"rank": 1, "late_s": 0.1, "cause": "computation"}]


def test_a_long_round_trip_makes_a_rank_late_though_it_waits_as_long_as_the_others() -> None:
    waits = {0: reported(1.0), 1: reported(1.0, rtt_s=0.0505), 2: reported(1.0)}
    assert late_ranks(waits) == [{"rank": 1, "late_s": pytest.approx(0.05), "cause": "network"}]


def test_nobody_is_late_by_less_than_a_millisecond_or_before_all_have_summed() -> None:
    assert late_ranks({0: reported(0.009), 1: reported(0.0)}) == []
    assert late_ranks({0: reported(1.0), 1: {"sums": 0, "waited_s": 0.0}}) == late_ranks({}) == []


def test_a_longest_wait_before_a_block_is_none_of_the_block() -> None:
    figures: dict[str, Any] = {"waits": {0: waited(7, 25.0, 9), 1: waited(3, 0.5, 9)}}
    with Stats(lambda: figures) as stats:
        assert stats["longest_wait"]["waited_s"] == 25.0
        figures = {"waits": {0: waited(7, 25.0, 12), 1: waited(12, 0.75, 12)}}
        # Rank 0 waited most before the block, so it may have begun collective 12 last.
    assert stats["longest_wait"] == {
        "collective": 12, "waited_s": 0.75, "call": "barrier()", "rank": 0, "place": ""
    }  # fmt: skip


def test_at_the_end_of_a_block_counts_are_what_it_added_and_the_rest_is_as_it_is() -> None:
    figures: dict[str, Any] = {
        "path": "switch",
        "packets_sent": 10,
        "window": 64,
        "segmentation": True,
        "calls": {
            "reduce": {"count": 1, "bytes": 8, "ended": 1, "ended_bytes": 8, "seconds": 2.0},
            "barrier": {"count": 2, "bytes": 0, "ended": 2, "ended_bytes": 0, "seconds": 1.0},
            "send": {"count": 1, "bytes": 8, "ended": 0, "ended_bytes": 0, "seconds": 0.0},
        },
        "waits": {0: {"sums": 3, "waited_s": 1.0}, 1: {"sums": 3, "waited_s": 4.0}},
    }
    with Stats(lambda: figures) as stats:
        assert stats["calls"]["reduce"]["goodput"] == 4.0
        assert stats["straggler"] == {"rank": 0, "late_s": 1.0, "place": ""}
        figures = {
            "path": "switch",
            "packets_sent": 15,
            "window": 32,
            "segmentation": True,
            "calls": {
                "reduce": {"count": 4, "bytes": 99, "ended": 3, "ended_bytes": 24, "seconds": 2.5},
                "gather": {"count": 1, "bytes": 4, "ended": 0, "ended_bytes": 0, "seconds": 0.0},
                "barrier": {"count": 2, "bytes": 0, "ended": 2, "ended_bytes": 0, "seconds": 1.0},
                "send": {"count": 1, "bytes": 8, "ended": 1, "ended_bytes": 8, "seconds": 4.0},
            },
            "waits": {0: {"sums": 4, "waited_s": 3.0}, 1: {"sums": 4, "waited_s": 4.0}},
        }
    assert stats == {
        "path": "switch",
        "packets_sent": 5,
        "window": 32,
        "segmentation": True,
        "calls": {
            "reduce": {
                "count": 3,
                "bytes": 91,
                "ended": 2,
                "ended_bytes": 16,
                "seconds": 0.5,
                "goodput": 32.0,
            },
            "gather": {"count": 1, "bytes": 4, "ended": 0, "ended_bytes": 0, "seconds": 0.0, "goodput": 0.0},
            "send": {"count": 0, "bytes": 0, "ended": 1, "ended_bytes": 8, "seconds": 4.0, "goodput": 2.0},
        },
        "waits": {0: {"sums": 1, "waited_s": 2.0}, 1: {"sums": 1, "waited_s": 0.0}},
        "straggler": {"rank": 1, "late_s": 2.0, "place": ""},
        "late": [{"rank": 1, "late_s": 2.0, "cause": "computation", "place": ""}],
        "longest_wait": None,
    }


def test_the_end_of_a_call_counts_once() -> None:
    tally = Tally()
    call = tally.begin("reduce", 8)
    assert tally.snapshot()["reduce"]["ended"] == 0
    call.end()
    seconds = tally.snapshot()["reduce"]["seconds"]
    call.end()
    figures = {"count": 1, "bytes": 8, "ended": 1, "ended_bytes": 8, "seconds": seconds}
    assert tally.snapshot() == {"reduce": figures}


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_the_time_with_collectives_under_way_counts_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1.0
    monkeypatch.setattr("inagg.counters.time.monotonic", lambda: now)
    tally = Tally()
    first = tally.begin(kind, 8)
    now = 2.0
    second = tally.begin(kind, 8)
    now = 4.0
    first.end()
    assert tally.collecting_s() == 3.0
    now = 9.0
    second.end()
    now = 20.0
    assert tally.collecting_s() == 8.0
