# SPDX-License-Identifier: Apache-2.0
"""Why a group is not faster: the time it took, divided among what it went into.

The transport's thread keeps the account (``beginning_s``, ``window_s``, ``answers_s``, ``device_s``, as tcp_info does
for TCP), the engine how long it waited for other ranks and in silence, the kernel how long the thread ran and waited
for a processor. `shares` makes of these parts that add up to the whole; the largest is the verdict. docs/performance.md
has the rules and what to do about each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FRAME_HEADERS = 42  # bytes: Ethernet, IPv4, UDP
_REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_WORTH_SAYING = 0.05
# Of the RTT, that is time in queues: with so much the path is full, and a larger window would fill queues alone.
_QUEUE = 0.5
# Sums of fewer packets than a window has at least (window.hpp) are over before anything can be full.
_FEW_PACKETS = 16

# Cause -> what it is, and what to do about it.
CAUSES: Mapping[str, tuple[str, str]] = {
    "program": (
        "no collective was under way",
        "Sums are not what takes the time. Look at computation and data loading, with torch.profiler.",
    ),
    "gloo": (
        "collectives that gloo does",
        "Only sums go through the switch (docs/backend.md has the table); `calls` says which others there are.",
    ),
    "ranks": (
        "waiting for other ranks to begin a sum",
        "Find out why that rank is late: more data, a slower or busier machine.",
    ),
    "loss": (
        "packets sent again, and silence before that",
        "Find where packets are dropped: counters of the switch, `ip -s link`, queues of the ports. "
        "Fewer slots if a queue overflows.",
    ),
    "processors": (
        "the thread that handles packets ran, or waited for a processor",
        "Give it a processor of its own (`cpus`) or jumbo frames; compute with fewer threads.",
    ),
    "link": (
        "the link of this host carried results at its rate",
        "A faster link.",
    ),
    "switch": (
        "results came more slowly than the link carries them",
        "The switch's processor, its other links, or a worker that is slow to send or receive: see their processors.",
    ),
    "slots": (
        "the window was at its limit while the path was not full",
        "Ask for more `slots`; if fewer were granted, other jobs have them.",
    ),
    "receive buffer": (
        "the window was at the limit that the kernel's receive buffer sets",
        "Raise net.core.rmem_max to receive_buffer_wanted_bytes or more.",
    ),
    "latency": (
        "round trips: all that could be sent was on its way",
        "Sum fewer and larger tensors (DDP's bucket_cap_mb), or several at once (async_op=True).",
    ),
    "device": (
        "waiting for the GPU to scan and pack",
        "The GPU is busy with other kernels, or the bus with other copies; a trace shows which.",
    ),
}


@dataclass(frozen=True)
class Explanation:
    """Where the time went. As text, a report.

    verdict: the cause with the largest share, a key of `shares`; for a group that has fallen back, ``"fallback"``.
    shares: of the time, by cause; together they are 1.
    figures: what they were computed from, as `inagg.stats` gives it.
    """

    verdict: str
    shares: Mapping[str, float]
    figures: Mapping[str, Any]

    @property
    def causes(self) -> list[str]:
        """Those worth a look, the largest first."""
        named = [cause for cause, share in self.shares.items() if share >= _WORTH_SAYING]
        return sorted(named, key=self.shares.__getitem__, reverse=True)

    def __str__(self) -> str:
        if self.verdict == "fallback":
            return f"gloo does the sums of this group: {self.figures['reason']}"
        lines = [f"{'share':>6}  cause"]
        for cause in self.causes:
            meaning, _ = CAUSES[cause]
            lines += [f"{self.shares[cause]:6.0%}  {cause}: {meaning}{_detail(cause, self.figures)}"]
            lines += [f"{'':8}{_remedy(cause, self.figures)}"]
        return "\n".join([*lines, *_summary(self.figures)])


def explain_figures(figures: Mapping[str, Any]) -> Explanation:
    """What `inagg.explain` returns, from what `inagg.stats` does."""
    if figures["path"] == "inner":
        return Explanation("fallback", {}, figures)
    parts = shares(figures)
    return Explanation(max(parts, key=parts.__getitem__), parts, figures)


def shares(figures: Mapping[str, Any]) -> dict[str, float]:
    """Cause -> its share of ``elapsed_s``. A group that has done nothing has spent it all in the program."""
    times = dict.fromkeys(CAUSES, 0.0)
    states = (figures["beginning_s"], figures["window_s"], figures["answers_s"], figures["device_s"])
    elapsed = max(figures["elapsed_s"], sum(states))
    if elapsed <= 0:
        return times | {"program": 1.0}
    beginning, window, answers, times["device"] = states

    # All ranks wait for the last to begin a sum. A round trip of that is the way of the first packets. Where sums are
    # small, waking up for each takes time here and there as well, about as much as it takes the packet thread.
    sums = figures["collectives_completed"]
    small = figures["packets_received"] < _FEW_PACKETS * sums
    awake = figures["processor_s"] + figures["processor_wait_s"]
    inevitable = sums * figures["srtt_s"] + (awake if small else 0.0)
    times["ranks"] = max(0.0, min(figures["waited_s"], beginning) - inevitable)
    answers += beginning - times["ranks"]

    # Of a sum that all have begun, silence is lost time. What is sent again takes its part of the path.
    silent = min(figures["silent_s"], window + answers)
    answers, window = answers - min(silent, answers), window - max(silent - answers, 0.0)
    again = window * figures["retransmits"] / max(figures["packets_sent"], 1)
    window -= again
    times["loss"] = silent + again

    times["latency"] = window + answers
    if not small:
        _divide_transfer(times, figures, window, answers)

    # While none is under way, others may be, which gloo does.
    rest = elapsed - sum(states)
    gloo = sum(call["seconds"] for kind, call in figures["calls"].items() if kind not in _REDUCTIONS)
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
    """What moving the data took: seconds in which the window held packets back, and in which it did not."""
    queueing = figures["srtt_s"] - figures["least_rtt_s"]
    full = figures["window"] < figures["window_limit"] or queueing > _QUEUE * figures["srtt_s"]
    rate = (figures["link_rate"] or 8 * figures["peak_rate"]) / 8
    if full and rate > 0:  # nothing but a faster link makes that shorter
        times["link"] = min(window, _received_frames(figures) / rate)
        window -= times["link"]

    # In the rest the thread works, or would if there were a processor, or sleeps until packets come. The first two take
    # from window and answers alike, since which it was when it woke up is not known.
    rest = window + answers
    times["processors"] = min(figures["processor_s"] + figures["processor_wait_s"], rest)
    asleep = 1 - times["processors"] / rest if rest > 0 else 0.0
    # A round trip is its least time, and the time in queues: those of the switch, as far as this host can tell.
    queued = answers * asleep * queueing / figures["srtt_s"] if full and queueing > 0 else 0.0
    times["latency"] = answers * asleep - queued
    small_buffer = figures["receive_buffer_bytes"] < figures["receive_buffer_wanted_bytes"]
    times["switch" if full else "receive buffer" if small_buffer else "slots"] = window * asleep + queued


def _received_frames(figures: Mapping[str, Any]) -> float:
    """Bytes of Ethernet frames."""
    size: float = figures["bytes_received"] + _FRAME_HEADERS * figures["packets_received"]
    return size


def _remedy(cause: str, figures: Mapping[str, Any]) -> str:
    remedy = CAUSES[cause][1]
    narrower = [str(bits) for bits in (16, 8) if bits < figures["lane_bits"]]
    if cause in ("link", "processors") and narrower:
        return f"{remedy} Or lane_bits of {' or '.join(narrower)}."
    return remedy


def _detail(cause: str, figures: Mapping[str, Any]) -> str:
    late = figures.get("straggler")
    if cause == "ranks" and late is not None and late["rank"] != figures["rank"]:
        return f"; the last is rank {late['rank']}, {late['late_s'] * 1e3:.1f} ms late on average"
    if cause == "program" and late is not None and late["rank"] == figures["rank"]:
        return f"; the others wait for this rank, {late['late_s'] * 1e3:.1f} ms a sum"
    if cause == "loss":
        share = figures["retransmits"] / max(figures["packets_sent"], 1)
        return f"; {share:.1%} of packets, {figures['probes']} silences"
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
    reductions = [call for kind, call in figures["calls"].items() if kind in _REDUCTIONS]
    count, size = (sum(call[name] for call in reductions) for name in ("count", "bytes"))
    busy = sum(figures[f"{state}_s"] for state in ("beginning", "window", "answers", "device"))
    goodput = size / busy if busy > 0 else 0.0
    received = _received_frames(figures) / busy if busy > 0 else 0.0
    # Of sums that are over within a tenth of a second no peak was measured, or one of an earlier, slower stretch.
    peak = f", up to {_bits(figures['peak_rate'])}" if figures["peak_rate"] >= received else ""
    lines = [
        "",
        f"{count:.0f} sums of {size / 1e6:.3g} MB in {figures['elapsed_s']:.3g} s, under way {busy:.3g} s: "
        f"goodput {goodput / 1e6:.3g} MB/s",
        f"received {_bits(received)} meanwhile{peak}; "
        f"RTT {figures['srtt_s'] * 1e3:.2f} ms, at least {figures['least_rtt_s'] * 1e3:.2f} ms; "
        f"window {figures['window']} of {figures['window_limit']} packets",
    ]
    if (inner := figures["inner_reductions"]) > 0:
        lines.append(f"gloo did {inner} more: types or operations that the switch does not sum")
    return lines


def _bits(bytes_a_second: float) -> str:
    bits = bytes_a_second * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"
