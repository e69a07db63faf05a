# SPDX-License-Identifier: Apache-2.0
"""Comparisons, and the figures of runs, that tests make up."""

from dataclasses import replace
from typing import Any

from inagg_testbed.compare.figures import ComparisonFigures, RunFigures, summarise
from inagg_testbed.compare.plan import Compare, Quality, Until
from inagg_testbed.compare.ways import Way
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.workers import Event

Events = list[tuple[int, Event]]
STEP = {
    "event": "step",
    "seconds": 0.1,
    "ran": 0.03,
    "queued": 0.01,
    "loaded": 0.0,
    "collecting": 0.08,
    "exchanging": 0.0,
    "cpu": 0.05,
    "sent": 1000,
    "received": 2000,
    "loss": 1.0,
}


def compared(*ways: str, fabric: str = "star", workers: int = 4) -> Compare:
    """A comparison of these."""
    made = Fabric.parse(fabric, hosts=workers)
    return Compare(
        model="digits-cnn",
        ways=tuple(map(Way.parse, ways)),
        fabric=made,
        topology=fabric,
        link_name="100mbit",
    )


def step(number: int, **values: Any) -> Event:
    """An event."""
    return {**STEP, "step": number, **values}


def of_rank(rank: int, *middle: Event, weights: str = "aa") -> Events:
    """A rank's events."""
    end = {"event": "end", "peak_bytes": 500 + rank, "weights": [weights]}
    return [(rank, event) for event in ({"event": "begin", "elements": 100}, *middle, end)]


def figures(
    events: Events, way: str = "ring", until: str | None = None, model: str | None = "digits-cnn"
) -> RunFigures:
    """Of a run of four ranks."""
    compare = replace(compared(way), model=model, program=() if model else ("train.py",))
    if until is not None:
        compare = replace(
            compare, until=Until.parse(until, None if model is None else Quality.of_model(model))
        )
    return summarise(compare, compare.ways[0], 0, 1, events)


def run(way: str, step_ms: float, repeat: int = 0, reached_s: float | None = None) -> RunFigures:
    made = figures(of_rank(0, step(0)), way)
    return made.model_copy(update={"step_ms": step_ms, "repeat": repeat, "reached_s": reached_s})


def comparison(*runs: RunFigures, until: str | None = None) -> ComparisonFigures:
    """The figures of these runs."""
    settings = compared(*dict.fromkeys(each.way for each in runs)).settings() | {"until": until}
    return ComparisonFigures(settings=settings, machine={}, command=["inagg"], runs=list(runs))
