# SPDX-License-Identifier: Apache-2.0
"""`inagg bench straggler`: what the other ranks send while the last rank sleeps before it joins a collective.

Figures:
- ranks, one entry for each of the other ranks: samples (seconds since the collective began, packets sent, retransmitted
  packets), and packets and resent, which are the last sample, shortly before the late rank wakes up;
- window: packets that a worker may have in flight;
- prompts_ms, prompt_ms: times, on the slowest rank, of the same all-reduce without a late rank, and their median;
- behind_ms: time from the late rank's wake-up until the last rank has its result.
"""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inagg_testbed.bench.plan import LANE_BITS, check_slots
from inagg_testbed.bench.settings import settings_of
from inagg_testbed.errors import ConfigurationError, WrongResultError
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.workers import Event

SAMPLE_S = 0.25
_START_UP_S = 180.0


@dataclass(frozen=True, kw_only=True)
class StragglerBench:
    """What to measure. slots None: the number that the links need."""

    workers: int
    elements: int = 1_000_000
    sleep_s: float = 5.0
    lane_bits: int = 32
    slots: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.workers < 2:
            raise ConfigurationError("one worker waits for nobody: want 2 or more")
        if not 2 * SAMPLE_S <= self.sleep_s < math.inf:
            raise ConfigurationError(f"a sleep of {self.sleep_s:g} s: want {2 * SAMPLE_S:g} or more")
        if self.lane_bits not in LANE_BITS:
            raise ConfigurationError(f"{self.lane_bits} lane bits: want 32, 16 or 8")
        check_slots(self.slots)


def run_straggler(bench: StragglerBench, testbed: Testbed) -> dict[str, Any]:
    """Measure on a testbed that is up. Raises LauncherError; WrongResultError for a wrong sum."""
    events: list[tuple[int, Event]] = []
    command = [
        sys.executable,
        "-m",
        "inagg_testbed.bench.straggler_worker",
        str(bench.elements),
        str(bench.sleep_s),
    ]
    group = testbed.launch(
        [*command, "{events}"],
        name=f"straggler-{len(testbed.groups) + 1}",
        workers=bench.workers,
        slots=bench.slots,
        environment={"INAGG_LANE_BITS": str(bench.lane_bits)},
    )
    group.follow(
        lambda rank, event: events.append((rank, event)),
        timeout_s=_START_UP_S + bench.sleep_s,
        watch=testbed.services,
    )
    return {"settings": settings_of(testbed), **summarise(bench, testbed.slots(bench.slots), events)}


def summarise(bench: StragglerBench, window: int, events: Sequence[tuple[int, Event]]) -> dict[str, Any]:
    """Compute the figures from the events. Raises WrongResultError."""
    ends = {rank: event for rank, event in events if event["event"] == "end"}
    wrong = [rank for rank, event in ends.items() if event["wrong"]]
    if wrong:
        raise WrongResultError(f"ranks {wrong} have wrong sums after one rank was late")
    ranks = []
    for rank in range(bench.workers - 1):
        samples = [
            [event["seconds"], event["packets_sent"], event["retransmits"]]
            for sender, event in events
            if sender == rank and event["event"] == "sample"
        ]
        _, packets, resent = samples[-1]
        ranks.append({"rank": rank, "packets": packets, "resent": resent, "samples": samples})
    prompt: dict[int, list[float]] = {}
    for rank, event in events:
        if event["event"] == "prompt":
            prompt.setdefault(rank, []).append(event["seconds"])
    prompts_ms = [seconds * 1e3 for seconds in map(max, zip(*prompt.values(), strict=True))]
    return {
        "workers": bench.workers,
        "elements": bench.elements,
        "lane_bits": bench.lane_bits,
        "sleep_s": bench.sleep_s,
        "late_rank": bench.workers - 1,
        "window": window,
        "ranks": ranks,
        "prompt_ms": statistics.median(prompts_ms),
        "prompts_ms": prompts_ms,
        "behind_ms": (max(event["seconds"] for event in ends.values()) - bench.sleep_s) * 1e3,
    }


def table(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: what each waiting rank sent."""
    header = ["rank", "packets sent", "sent again", "sent again a second"]
    body = []
    for rank in figures["ranks"]:
        seconds = rank["samples"][-1][0]
        body.append(
            [str(rank["rank"]), str(rank["packets"]), str(rank["resent"]), f"{rank['resent'] / seconds:.1f}"]
        )
    return header, body


def title(figures: dict[str, Any]) -> str:
    """Title of the table."""
    return (
        f"rank {figures['late_rank']} of {figures['workers']} joins {figures['sleep_s']:g} s late; window of"
        f" {figures['window']} packets; all-reduce done {figures['behind_ms']:.0f} ms after it woke, prompt ones in"
        f" {figures['prompt_ms']:.0f} ms\ninputs: {figures['elements']:,} float32 ({4 * figures['elements']:,} bytes),"
        " all rank + 1"
    )
