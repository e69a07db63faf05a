# SPDX-License-Identifier: Apache-2.0
"""Runs one training on a testbed that is up and collects the events of its workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.workers import Event

_START_UP_S = 180.0
_SLOWEST_STEP_S = 5.0

# Called with a run's label, steps done, all steps, and a note.
OnProgress = Callable[[str, int, int, str], Any]


def follow_training(
    testbed: Testbed,
    command: Sequence[str],
    *,
    name: str,
    label: str,
    steps: int,
    on_progress: OnProgress,
    on_step: Callable[[int], None] = lambda _step: None,
    environment: Mapping[str, str] | None = None,
) -> list[tuple[int, Event]]:
    """Run `command` on all hosts and return all events as (rank, event).

    The command must write events "step" with step and loss. on_step: called with each step that rank 0 has done, from 1
    on. Raises LauncherError.
    """
    events: list[tuple[int, Event]] = []

    def on_event(rank: int, event: Event) -> None:
        events.append((rank, event))
        if rank == 0 and event["event"] == "step":
            on_progress(label, event["step"] + 1, steps, f"loss {event['loss']:.3f}")
            on_step(event["step"] + 1)

    group = testbed.launch(command, name=name, environment=environment)
    group.follow(on_event, timeout_s=_START_UP_S + steps * _SLOWEST_STEP_S, watch=testbed.services)
    return events


def values_by_step(events: Sequence[tuple[int, Event]], kind: str, value: str) -> dict[int, list[float]]:
    """By step, the values that the ranks' events of a kind report."""
    found: dict[int, list[float]] = {}
    for _, event in events:
        if event["event"] == kind:
            found.setdefault(event["step"], []).append(event[value])
    return found
