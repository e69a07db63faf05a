# SPDX-License-Identifier: Apache-2.0
"""The figures of `inagg.stats`: calls by kind, the transport's counters, and the rank that the others wait for."""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from inagg import spans
from inagg_contract.lateness import late_ranks

# Values that are not counts: a difference has their value at its end.
_GAUGES = frozenset(
    {
        *("job", "rank", "aggregation", "lane_bits", "half_lane_bits", "narrowest_lane_bits", "segmentation"),
        "packet_threads",
        *("longest_wait_s", "longest_wait_context"),
        *("goodput", "peak_rate", "link_rate"),
        *("window", "window_limit", "in_flight", "unicast_in_a_row", "silent_chunk"),
        *("least_rtt_s", "srtt_s", "rttvar_s", "rto_s", "rtt_s"),
        *("receive_buffer_bytes", "receive_buffer_wanted_bytes"),
    }
)


# Kinds of collectives that combine elements of the ranks.
REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_FIGURES = ("count", "bytes", "ended", "ended_bytes", "seconds")


class Tally:
    """Counts calls by kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, list[float]] = {}
        self._under_way = 0  # calls
        self._collecting_since = self._collecting_s = 0.0

    def begin(self, kind: str, size: int, parts: int = 1) -> "TalliedCall":
        """Count the start of a call on `size` bytes. The call ends with the last of its parts."""
        with self._lock:
            row = self._kinds.setdefault(kind, [0, 0, 0, 0, 0.0])
            row[0] += 1
            row[1] += size
            if self._under_way == 0:
                self._collecting_since = time.monotonic()
            self._under_way += 1
        return TalliedCall(self._end, kind, size, parts)

    def _end(self, kind: str, size: int, seconds: float) -> None:
        with self._lock:
            row = self._kinds[kind]
            row[2] += 1
            row[3] += size
            row[4] += seconds
            self._under_way -= 1
            if self._under_way == 0:
                self._collecting_s += time.monotonic() - self._collecting_since

    def collecting_s(self) -> float:
        """Seconds in which at least one collective was under way."""
        with self._lock:
            under_way_s = time.monotonic() - self._collecting_since if self._under_way else 0.0
            return self._collecting_s + under_way_s

    def ended_reductions(self) -> tuple[int, float]:
        """How many all-reduces, reduces and reduce-scatters have ended, and seconds in them."""
        with self._lock:
            rows = [row for kind, row in self._kinds.items() if kind in REDUCTIONS]
            return int(sum(row[2] for row in rows)), sum(row[4] for row in rows)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Kind -> count and bytes of all calls; ended, ended_bytes and seconds of those that have ended."""
        with self._lock:
            return {kind: dict(zip(_FIGURES, row, strict=True)) for kind, row in self._kinds.items()}


class TalliedCall:
    """One call. It ends when `end` has been called for each of its parts."""

    def __init__(self, ended: Callable[[str, int, float], None], kind: str, size: int, parts: int) -> None:
        self._ended = ended
        self._kind = kind
        self._size = size
        self._start = time.monotonic()
        self._lock = threading.Lock()  # guards _left
        self._left = parts

    def end(self) -> None:
        """Count the end of a part."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            now = time.monotonic()
            if (recorder := spans.recorder()) is not None:
                recorder.collective(self._kind, self._size, self._start, now)
            self._ended(self._kind, self._size, now - self._start)


class Stats(dict[str, Any]):
    """The figures of `inagg.stats` at the time of the call. As a context manager, the figures of the block: at its end,
    counts are what was added in the block."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self._read = read
        self._start: Mapping[str, Any] = {}
        self._set(read())

    def __enter__(self) -> Self:
        self._start = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._set(difference(self._start, self._read()))

    def _set(self, figures: Mapping[str, Any]) -> None:
        self.clear()
        self.update(figures)
        if "calls" in self:
            self["calls"] = {
                kind: call for kind, call in self["calls"].items() if call["count"] or call["ended"]
            }
        for call in self.get("calls", {}).values():
            call["goodput"] = call["ended_bytes"] / call["seconds"] if call["seconds"] > 0 else 0.0
        if "waits" in self:
            self["straggler"] = straggler(self["waits"])
            self["longest_wait"] = longest_wait(self["waits"])
            self["late"] = late_ranks(self["waits"])
            for late in (self["straggler"], self["longest_wait"], *self["late"]):
                if late is not None:
                    late["place"] = self.get("places", {}).get(late["rank"], "")


def straggler(waits: Mapping[int, Mapping[str, float]]) -> dict[str, Any] | None:
    """The rank that the others wait for, from the time that each rank has waited.

    In each sum a rank waits from its own first packet until the first packet of the last rank. So the last rank waits
    least. Its lateness is the difference between the longest and the shortest mean wait.

    Args:
        waits: rank -> ``sums``, and ``waited_s`` in all of them.

    Returns:
        ``rank``, and ``late_s`` a sum; None with fewer than two ranks, or if a rank has summed nothing.
    """
    if len(waits) < 2 or any(wait["sums"] < 1 for wait in waits.values()):
        return None
    means = {rank: wait["waited_s"] / wait["sums"] for rank, wait in waits.items()}
    last = min(means, key=means.__getitem__)
    return {"rank": last, "late_s": max(means.values()) - means[last]}


def longest_wait(waits: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The longest wait of a rank for others to begin a sum, and the rank that began last.

    All ranks but the last one wait in that sum. So the last rank's own longest wait was in another sum, or was short.

    Args:
        waits: rank -> its ``longest_wait``: None, or ``waited_s``, ``collective`` and ``call``.

    Returns:
        The longest of these, with ``rank``: the last one, None if others have waited longer elsewhere too. None if no
        rank has waited.
    """
    known = {rank: wait["longest_wait"] for rank, wait in waits.items() if wait.get("longest_wait")}
    if not known:
        return None
    longest = max(known.values(), key=lambda wait: wait["waited_s"])
    late = [
        rank
        for rank in waits
        if rank not in known
        or known[rank]["collective"] != longest["collective"]
        or known[rank]["waited_s"] < longest["waited_s"] / 2
        or not longest["collective"]
    ]
    return {**longest, "rank": late[0] if len(late) == 1 else None}


def difference(start: Mapping[Any, Any], end: Mapping[Any, Any]) -> dict[Any, Any]:
    """The figures of the time between two: what was added to counts, and gauges as they are at the end."""

    def of(name: Any, before: Any, now: Any) -> Any:
        if name == "longest_wait":
            return None if now == before else now
        if name == "changes":
            return now[len(before or ()) :]
        if isinstance(now, Mapping):
            return difference(before or {}, now)
        if name in _GAUGES or isinstance(now, bool) or not isinstance(now, int | float):
            return now
        return now - (before or 0)

    return {name: of(name, start.get(name), now) for name, now in end.items()}
