# SPDX-License-Identifier: Apache-2.0
"""The targets of the data path, and whether the figures meet them. Other sums than in leased slots have none.

`rows` defines the ratios to gloo and to the same backend without loss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inagg_testbed.bench.plan import INAGG

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A target for links, workers and elements: how many times as fast as gloo each lane width shall be."""

    link: str
    workers: int
    elements: int
    ratios: Mapping[int, float]


GOALS = (
    Goal("unshaped", 2, 10_000_000, {32: 1.1, 16: 1.7, 8: 2.0}),
    Goal("unshaped", 4, 10_000_000, {32: 1.6, 16: 2.5, 8: 3.0}),
    Goal("unshaped", 8, 4_000_000, {32: 1.8, 16: 2.8, 8: 3.5}),
    Goal("1gbit", 2, 4_000_000, {32: 0.93, 16: 1.85, 8: 3.6}),
    Goal("1gbit", 4, 4_000_000, {32: 1.42, 16: 2.8, 8: 5.0}),
    Goal("100mbit", 8, 1_000_000, {32: 1.64, 16: 3.3, 8: 6.0}),
)
LATENCY_WORKERS, LATENCY_ELEMENTS, LATENCY_RATIO = 4, 64, 5.0
LINE_RATE = 0.93
LOSSES = {0.01: 1.25, 0.05: 2.0}
OF_MEMCPY = 0.5
PORTS_MPPS, PIPELINE_MPPS = 1.5, 3.0
# One window, and a few of its packets again whenever a timer fires, at growing intervals.
STRAGGLER_WINDOWS = 2


@dataclass(frozen=True)
class Verdict:
    """One target with the measured figure."""

    what: str
    target: str
    figure: str
    met: bool


def verdicts(experiments: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts on all targets whose experiment is present; experiments by the names of their files."""
    found: list[Verdict] = []
    if "allreduce" in experiments:
        found += _ratios(experiments["allreduce"]["rows"])
        found += _line_rates(experiments["allreduce"]["rows"])
        found += _packet_rates(experiments["allreduce"]["rows"])
    if "latency" in experiments:
        found += _latency(experiments["latency"]["rows"])
    if "loss" in experiments:
        found += _losses(experiments["loss"]["rows"])
    if "straggler" in experiments:
        found += _straggler(experiments["straggler"])
    if "numerics" in experiments:
        found += _numerics(experiments["numerics"]["rows"])
    if "switch" in experiments:
        found += _switch(experiments["switch"])
    return found


def place(row: Row) -> str:
    """A row's links, workers and elements."""
    return f"{row['link']}, N={row['workers']}, {row['elements']:,}"


def _ratios(rows: Sequence[Row]) -> Iterable[Verdict]:
    goals = {(goal.link, goal.workers): goal for goal in GOALS}
    for row in rows:
        goal = goals.get((row["link"], row["workers"]))
        if goal is None or row["backend"] != INAGG or row["ratio_to_gloo"] is None:
            continue
        wanted, ratio = goal.ratios[row["lane_bits"]], row["ratio_to_gloo"]
        what = f"{place(row)}: inagg:{row['lane_bits']} vs gloo"
        yield Verdict(what, f"{wanted:g}x", f"{ratio:.2f}x", ratio >= wanted)


def _line_rates(rows: Sequence[Row]) -> Iterable[Verdict]:
    for row in rows:
        fraction = row["line_rate_fraction"]
        if fraction is not None and (row["backend"], row["lane_bits"]) == (INAGG, 32):
            what = f"{place(row)}: inagg:32, line rate"
            yield Verdict(what, f"{LINE_RATE:g}", f"{fraction:.3f}", fraction >= LINE_RATE)


def _packet_rates(rows: Sequence[Row]) -> Iterable[Verdict]:
    """Packets into the switch through its ports: 32-bit lanes, unshaped links, 4 workers."""
    wanted = (INAGG, "unshaped", 4, 32, 4)
    for row in rows:
        if tuple(row[name] for name in ("backend", "link", "workers", "lane_bits", "words")) == wanted:
            mpps = row["packets"] / row["iterations"] / row["time_ms"]["p50"] / 1e3
            what = f"{place(row)}: Mpps into switch"
            yield Verdict(what, f"{PORTS_MPPS:g}", f"{mpps:.2f}", mpps >= PORTS_MPPS)


def _latency(rows: Sequence[Row]) -> Iterable[Verdict]:
    for row in rows:
        ratio = row["ratio_to_gloo"]
        if row["lane_bits"] is not None and ratio is not None:
            what = f"{place(row)}: latency vs gloo"
            yield Verdict(what, f"{LATENCY_RATIO:g}x", f"{ratio:.2f}x", ratio >= LATENCY_RATIO)


def _losses(rows: Sequence[Row]) -> Iterable[Verdict]:
    for row in rows:
        slowdown = row["ratio_to_lossless"]
        if slowdown is not None:
            what, most = f"{place(row)}: time at {row['loss']:.0%} loss", LOSSES[row["loss"]]
            yield Verdict(what, f"<= {most:g}x", f"{slowdown:.2f}x", slowdown <= most)


def _straggler(figures: Mapping[str, Any]) -> Iterable[Verdict]:
    packets = max(rank["packets"] for rank in figures["ranks"])
    most = STRAGGLER_WINDOWS * figures["window"]
    what = f"packets sent while a rank sleeps {figures['sleep_s']:g} s"
    yield Verdict(what, f"<= {most}", str(packets), packets <= most)


def _numerics(rows: Sequence[Row]) -> Iterable[Verdict]:
    """Speed of the kernels that a worker on this machine uses (the first rows), on an array larger than the caches."""
    for step in ("quantise", "dequantise"):
        shares = [
            row["of_memcpy"]
            for row in rows
            if (row["step"], row["lane_bits"], row["array"]) == (step, 32, "40 MB")
        ]
        if shares:
            share = shares[0]
            yield Verdict(
                f"{step}, 32-bit lanes, of memcpy", f"{OF_MEMCPY:g}", f"{share:.2f}", share >= OF_MEMCPY
            )


def _switch(figures: Mapping[str, Any]) -> Iterable[Verdict]:
    mpps = figures["packets_per_second"] / 1e6
    yield Verdict(
        "switch in process: Mpps on a core", f"{PIPELINE_MPPS:g}", f"{mpps:.2f}", mpps >= PIPELINE_MPPS
    )
