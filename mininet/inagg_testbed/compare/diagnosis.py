# SPDX-License-Identifier: Apache-2.0
"""What limits a training, from its figures: docs/compare.md has the rules, `inagg.causes` thresholds and remedies.

A step is computation, and waiting that is not overlapped with computation. The computation is measured. The waiting is
divided: for inagg's jobs as their packet threads have seen it, for others among late ranks and what links, switch,
threads and round trips need. What is left is loss if packets were sent again.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from inagg.causes import BUSY, CAUSES, LOSSY, OVERFLOWS, WORTH_SAYING, gain, promise
from inagg_testbed.compare.figures import ComparisonFigures, Link, RunFigures

# Ethernet, IPv4 and TCP headers of full frames, over their payload: 66 of 1514 bytes. inagg's frames have 62 of 1086.
_HEADERS = 1.05
# The least time after which Linux's TCP sends again without an answer (TCP_RTO_MIN).
_TIMEOUT_MS = 200.0
# inagg's causes whose time is waiting for the sum.
_OF_SUMS = ("link", "switch", "latency", "loss", "slots", "receive buffer", "processors", "ranks", "device")
# Those and what waits beside them, for what gloo does.
_OF_WAITING = (*_OF_SUMS, "gloo")
# What also helps a training that may choose its architecture.
_CHOICES: Mapping[str, str] = {
    "link": "Or move fewer bytes: inagg, narrower lanes, local:H.",
    "latency": "Or take fewer steps that wait for one another: inagg has one; local:H sums seldom.",
    "ranks": "inagg.hooks.Deadline does not wait for it.",
    "processors": "Use fewer workers on this machine: hosts, switch and packet threads share its processors.",
    "switch": "Give the switch a processor of its own, or more --threads.",
}

Times = dict[str, tuple[float, str]]  # by cause, ms of a step, and what is known of it


@dataclass(frozen=True)
class Found:
    """A cause. share: of the step. detail: what is known of it. of_job: of inagg, which packet threads serve."""

    name: str
    share: float
    detail: str = ""
    of_job: bool = False

    @property
    def remedy(self) -> str:
        """What to change."""
        general = "" if self.name == "processors" and not self.of_job else CAUSES[self.name].remedy
        return " ".join(filter(None, (general, _CHOICES.get(self.name))))

    @property
    def gain(self) -> float:
        """How much faster a step is at most without the cause."""
        return gain(self.share)


@dataclass(frozen=True)
class Diagnosis:
    """causes: the largest first, from 5% of a step on. at_most: how much faster a step can become at most by sums that
    cost nothing (Amdahl's law), of ranks as late as they are."""

    way: str
    causes: tuple[Found, ...]
    at_most: float

    def __str__(self) -> str:
        shares = ", ".join(f"{cause.name} {cause.share:.0%}{cause.detail}" for cause in self.causes)
        return f"{self.way}: {shares}; {promise(self.at_most)}"

    @property
    def remedy(self) -> str:
        """What helps against the largest cause."""
        return self.causes[0].remedy if self.causes else ""


def diagnose(run: RunFigures, rate_bps: int | None) -> Diagnosis:
    """Divide a step. rate_bps: of the hosts' links where the run does not say it; None: not shaped."""
    parts = run.parts_ms
    step = parts.computation + parts.waited + parts.other
    if step <= 0:
        return Diagnosis(run.way, (), 1.0)
    loading = min(run.loading_ms, parts.other)
    waiting, kept_ms = _of_inagg(run, rate_bps) if run.shares else _of_others(run, rate_bps)
    times: Times = {
        "computation": (parts.ran, ""),
        "processors": (parts.queued, ""),
        "data loading": (loading, ""),
        "other": (parts.other - loading, ""),
    }
    for name, (ms, detail) in waiting.items():
        _add(times, name, ms, detail)
    found = (Found(name, ms / step, detail, bool(run.shares)) for name, (ms, detail) in times.items())
    causes = sorted((cause for cause in found if cause.share >= WORTH_SAYING), key=lambda cause: -cause.share)
    return Diagnosis(run.way, tuple(causes), gain((parts.waited - kept_ms) / step))


def _add(times: Times, name: str, ms: float, detail: str = "") -> None:
    before, known = times.get(name, (0.0, ""))
    times[name] = before + ms, detail or known


def _of_others(run: RunFigures, rate_bps: int | None) -> tuple[Times, float]:
    """Divide the time that a step waits, without a job of inagg. Each cause takes what it needs of what is left.

    Returns also the part that sums that cost nothing would leave: ranks stay as late as they are.
    """
    left, kept = run.parts_ms.waited, 0.0
    found: Times = {}
    if late := _late(run):
        # Each sum of a step waits for the rank, as long as it is late with the first.
        left -= (kept := min(left, late[1] * max(run.sums, 1)))
        _add(found, late[0], kept, late[2])
    lossy = run.resent > LOSSY
    left -= (lost_ms := min(left, _TIMEOUT_MS * run.timeouts * _exposed(run)) if lossy else 0.0)
    for name, ms, detail in _needs(run, rate_bps):
        left -= (ms := min(left, ms * _exposed(run)))
        _add(found, name, ms, detail)
    if lossy:
        name, detail = _loss(run)
        _add(found, name, lost_ms + left, detail)
    else:
        _add(found, "processors" if run.idle < BUSY else "other", left)
    return found, kept


def _exposed(run: RunFigures) -> float:
    """The share of the communication that the program waits for. It is the same of all needs."""
    parts = run.parts_ms
    return parts.waited / parts.communication if parts.communication > 0 else 0.0


def _needs(run: RunFigures, rate_bps: int | None) -> Iterator[tuple[str, float, str]]:
    """What a step's communication needs, in ms: its bytes, and its round trips; then threads that wait for processors.

    Links, switch and threads work on the bytes at the same time, so the slowest of them counts. While a thread waits, a
    link may still be busy with what is queued, so this waiting explains only what is left.
    """
    transfers: Times = {
        "switch": (run.switch_ran_ms, _of_switch(run)),
        "processors": (run.serving_ran_ms, ""),
    }
    if (link := _link_need(run, rate_bps)) is not None:
        transfers["link"] = link
    slowest = max(transfers, key=transfers.__getitem__)
    yield slowest, *transfers[slowest]
    if run.least_rtt_ms:
        # gloo's receiver tells the sender where to put a message: each takes a round trip.
        trips = run.theory_steps * max(run.sums, 1)
        detail = f" ({trips:.3g} round trips of {run.least_rtt_ms:.3g} ms)"
        yield "latency", trips * run.least_rtt_ms, detail
    yield "switch", run.switch_queued_ms, _of_switch(run)
    yield "processors", run.serving_queued_ms, ""


def _of_switch(run: RunFigures) -> str:
    return f" (its thread ran {run.switch_ran_ms:.0f} ms, and waited {run.switch_queued_ms:.0f} ms for a processor)"


def _link_need(run: RunFigures, rate_bps: int | None) -> tuple[float, str] | None:
    """How long the slowest link works. A host's link carries what theory says and its headers, one between switches
    what was counted. None: no link has a rate."""
    hosts = [link for link in run.links if ":" not in link.lower]
    rates = {link.lower: link.rate_bps or rate_bps or math.inf for link in hosts} or {
        "": rate_bps or math.inf
    }
    slowest, usual = min(rates.values()), statistics.median_high(rates.values())
    needs = []
    if slowest < math.inf:
        named = ", ".join(host for host, rate in rates.items() if rate < usual)
        size = run.theory_bytes * _HEADERS
        needs.append(_transfer(size, run.theory_bytes, slowest, f" at {named}" if named else ""))
    for link in run.links:
        if link not in hosts and link.rate_bps:
            carried = max(link.up, link.down) / (run.steps + 1)  # weights are spread once, at the start
            needs.append(_transfer(carried, carried, link.rate_bps, f" at {link.lower}-{link.upper}"))
    return max(needs, default=None)


def _transfer(size: float, said: float, rate_bps: float, where: str) -> tuple[float, str]:
    ms = 8e3 * size / rate_bps
    return ms, f" ({ms:.0f} ms for {said / 1e6:.3g} MB{where})"


def _late(run: RunFigures) -> tuple[str, float, str] | None:
    """The cause, the lateness in a sum, and the name of the rank that others wait for. The network is no rank's."""
    for one in run.late:
        if one.cause != "network":
            return (
                "processors" if one.cause == "processors" else "ranks",
                one.late_ms,
                _named(one.rank, one.cause),
            )
    return None


def _named(rank: int, cause: str) -> str:
    return f" (rank {rank}: {cause})"


def _loss(run: RunFigures) -> tuple[str, str]:
    """A queue if the queues of links have dropped so many of the packets that were sent again, else loss."""
    dropped = sum(link.dropped for link in run.links)
    if dropped and dropped >= OVERFLOWS * run.resent_packets:
        worst = max(run.links, key=lambda link: link.dropped)
        return "queue", f" (at {_place(worst)}: {worst.dropped} packets dropped, {run.resent:.1%} sent again)"
    return "loss", f" ({run.resent:.1%} of packets sent again)"


def _place(link: Link) -> str:
    return f"{link.lower}-{link.upper}" if ":" in link.lower else link.lower


def _of_inagg(run: RunFigures, rate_bps: int | None) -> tuple[Times, float]:
    """Divide the time that a step waits as the packet threads have seen it. A rank sees its own link only, so what it
    sees as the switch may be the link of another host. Returns also what sums that cost nothing would leave."""
    waited = run.parts_ms.waited
    if sum(run.shares.get(name, 0.0) for name in _OF_SUMS) <= 0:
        return _of_others(run, rate_bps)
    shares = {name: run.shares.get(name, 0.0) for name in _OF_WAITING}
    if run.groups:  # the shares are those of one group of a mesh, and stages send over gloo
        times = {
            kind: sum(each.ms for each in run.groups if (each.path == "gloo") == kind)
            for kind in (True, False)
        }
        of_sums = sum(shares[name] for name in _OF_SUMS)
        shares["gloo"] = of_sums * times[True] / max(times[False], 1e-9)
    total = sum(shares.values())
    seen = {name: waited * share / total for name, share in shares.items()}
    kept = seen["ranks"] + seen["gloo"]
    late = _late(run)
    found: Times = {}
    if (link := _link_need(run, rate_bps)) is not None:
        moved = min(seen["switch"], max(0.0, link[0] * _exposed(run) - seen["link"]))
        seen["switch"] -= moved
        _add(found, "link", moved, link[1])
    for name, ms in seen.items():
        detail = ""
        if name == "ranks":
            name, detail = (late[0], late[2]) if late else ("processors" if run.idle < BUSY else name, "")
        elif name == "loss":
            name, detail = _loss(run)
        elif name == "switch":
            detail = _of_switch(run)
        _add(found, name, ms, detail)
    return found, kept


def diagnoses(comparison: ComparisonFigures) -> Iterator[Diagnosis]:
    """Of each architecture's first training."""
    for way in comparison.ways:
        yield diagnose(comparison.of(way)[0], comparison.rate_bps)
