# SPDX-License-Identifier: Apache-2.0
"""What limits a training, from its figures: docs/compare.md has the rules.

A step is computation, and waiting that is not overlapped with computation. The computation is measured. The waiting is
divided: for inagg's jobs as their packet threads have seen it, for others first by what ranks report of late ranks, and
then by what theory predicts of links and round trips. What is left has no name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from inagg_testbed.compare.figures import ComparisonFigures, RunFigures

# Ethernet, IPv4 and TCP headers of full frames, over their payload: 66 of 1514 bytes. inagg's frames have 62 of 1086.
_HEADERS = 1.05
# From this share of packets that are sent again on, loss is what theory does not know.
_LOSSY = 0.002
# Below this share of a step a cause is not worth a line.
_WORTH_SAYING = 0.05
# inagg's causes whose time is waiting for the sum, by the limit that they are.
_OF_INAGG: Mapping[str, str] = {
    "link": "link",
    "switch": "switch",
    "latency": "latency",
    "loss": "loss",
    "slots": "queue",
    "receive buffer": "queue",
    "processors": "processors",
    "ranks": "ranks",
}

REMEDIES: Mapping[str, str] = {
    "computation": "a faster network cannot help; a faster processor, a smaller model or a smaller batch do",
    "processors": "use fewer workers on this machine, or more processors: hosts, switch and packet threads share them",
    "data loading": "more loader processes, or data closer to the ranks",
    "ranks": "find out why the rank is late; inagg.hooks.Deadline does not wait for it",
    "link": "fewer bytes on the busiest link: inagg, narrower lanes, local:H; or a faster link",
    "latency": "fewer dependent steps (inagg has one), larger buckets (DDP's bucket_cap_mb), local:H",
    "loss": "find where packets are dropped: queues of the ports, the links",
    "queue": "more slots, or a larger receive buffer (inagg.explain says which)",
    "switch": "more threads or a processor of its own for the switch; or another host's link is slow",
    "other": "the program slept without a sum under way: files, locks, or time that theory does not know",
}


@dataclass(frozen=True)
class Cause:
    """share: of the step. detail: what is known of it."""

    name: str
    share: float
    detail: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """causes: the largest first, from 5% of a step on. at_most: how much faster a step can become at most by sums that
    cost nothing (Amdahl's law), of ranks as late as they are."""

    way: str
    causes: tuple[Cause, ...]
    at_most: float

    def __str__(self) -> str:
        shares = ", ".join(f"{cause.name} {cause.share:.0%}{cause.detail}" for cause in self.causes)
        return f"{self.way}: {shares}; with sums that cost nothing a step is {self.at_most:.2f}x as fast"

    @property
    def remedy(self) -> str:
        """What helps against the largest cause."""
        return REMEDIES[self.causes[0].name] if self.causes else ""


def diagnose(run: RunFigures, rate_bps: int | None) -> Diagnosis:
    """Divide a step. rate_bps: of the hosts' links; None: not shaped."""
    parts = run.parts_ms
    step = parts.computation + parts.waited + parts.other
    if step <= 0:
        return Diagnosis(run.way, (), 1.0)
    loading = min(run.loading_ms, parts.other)
    times = {
        "computation": (parts.ran, ""),
        "processors": (parts.queued, ""),
        "data loading": (loading, ""),
        "other": (parts.other - loading, ""),
    }
    waiting = _waiting(run, rate_bps)
    gained = parts.waited - waiting.get("ranks", (0.0, ""))[0]  # late ranks stay late
    for name, (ms, detail) in waiting.items():
        before, known = times.get(name, (0.0, ""))
        times[name] = before + ms, detail or known
    causes = sorted(
        (
            Cause(name, ms / step, detail)
            for name, (ms, detail) in times.items()
            if ms / step >= _WORTH_SAYING
        ),
        key=lambda cause: -cause.share,
    )
    return Diagnosis(run.way, tuple(causes), step / max(step - gained, 0.01 * step))


def _waiting(run: RunFigures, rate_bps: int | None) -> dict[str, tuple[float, str]]:
    """Divide the time that a step waits, in ms. Each cause takes what it explains of what is left."""
    left = run.parts_ms.waited
    late = next((f" (rank {one.rank}: {one.cause})" for one in run.late if one.cause != "network"), "")
    seen: dict[str, float] = {}
    for cause, name in _OF_INAGG.items():
        seen[name] = seen.get(name, 0.0) + run.shares.get(cause, 0.0)
    if (total := sum(seen.values())) > 0:
        return {name: (left * share / total, late * (name == "ranks")) for name, share in seen.items()}
    found: dict[str, tuple[float, str]] = {}
    if late:
        # Each sum of a step waits for the rank, as long as it is late with the first.
        ms = min(left, next(one.late_ms for one in run.late if one.cause != "network") * max(run.sums, 1))
        found["ranks"] = ms, late
        left -= ms
    # Theory says how long the communication lasts; of that the program waits the same share everywhere.
    exposed = run.parts_ms.waited / run.parts_ms.communication if run.parts_ms.communication > 0 else 0.0
    if rate_bps:
        link_ms = 8e3 * run.theory_bytes * _HEADERS / rate_bps
        ms = min(left, link_ms * exposed)
        found["link"] = ms, f" ({link_ms:.0f} ms for {run.theory_bytes / 1e6:.3g} MB)"
        left -= ms
    if run.least_rtt_ms:
        # gloo's receiver tells the sender where to put a message: each takes a round trip.
        trips = run.theory_steps * max(run.sums, 1)
        ms = min(left, trips * run.least_rtt_ms * exposed)
        found["latency"] = ms, f" ({trips:.3g} round trips of {run.least_rtt_ms:.3g} ms)"
        left -= ms
    if run.resent > _LOSSY:
        found["loss"] = left, f" ({run.resent:.1%} of packets sent again)"
    else:
        found["other"] = left, ""
    return found


def diagnoses(comparison: ComparisonFigures) -> Iterator[Diagnosis]:
    """Of each architecture's first training."""
    for way in comparison.ways:
        yield diagnose(comparison.of(way)[0], comparison.rate_bps)
