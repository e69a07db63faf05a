# SPDX-License-Identifier: Apache-2.0
"""Why a group is not faster: divides its time among causes.

The transport's thread counts the time in each of its states (``beginning_s``, ``window_s``, ``answers_s``,
``device_s``), as tcp_info does for TCP. The engine counts waiting for other ranks and silence, the kernel how long the
thread ran and waited for a processor. `shares` computes from these the share of each cause; the largest is the verdict.
docs/performance.md has the rules; `causes` says what to do about each cause.
"""

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inagg.causes import LOSSY, OF_GROUP, WORTH_SAYING, Cause, gain, promise
from inagg.counters import REDUCTIONS
from inagg_contract.aggregation import SHARED
from inagg_contract.ranks import name_job, name_ranks

_FRAME_HEADERS = 42  # bytes: Ethernet, IPv4, UDP
_COLUMNS = 80
# If queueing is more than this share of the RTT, the path is full, and a larger window would only lengthen queues.
_QUEUE = 0.5
# Sums of fewer packets than the smallest window (window.hpp) end before anything can be full.
_FEW_PACKETS = 16

# Causes that sums that cost nothing would leave.
_NOT_OF_SUMS = ("program", "gloo", "ranks")
# The cause "loss" of jobs on shared slots. A part of a sum waits in a slot; if the rest comes past it, because another
# job has the slot or because of a loss, the servers have the part sent again.
_LOSS_OF_SLOTS = Cause(
    "contributions sent again, and silence before them: other jobs had the slots, or packets were lost",
    "The switch's counters tell: `slot_collided`, `slot_evicted` and `slot_expired` are competition. Against it help a "
    "priority, more shared slots, or aggregation = leased; else find where packets are dropped.",
)
# If servers sum more than this of such a job, their packets are worth saying.
_SHARE_OF_SERVERS = 0.1


@dataclass(frozen=True)
class Explanation:
    """Where the time went. ``str()`` gives a report.

    verdict: the cause with the largest share, a key of `shares`; ``"fallback"`` for a group that has fallen back,
            ``"local"`` for one of one rank.
    shares: cause -> share of the time; the sum is 1.
    figures: the figures of `inagg.stats` from which they were computed.
    """

    verdict: str
    shares: Mapping[str, float]
    figures: Mapping[str, Any]

    @property
    def causes(self) -> list[str]:
        """Causes with a share of 5% or more, the largest first."""
        named = [cause for cause, share in self.shares.items() if share >= WORTH_SAYING]
        return sorted(named, key=self.shares.__getitem__, reverse=True)

    @property
    def at_most(self) -> float:
        """How much faster the program is at most with sums that cost nothing (Amdahl's law), of ranks as late as they
        are. 1 for a group without a job."""
        kept = sum(self.shares.get(cause, 0.0) for cause in _NOT_OF_SUMS)
        return gain(1 - kept) if self.shares else 1.0

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if named := self.figures.get("taken_over"):
            backend = "no backend" if named == "undefined" else f"the backend {named!r}"
            yield _filled(f"the program named {backend}; INAGG_TAKE_OVER made this group inagg's")
        if self.verdict == "fallback":
            yield _filled(f"gloo does the sums of this group: {self.figures['reason']}")
            yield from map(_filled, _late_ranks(self.figures))
            return
        if self.verdict == "local":
            yield "this group has one rank, so its sums are its own tensors: nothing is sent"
            return
        job = name_job(self.figures["job"], self.figures["job_name"])
        yield _filled(f"{job}, {name_ranks([self.figures['rank']], self.figures['places'])}")
        yield f"{'share':>6}  cause"
        for cause in self.causes:
            meaning = _cause(cause, self.figures).meaning
            share = f"{self.shares[cause]:6.0%}  "
            yield _filled(f"{cause}: {meaning}{_detail(cause, self.figures)}", first=share, indent=8)
            yield _filled(_remedy(cause, self.figures), indent=8)
        yield ""
        yield _filled(promise(self.at_most))
        yield from map(_filled, _summary(self.figures))


def _filled(text: str, *, first: str = "", indent: int = 0) -> str:
    """Lines of at most 80 columns."""
    return textwrap.fill(
        text,
        _COLUMNS,
        initial_indent=first or " " * indent,
        subsequent_indent=" " * (indent or 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def explain_figures(figures: Mapping[str, Any]) -> Explanation:
    """The explanation of figures of `inagg.stats`."""
    if figures["path"] == "inner":
        return Explanation("fallback", {}, figures)
    if figures["path"] == "local":
        return Explanation("local", {}, figures)
    parts = shares(figures)
    return Explanation(max(parts, key=parts.__getitem__), parts, figures)


def shares(figures: Mapping[str, Any]) -> dict[str, float]:
    """Cause -> its share of ``elapsed_s``. The time of a group that has done nothing is all the program's."""
    times = dict.fromkeys(OF_GROUP, 0.0)
    states = (figures["beginning_s"], figures["window_s"], figures["answers_s"], figures["device_s"])
    elapsed = max(figures["elapsed_s"], sum(states))
    if elapsed <= 0:
        return times | {"program": 1.0}
    beginning, window, answers, times["device"] = states

    # All ranks wait for the last one to begin a sum. One round trip of that is the path of the first packets. For small
    # sums, waking the user's thread takes time too, about as much as the packet thread runs.
    sums = figures["collectives_completed"]
    small = figures["packets_received"] < _FEW_PACKETS * sums
    awake = figures["processor_s"] + figures["processor_wait_s"]
    inevitable = sums * figures["srtt_s"] + (awake if small else 0.0)
    times["ranks"] = max(0.0, min(figures["waited_s"], beginning) - inevitable)
    answers += beginning - times["ranks"]

    # In a sum that all ranks have begun, silence is lost time. Retransmissions take their share of the path's time.
    lossless = figures["path"] == "rounds"  # TCP is: a rank only waits for a round
    silent = 0.0 if lossless else min(figures["silent_s"], window + answers)
    answers, window = answers - min(silent, answers), window - max(silent - answers, 0.0)
    again = window * _sent_again(figures)
    window -= again
    times["loss"] = silent + again

    times["latency"] = window + answers
    if not small:
        _divide_transfer(times, figures, window, answers)

    # Without loss the last answers of a sum take one round trip. What takes longer where packets are lost is repair.
    if not lossless and _sent_again(figures) > LOSSY:
        repair = max(0.0, times["latency"] - sums * figures["srtt_s"])
        times["latency"] -= repair
        times["loss"] += repair

    # While no sum is in progress, collectives of gloo may be.
    rest = elapsed - sum(states)
    gloo = sum(call["seconds"] for kind, call in figures["calls"].items() if kind not in REDUCTIONS)
    times["gloo"] = min(gloo, rest)
    times["program"] = rest - times["gloo"]
    if small:
        between = min(times["program"], inevitable)
        times["program"] -= between
        times["latency"] += between
    return {cause: seconds / elapsed for cause, seconds in times.items()}


def _divide_transfer(
    times: dict[str, float], figures: Mapping[str, Any], window: float, answers: float
) -> None:
    """Divide the time of moving data: seconds in which the window held packets back, and in which it did not."""
    queueing = figures["srtt_s"] - figures["least_rtt_s"]
    full = figures["window"] < figures["window_limit"] or queueing > _QUEUE * figures["srtt_s"]
    rate = (figures["link_rate"] or 8 * figures["peak_rate"]) / 8
    if full and rate > 0:  # only a faster link shortens that
        times["link"] = min(window, _received_frames(figures) / rate)
        window -= times["link"]

    # In the rest the thread runs, waits for a processor, or sleeps until packets come. The first two are taken from
    # window and answers in proportion, because the state in which it woke up is unknown.
    rest = window + answers
    awake = figures["processor_s"] + figures["processor_wait_s"]
    times["processors"] = min(awake / figures["packet_threads"], rest)
    asleep = 1 - times["processors"] / rest if rest > 0 else 0.0
    # A round trip is the least RTT plus the time in queues; this host attributes the queues to the switch.
    queued = answers * asleep * queueing / figures["srtt_s"] if full and queueing > 0 else 0.0
    times["latency"] = answers * asleep - queued
    small_buffer = figures["receive_buffer_bytes"] < figures["receive_buffer_wanted_bytes"]
    times["switch" if full else "receive buffer" if small_buffer else "slots"] = window * asleep + queued


def _sent_again(figures: Mapping[str, Any]) -> float:
    """The share of contributions that are retransmissions."""
    share: float = figures["retransmits"] / max(figures["packets_sent"] - figures["queries"], 1)
    return share


def _received_frames(figures: Mapping[str, Any]) -> float:
    """Received bytes of Ethernet frames."""
    size: float = figures["bytes_received"] + _FRAME_HEADERS * figures["packets_received"]
    return size


def _cause(cause: str, figures: Mapping[str, Any]) -> Cause:
    return _LOSS_OF_SLOTS if cause == "loss" and figures.get("aggregation") == SHARED else OF_GROUP[cause]


def _remedy(cause: str, figures: Mapping[str, Any]) -> str:
    remedy = _cause(cause, figures).remedy
    narrower = [str(bits) for bits in (16, 8) if bits < figures["narrowest_lane_bits"]]
    if cause in ("link", "processors") and narrower:
        remedy = f"{remedy} Or lane_bits of {' or '.join(narrower)} (half floats: half_lane_bits)."
    places = _summed_in(figures)
    if cause in ("link", "processors", "switch") and places and 1 - places["switches"] > _SHARE_OF_SERVERS:
        remedy += (
            f" Servers have summed {1 - places['switches']:.0%}, over the same links: a priority or more shared slots "
            "help."
        )
    return remedy


def _summed_in(figures: Mapping[str, Any]) -> dict[str, float]:
    """The shares of a job's chunks by where they were summed; empty if it is not on shared slots, or has none."""
    chunks = figures.get("chunks") or {}
    total = sum(chunks.values())
    if figures.get("aggregation") != SHARED or total == 0:
        return {}
    return {place: count / total for place, count in chunks.items()}


def _detail(cause: str, figures: Mapping[str, Any]) -> str:
    late = figures.get("straggler")
    if cause == "ranks" and late is not None and late["rank"] != figures["rank"]:
        who = name_ranks([late["rank"]], figures.get("places"))
        return f"; the last one is {who}, {_seconds(late['late_s'])} late on average"
    if cause == "program" and late is not None and late["rank"] == figures["rank"]:
        return f"; the others wait for this rank, {_seconds(late['late_s'])} a sum"
    if cause == "loss":
        return f"; {_sent_again(figures):.1%} of packets, {figures['probes']} silences"
    if cause in ("link", "switch") and figures["link_rate"] is not None:
        return f", {_bits(figures['link_rate'] / 8)}"
    if cause in ("slots", "receive buffer"):
        return f"; {figures['window_limit']} packets"
    if cause == "latency":
        sums = max(figures["collectives_completed"], 1)
        return (
            f"; {figures['bytes_received'] / sums / 1024:.1f} KiB a sum, RTT {figures['srtt_s'] * 1e3:.2f} ms"
        )
    return ""


def _summary(figures: Mapping[str, Any]) -> list[str]:
    reductions = [call for kind, call in figures["calls"].items() if kind in REDUCTIONS]
    count, size = (sum(call[name] for call in reductions) for name in ("count", "bytes"))
    busy = sum(figures[f"{state}_s"] for state in ("beginning", "window", "answers", "device"))
    goodput = size / busy if busy > 0 else 0.0
    received = _received_frames(figures) / busy if busy > 0 else 0.0
    # Sums shorter than a tenth of a second have no peak, or one of an earlier, slower period.
    peak = f", up to {_bits(figures['peak_rate'])}" if figures["peak_rate"] >= received else ""
    lines = [
        f"{count:.0f} sums, {_bytes(size)} in all, in {figures['elapsed_s']:.3g} s; in progress {busy:.3g} s: "
        f"goodput {_bytes(goodput)}/s",
        f"received {_bits(received)} in that time{peak}; "
        f"RTT {figures['srtt_s'] * 1e3:.2f} ms, at least {figures['least_rtt_s'] * 1e3:.2f} ms; "
        f"window {figures['window']} of {figures['window_limit']} packets",
    ]
    lines += _late_ranks(figures)
    if (longest := figures["longest_wait"]) is not None:
        lines.append(_longest_wait(longest, figures))
    if places := _summed_in(figures):
        lines.append(
            f"of the job's chunks {places['switches']:.0%} were summed in switches, {places['both']:.0%} in part, "
            f"{places['servers']:.0%} in servers"
        )
    if figures["path"] == "rounds":
        lines.append("neither a switch nor servers are left, so the ranks sum over gloo")
    if changes := figures.get("changes"):
        times = "once" if len(changes) == 1 else f"{len(changes)} times"
        seconds = sum(change["seconds"] for change in changes)
        lines.append(
            f"what sums was lost {times}: {changes[-1]['why']}. Sums went on after {seconds:.1f} s in all, on "
            f"{changes[-1]['to']}"
        )
    if (inner := figures["inner_reductions"]) > 0:
        lines.append(f"gloo did {inner} more: types or operations that the switch does not sum")
    return lines


def _late_ranks(figures: Mapping[str, Any]) -> list[str]:
    return [
        f"the others wait {_seconds(late['late_s'])} a sum for {_which(late['rank'], figures)}: {late['cause']}"
        for late in figures.get("late", ())
    ]


def _which(rank: int, figures: Mapping[str, Any]) -> str:
    return "this rank" if rank == figures["rank"] else name_ranks([rank], figures["places"])


def _longest_wait(longest: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    text = f"longest wait of a rank: {_seconds(longest['waited_s'])}"
    if (rank := longest["rank"]) is not None:
        text += f", for {_which(rank, figures)}"
    if number := longest["collective"]:
        text += f", in collective {number}"
    if call := longest["call"]:
        text += f": {call}"
    return text


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def _bits(bytes_a_second: float) -> str:
    bits = bytes_a_second * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
