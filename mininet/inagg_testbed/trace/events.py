# SPDX-License-Identifier: Apache-2.0
"""Makes a file in Chrome's trace event format, which Perfetto and chrome://tracing open.

Of the format's events X are slices, C counters, s and f the ends of an arrow, M names; times are in us
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from inagg.spans import LOADING, Span
from inagg_testbed.report.parts import Span as Bar
from inagg_testbed.report.parts import megabytes
from inagg_testbed.report.parts.timelines import lanes
from inagg_testbed.trace.passages import Passage
from inagg_testbed.trace.ranks import RankTrace, last_steps
from inagg_wire.decoder import is_newer

Event = dict[str, Any]

_PROGRAM, _LOADING, _COLLECTIVES = 1, 2, 10  # threads of a rank; collectives at the same time have several
_FIRST_SWITCH = 1000  # process
_SUMMING, _PORTS = 1, 10  # threads of a switch
# Packets at a port that are further apart are of different slices.
_APART_S = 0.005
_TICK_S = 1e-6  # a slice of one packet has to last, to be seen
_LEAST_INTERVAL_S, _MOST_INTERVALS = 0.001, 2000


def make_trace(ranks: Sequence[RankTrace], passages: Iterable[Passage] = (), *, steps: int) -> dict[str, Any]:
    """The last steps that all ranks have. passages: at the switches, in any order. Raises ConfigurationError."""
    numbers = last_steps(ranks, steps)
    begin_s = min(one.steps[numbers[0]].begin_s for one in ranks)
    end_s = max(one.steps[numbers[-1]].end_s for one in ranks)
    spans = (span for one in ranks for number in numbers for span in one.steps[number].spans)
    # A collective may have begun before the first step.
    clock = _Clock(min([begin_s, *(span.begin_s for span in spans if span.is_collective)]))
    seen = sorted(one for one in passages if begin_s <= one.time_s <= end_s)
    events: list[Event] = []
    for one in ranks:
        events += _rank(one, numbers, clock)
    tracks: dict[_Row, _Track] = {}
    for process, switch in enumerate(sorted({one.switch for one in seen}), _FIRST_SWITCH):
        own = [one for one in seen if one.switch == switch]
        of_switch = _tracks(process, own)
        events += _switch(process, switch, of_switch, own, clock, _interval_s(end_s - begin_s))
        tracks |= of_switch
    events += _arrows(ranks, numbers, tracks, clock)
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0.0), -event.get("dur", 0.0)))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "steps": numbers,
            "clock_error_us": {
                f"rank {one.rank}": None if one.error_s is None else 1e6 * one.error_s
                for one in ranks
                if one.error_s != 0
            },
        },
    }


class _Row(NamedTuple):
    """What is a thread of a switch's process."""

    switch: str
    port: str
    is_result: bool
    leaves: bool

    def __str__(self) -> str:
        return f"{self.port}: {'results' if self.is_result else 'contributions'} {'out' if self.leaves else 'in'}"


@dataclass(frozen=True)
class _Track:
    """The messages of a row. place: process and thread."""

    place: tuple[int, int]
    passages: Sequence[Passage]

    @cached_property
    def times_s(self) -> list[float]:
        return [one.time_s for one in self.passages]


class _Clock:
    """Seconds to us from the begin of the trace."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s

    def us(self, time_s: float) -> float:
        return round(1e6 * (time_s - self._begin_s), 3)

    def interval(self, time_s: float, interval_s: float) -> int:
        """The number of the interval of a counter."""
        return math.floor((time_s - self._begin_s) / interval_s)

    def slice(
        self, process: int, thread: int, name: str, begin_s: float, end_s: float, **about: Any
    ) -> Event:
        begin = self.us(begin_s)
        lasts = round(self.us(end_s) - begin, 3)
        event = {
            "ph": "X",
            "name": name,
            "cat": "inagg",
            "pid": process,
            "tid": thread,
            "ts": begin,
            "dur": lasts,
        }
        return {**event, "args": about} if about else event


def _names(process: int, name: str, threads: Iterable[tuple[int, str]]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for thread, title in threads:
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": title}}
        yield {
            "ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}
        }  # fmt: skip


def _process(rank: int) -> int:
    return rank + 1  # 0 is the kernel's idle task


def _rank(one: RankTrace, numbers: Sequence[int], clock: _Clock) -> Iterator[Event]:
    process = _process(one.rank)
    own = [one.steps[number] for number in numbers]
    spans = [span for step in own for span in step.spans]
    collectives = _in_lanes(spans)
    threads = [(_PROGRAM, "program"), (_LOADING, "data loading")]
    threads += [(lane, "collectives") for lane in sorted({lane for _, lane in collectives})]
    yield from _names(process, f"rank {one.rank} ({one.host})", threads)
    for step in own:
        yield clock.slice(process, _PROGRAM, f"step {step.number}", step.begin_s, step.end_s)
        program = [span for span in step.spans if not span.is_collective and span.kind != LOADING]
        for span in _nested(program, step.begin_s, step.end_s):
            yield clock.slice(process, _PROGRAM, span.kind, span.begin_s, span.end_s)
    for span in spans:
        if span.kind == LOADING:
            yield clock.slice(process, _LOADING, span.kind, span.begin_s, span.end_s)
    for span, lane in collectives:
        name = f"{span.kind} {megabytes(span.size)} MB"
        yield clock.slice(process, lane, name, span.begin_s, span.end_s, bytes=span.size)


def _in_lanes(spans: Iterable[Span]) -> list[tuple[Span, int]]:
    """The collectives, each with a thread in which it overlaps no other."""
    found = [span for span in spans if span.is_collective]
    bars = [Bar(span.kind, span.kind, span.begin_s, span.end_s) for span in found]
    return [(span, _COLLECTIVES + lane) for span, lane in zip(found, lanes(bars), strict=True)]


def _nested(spans: Iterable[Span], begin_s: float, end_s: float) -> Iterator[Span]:
    """Spans of one thread, cut so that each is within the one in which it begins: viewers draw no others."""
    open_until = [end_s]
    for span in sorted(spans, key=lambda span: (span.begin_s, -span.end_s)):
        starts_s = max(span.begin_s, begin_s)
        while len(open_until) > 1 and open_until[-1] <= starts_s:
            open_until.pop()
        ends_s = min(span.end_s, open_until[-1])
        if ends_s > starts_s:
            open_until.append(ends_s)
            yield span._replace(begin_s=starts_s, end_s=ends_s)


def _tracks(process: int, passages: Sequence[Passage]) -> dict[_Row, _Track]:
    """The threads of a switch's process: for each port and direction one for contributions and one for results."""
    found: dict[_Row, list[Passage]] = defaultdict(list)
    for one in passages:
        found[_Row(one.switch, one.port, one.is_result, one.leaves)].append(one)
    return {row: _Track((process, thread), found[row]) for thread, row in enumerate(sorted(found), _PORTS)}


def _switch(
    process: int,
    switch: str,
    tracks: Mapping[_Row, _Track],
    passages: Sequence[Passage],
    clock: _Clock,
    interval_s: float,
) -> Iterator[Event]:
    """A switch: what passes each port as slices, and as counters how much, and how many chunks are under way."""
    threads = [(_SUMMING, "summing"), *((track.place[1], str(row)) for row, track in tracks.items())]
    yield from _names(process, f"switch {switch}", threads)
    for row, track in tracks.items():
        yield from _bursts(track, clock)
        yield from _rates(process, f"{row} (packets/ms)", track.passages, clock, interval_s)
    yield from _summing(process, passages, clock, interval_s)


def _bursts(track: _Track, clock: _Clock) -> Iterator[Event]:
    """A slice for messages that follow one another."""
    for burst in _split(track.passages):
        first, last, packets = burst[0], burst[-1], sum(one.packets for one in burst)
        what = "results" if first.is_result else "contributions"
        chunks = {"first_chunk": first.chunk, "last_chunk": last.chunk + last.packets - 1}
        about = {"packets": packets, **chunks}
        name = f"{packets} {what}"
        yield clock.slice(*track.place, name, first.time_s, last.time_s + _TICK_S, **about)


def _split(passages: Sequence[Passage]) -> Iterator[list[Passage]]:
    burst: list[Passage] = []
    for one in passages:
        if burst and one.time_s - burst[-1].time_s > _APART_S:
            yield burst
            burst = []
        burst.append(one)
    if burst:
        yield burst


def _rates(
    process: int, name: str, passages: Sequence[Passage], clock: _Clock, interval_s: float
) -> Iterator[Event]:
    """Packets a ms."""
    counts = Counter[int]()
    for one in passages:
        counts[clock.interval(one.time_s, interval_s)] += one.packets
    for interval, count in counts.items():
        yield _counter(process, name, interval, interval_s, round(count / interval_s / 1e3, 3))
        if interval + 1 not in counts:
            yield _counter(process, name, interval + 1, interval_s, 0.0)


def _summing(process: int, passages: Sequence[Passage], clock: _Clock, interval_s: float) -> Iterator[Event]:
    """Slices while chunks are under way, and a counter of the most in each interval."""
    most: dict[int, int] = {}
    begin_s: float | None = None
    last_s, before = 0.0, 0
    for time_s, count in _under_way(passages):
        interval = clock.interval(time_s, interval_s)
        most[interval] = max(most.get(interval, before), count)
        if begin_s is not None and not before and time_s - last_s > _APART_S:
            yield clock.slice(process, _SUMMING, "summing", begin_s, last_s)
            begin_s = None
        begin_s = time_s if begin_s is None else begin_s
        last_s, before = time_s, count
    if begin_s is not None:
        yield clock.slice(process, _SUMMING, "summing", begin_s, last_s)
    for interval, count in most.items():
        yield _counter(process, "chunks under way, at most", interval, interval_s, count)


def _under_way(passages: Sequence[Passage]) -> Iterator[tuple[float, int]]:
    """How many chunks are between the newest contribution that has come and the newest result that has left, at each
    change. Contributions that leave go to a switch above, and results that come are from there."""
    newest: dict[tuple[int, bool], int] = {}
    for one in passages:
        if one.leaves != one.is_result:
            continue
        key, last = (one.job, one.is_result), (one.chunk + one.packets - 1) % 2**32
        if not one.is_result:
            newest.setdefault((one.job, True), (one.chunk - 1) % 2**32)
        if key in newest and not is_newer(last, newest[key]):
            continue
        newest[key] = last
        jobs = {job for job, _ in newest}
        yield one.time_s, sum(_ahead(newest.get((job, False)), newest.get((job, True))) for job in jobs)


def _ahead(contribution: int | None, result: int | None) -> int:
    """By how many chunks contributions are ahead of results. At the begin of a trace they may not be known."""
    if contribution is None or result is None or not is_newer(contribution, result):
        return 0
    return (contribution - result) % 2**32


def _counter(process: int, name: str, interval: int, interval_s: float, value: float) -> Event:
    time_us = round(1e6 * interval * interval_s, 3)
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": time_us, "args": {"value": value}}


def _arrows(
    ranks: Sequence[RankTrace], numbers: Sequence[int], tracks: Mapping[_Row, _Track], clock: _Clock
) -> Iterator[Event]:
    """Arrows from a collective to its first contribution at the switch, and from its last result to its end.

    Only for a rank's collectives that begin, or end, while no other of the rank is under way: packets do not say of
    which collective they are.
    """
    number = itertools.count(1)
    for one in ranks:
        ways = {
            row.is_result: track
            for row, track in tracks.items()
            if row.port == one.host and row.leaves == row.is_result
        }
        if len(ways) < 2:
            continue
        found = _in_lanes(span for step in numbers for span in one.steps[step].spans)
        under_way = _UnderWay(span for span, _ in found)
        for span, lane in found:
            own = _process(one.rank), lane
            first_s = _first_after(ways[False], span.begin_s, span.end_s)
            if first_s is not None and not under_way.at(span.begin_s):
                yield from _arrow(next(number), own, span.begin_s, ways[False].place, first_s, clock)
            last_s = _last_before(ways[True], span.end_s, span.begin_s)
            if last_s is not None and not under_way.at(span.end_s):
                yield from _arrow(next(number), ways[True].place, last_s, own, span.end_s - _TICK_S, clock)


class _UnderWay:
    """How many of a rank's collectives are under way at a time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        lasting = [span for span in spans if span.begin_s < span.end_s]
        self._begins_s = sorted(span.begin_s for span in lasting)
        self._ends_s = sorted(span.end_s for span in lasting)

    def at(self, time_s: float) -> int:
        """Those that begin before it and end after it."""
        return bisect_left(self._begins_s, time_s) - bisect_right(self._ends_s, time_s)


def _arrow(
    number: int, start: tuple[int, int], start_s: float, end: tuple[int, int], end_s: float, clock: _Clock
) -> Iterator[Event]:
    """From a slice of a (process, thread) to a slice of another."""
    for kind, (process, thread), time_s in (("s", start, start_s), ("f", end, end_s)):
        event = {"ph": kind, "id": number, "name": "packets", "cat": "inagg", "pid": process, "tid": thread}
        yield {**event, "ts": clock.us(time_s), **({"bp": "e"} if kind == "f" else {})}


def _first_after(track: _Track, time_s: float, end_s: float) -> float | None:
    at = bisect_left(track.times_s, time_s)
    return track.times_s[at] if at < len(track.times_s) and track.times_s[at] < end_s else None


def _last_before(track: _Track, time_s: float, begin_s: float) -> float | None:
    at = bisect_left(track.times_s, time_s - 2 * _TICK_S)
    return track.times_s[at - 1] if at > 0 and track.times_s[at - 1] > begin_s else None


def _interval_s(lasts_s: float) -> float:
    """Of counters of packets."""
    return max(_LEAST_INTERVAL_S, lasts_s / _MOST_INTERVALS)
