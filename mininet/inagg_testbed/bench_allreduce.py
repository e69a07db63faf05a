"""`inagg bench allreduce`: host all-reduce and aggregation on one testbed, timed in turn and checked.

Definitions, for a tensor of S bytes (float32) over N workers in time t (one iteration's t is the slowest rank's):
- algbw = S / t, busbw = algbw x 2(N-1)/N: those of nccl-tests (doc/PERFORMANCE.md), in 10^6 bytes a second.
- line_rate_fraction: payload bits that the algorithm must send over each link, divided by link rate x t. For
  inagg with W-bit lanes those are elements x W, each way; for gloo, a ring, 2(N-1)/N x 32 x elements. Headers (4% for
  inagg, 4% for TCP) and guard bits are overhead: 1.0 cannot be reached. None on unshaped links.
- max_abs_error: the greatest |result - exact sum| over all elements, iterations and ranks; bound: the greatest value of
  the bound that each element was held to (docs/protocol.md 3.4 for inagg; float32 summation in any order for gloo).
- retransmits: packets sent again (TCP segments for gloo), all ranks and timed iterations together.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inagg_testbed.bench_plan import MAX_LOSS, BackendSpec, Plan
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.links import LinkSpec
from inagg_testbed.requirements import SwitchKind
from inagg_testbed.testbed import DEFAULT_SLOTS, GlooPath, Testbed, open_testbed
from inagg_testbed.workers import Event

_FLOAT32_BITS = 32
_SECONDS_PER_ITERATION = 60.0
_START_UP_S = 180.0
_SHORT_NAMES = {"workers": "N", "elements": "elements"}


@dataclass(frozen=True, kw_only=True)
class AllReduceBench:
    """What to measure. `workers` and `elements` may each have several values: every combination is measured."""

    workers: tuple[int, ...]
    elements: tuple[int, ...]
    link_name: str
    link: LinkSpec
    backends: tuple[BackendSpec, ...]
    iterations: int = 10
    warmup: int = 2
    slots: int = DEFAULT_SLOTS
    loss: float = 0.0
    switch: SwitchKind = "model"
    program: Path | None = None
    gloo_over: GlooPath = "switch"
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.slots < 2 or self.slots & (self.slots - 1):
            raise ConfigurationError(f"{self.slots} slots: want a power of two, 2 or more")
        for what, values in (
            ("backend", self.backends),
            ("workers", self.workers),
            ("elements", self.elements),
        ):
            if len(set(values)) < len(values):
                raise ConfigurationError(f"{what} {', '.join(map(str, values))}: each value only once")
        if not 0 <= self.loss <= MAX_LOSS:
            raise ConfigurationError(f"loss {self.loss:g} is outside 0 to {MAX_LOSS:g}")
        if self.switch == "bridge" and (self.loss or any(spec.name != "gloo" for spec in self.backends)):
            raise ConfigurationError("a bridge neither aggregates nor drops packets: gloo only, without loss")

    @property
    def settings(self) -> dict[str, Any]:
        """What the rows do not say."""
        return {
            "switch": self.switch,
            "gloo_over": self.gloo_over,
            "loss": self.loss,
            "slots": self.slots,
            "link": self.link.description,
            "iterations": self.iterations,
            "warmup": self.warmup,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class BenchOutcome:
    """One row a backend, workers and elements; and every result that was wrong, in words."""

    rows: list[dict[str, Any]]
    wrong: list[str]


def run_bench(
    bench: AllReduceBench,
    results_root: Path,
    *,
    on_stage: Callable[[str], Any],
    on_progress: Callable[[int, int], Any],
) -> BenchOutcome:
    """Bring a testbed up, measure, take it down. `on_progress` gets iterations done and to do.

    Raises LauncherError; a wrong sum is not raised but told in the outcome.
    """
    events: dict[tuple[int, int, str], list[Event]] = {}
    total = len(bench.workers) * len(bench.elements) * len(bench.backends) * bench.iterations
    done = 0
    with open_testbed(
        hosts=max(bench.workers),
        link=bench.link,
        results_root=results_root,
        switch=bench.switch,
        program=bench.program,
        gloo_over=bench.gloo_over,
        on_stage=on_stage,
    ) as testbed:
        plan = make_plan(bench, testbed)
        testbed.inject_loss(bench.loss)
        for workers in bench.workers:

            def on_event(rank: int, event: Event, workers: int = workers) -> None:
                nonlocal done
                events.setdefault((workers, event["elements"], event["backend"]), []).append(
                    {**event, "rank": rank}
                )
                done += rank == 0
                on_progress(done, total)

            on_stage(f"{workers} workers")
            _run_workers(testbed, plan, bench, workers, on_event)
        outcome = BenchOutcome(rows=make_rows(bench, events), wrong=list(wrong_results(events)))
        record = {"settings": bench.settings, "rows": outcome.rows, "wrong": outcome.wrong}
        (testbed.results / "bench.json").write_text(json.dumps(record, indent=2) + "\n")
    return outcome


def make_plan(bench: AllReduceBench, testbed: Testbed) -> Plan:
    """What the workers are told."""
    words = 0 if testbed.controller is None else int(testbed.controller.health()["words"])
    return Plan(
        backends=tuple(str(spec) for spec in bench.backends),
        elements=bench.elements,
        iterations=bench.iterations,
        warmup=bench.warmup,
        seed=bench.seed,
        words=words,
    )


def _run_workers(
    testbed: Testbed, plan: Plan, bench: AllReduceBench, workers: int, on_event: Callable[[int, Event], None]
) -> None:
    command = [sys.executable, "-m", "inagg_testbed.bench_worker", plan.to_json(), "{events}"]
    group = testbed.launch(command, name=f"bench-{workers}", workers=workers, slots=bench.slots)
    rounds = len(bench.elements) * len(bench.backends) * (bench.iterations + bench.warmup)
    group.follow(on_event, timeout_s=_START_UP_S + rounds * _SECONDS_PER_ITERATION, watch=testbed.services)


def make_rows(bench: AllReduceBench, events: dict[tuple[int, int, str], list[Event]]) -> list[dict[str, Any]]:
    """The rows of the JSON file, with the fields named in the module's text."""
    rows = []
    for (workers, elements, backend), found in events.items():
        spec = BackendSpec.parse(backend)
        times = _slowest_rank_times(found)
        median = statistics.median(times)
        algbw = elements * _FLOAT32_BITS / 8 / median / 1e6
        rows.append(
            {
                "backend": spec.name,
                "lane_bits": spec.lane_bits,
                "workers": workers,
                "elements": elements,
                "dtype": "float32",
                "link": bench.link_name,
                "time_ms": {
                    "p50": median * 1e3,
                    "p95": float(np.percentile(times, 95)) * 1e3,
                    "min": min(times) * 1e3,
                },
                "algbw_MBps": algbw,
                "busbw_MBps": algbw * 2 * (workers - 1) / workers,
                "line_rate_fraction": line_rate_fraction(
                    spec, workers, elements, bench.link.rate_bps, median
                ),
                "retransmits": sum(event["retransmits"] for event in found),
                "max_abs_error": max((_error(event) for event in found), default=0.0),
                "bound": max(event["bound"] for event in found),
                "checked": not _disagreements(found) and all(event["wrong_index"] is None for event in found),
            }
        )
    return rows


def _error(event: Event) -> float:
    value = event["max_abs_error"]
    return float("inf") if value is None else float(value)


def _slowest_rank_times(found: Iterable[Event]) -> list[float]:
    slowest: dict[int, float] = {}
    for event in found:
        slowest[event["index"]] = max(slowest.get(event["index"], 0.0), event["seconds"])
    return list(slowest.values())


def line_rate_fraction(
    spec: BackendSpec, workers: int, elements: int, rate_bps: int | None, seconds: float
) -> float | None:
    """See the module's text."""
    if rate_bps is None or seconds == 0:
        return None
    ring = 2 * (workers - 1) / workers * _FLOAT32_BITS
    bits = elements * (ring if spec.lane_bits is None else spec.lane_bits)
    return bits / (rate_bps * seconds)


def wrong_results(events: dict[tuple[int, int, str], list[Event]]) -> Iterable[str]:
    """A sentence for each result beyond its bound, or not the same at all ranks."""
    for (workers, elements, backend), found in events.items():
        for event in found:
            if event["wrong_index"] is not None:
                yield (
                    f"{backend}, {workers} workers, {elements} elements, iteration {event['index']}, "
                    f"rank {event['rank']}: element {event['wrong_index']} is {event['wrong_value']}, "
                    f"exactly {event['exact_value']}"
                )
        yield from (
            f"{backend}, {workers} workers, {elements} elements, iteration {index}: the ranks have different results"
            for index in _disagreements(found)
        )


def _disagreements(found: Iterable[Event]) -> list[int]:
    """Iterations whose result is not bit-identical at all ranks (docs/protocol.md, 3.4; a ring's is as well)."""
    digests: dict[int, set[str]] = {}
    for event in found:
        digests.setdefault(event["index"], set()).add(event["digest"])
    return [index for index, different in digests.items() if len(different) > 1]


def speedups(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, int, str, int | None], float]:
    """Ratio of gloo's median time to each row's, where gloo was measured too."""
    gloo = {
        (row["workers"], row["elements"]): row["time_ms"]["p50"] for row in rows if row["backend"] == "gloo"
    }
    return {
        (row["workers"], row["elements"], row["backend"], row["lane_bits"]): gloo[key] / row["time_ms"]["p50"]
        for row in rows
        if (key := (row["workers"], row["elements"])) in gloo
    }


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The rows for people, within 80 columns; the JSON file has the rest."""
    varying = [name for name in ("workers", "elements") if len({row[name] for row in rows}) > 1]
    header = [
        "backend",
        *varying,
        "p50 ms",
        "min ms",
        "vs gloo",
        "busbw MB/s",
        "line rate",
        "resent",
        "error/ bound",
    ]
    ratios = speedups(rows)
    body = []
    for row in rows:
        ratio = ratios.get((row["workers"], row["elements"], row["backend"], row["lane_bits"]))
        fraction = row["line_rate_fraction"]
        share = row["max_abs_error"] / row["bound"] if row["bound"] else 0.0
        body.append(
            [
                str(BackendSpec(name=row["backend"], lane_bits=row["lane_bits"])),
                *(str(row[name]) for name in varying),
                f"{row['time_ms']['p50']:.4g}",
                f"{row['time_ms']['min']:.4g}",
                "" if ratio is None else f"{ratio:.2f}x",
                f"{row['busbw_MBps']:.4g}",
                "" if fraction is None else f"{fraction:.3f}",
                str(row["retransmits"]),
                f"{share:.2f}" if row["checked"] else "WRONG",
            ]
        )
    return header, body


def title(bench: AllReduceBench) -> str:
    """What the table is about."""
    workers = ", ".join(str(count) for count in bench.workers)
    elements = ", ".join(f"{count:,}" for count in bench.elements)
    text = f"all-reduce of {elements} float32, {workers} workers, {bench.link_name}, switch: {bench.switch}"
    over = ", gloo over a bridge" if bench.gloo_over == "bridge" else ""
    loss = f", {bench.loss:.1%} loss each way" if bench.loss else ""
    return text + over + loss
