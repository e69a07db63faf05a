# SPDX-License-Identifier: Apache-2.0
"""What viewers need of a file in Chrome's trace event format."""

import math
from collections import defaultdict
from typing import Any

Event = dict[str, Any]
_FIELDS = {
    "M": {"args"},
    "X": {"ts", "dur", "cat"},
    "C": {"ts", "args"},
    "s": {"ts", "id", "cat"},
    "f": {"ts", "id", "cat", "bp"},
}
_ROUNDING_US = 0.002


def check(document: dict[str, Any]) -> None:
    """Fail unless the fields are there, times ascend, slices of a thread are nested, and arrows join slices."""
    events: list[Event] = document["traceEvents"]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert all(math.isfinite(time) and time >= 0 for time in times)
    for event in events:
        wanted = {"ph", "name", "pid", "tid"} | _FIELDS[event["ph"]]
        assert wanted <= event.keys(), event
        assert event.get("dur", 0) >= 0, event
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    threads = by_thread(document)
    assert set(threads) <= named
    for slices in threads.values():
        _check_nested(slices)
    _check_arrows([event for event in events if event["ph"] in "sf"], threads)


def by_thread(document: dict[str, Any]) -> dict[tuple[int, int], list[Event]]:
    """The slices of each process and thread, in the order of the file."""
    found = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return dict(found)


def threads_of(document: dict[str, Any], process: str) -> dict[str, list[Event]]:
    """The slices of a process by the name of the thread; threads of one name together."""
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"].get("name")
        for event in document["traceEvents"]
        if event["ph"] == "M"
    }
    (number,) = (pid for (kind, pid, _), name in names.items() if (kind, name) == ("process_name", process))
    found: dict[str, list[Event]] = defaultdict(list)
    for (pid, thread), slices in by_thread(document).items():
        if pid == number:
            found[names["thread_name", pid, thread]] += slices
    return found


def _check_nested(slices: list[Event]) -> None:
    open_until: list[float] = []
    for one in slices:
        while open_until and open_until[-1] <= one["ts"] + _ROUNDING_US:
            open_until.pop()
        end = one["ts"] + one["dur"]
        assert not open_until or end <= open_until[-1] + _ROUNDING_US, one
        open_until.append(end)


def _check_arrows(ends: list[Event], threads: dict[tuple[int, int], list[Event]]) -> None:
    pairs: dict[int, list[Event]] = defaultdict(list)
    for end in ends:
        pairs[end["id"]].append(end)
        own = threads[end["pid"], end["tid"]]
        assert any(one["ts"] <= end["ts"] <= one["ts"] + one["dur"] for one in own), end
    for start, end in pairs.values():
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert start["ts"] <= end["ts"]
