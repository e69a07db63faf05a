# SPDX-License-Identifier: Apache-2.0
"""One training run on a testbed that is up: started, followed to its end, and what its workers said step by step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.workers import Event

_START_UP_S = 180.0
_SLOWEST_STEP_S = 5.0

# A run's label, steps done and to do, and a note.
OnProgress = Callable[[str, int, int, str], Any]


def follow_training(
    testbed: Testbed,
    command: Sequence[str],
    *,
    name: str,
    label: str,
    steps: int,
    on_progress: OnProgress,
    environment: Mapping[str, str] | None = None,
) -> list[tuple[int, Event]]:
    """Run `command` on all hosts; it writes events "step", with step and loss. Returns all events, as (rank, event).

    Raises LauncherError.
    """
    events: list[tuple[int, Event]] = []

    def on_event(rank: int, event: Event) -> None:
        events.append((rank, event))
        if rank == 0 and event["event"] == "step":
            on_progress(label, event["step"] + 1, steps, f"loss {event['loss']:.3f}")

    group = testbed.launch(command, name=name, environment=environment)
    group.follow(on_event, timeout_s=_START_UP_S + steps * _SLOWEST_STEP_S, watch=testbed.services)
    return events


def values_by_step(events: Sequence[tuple[int, Event]], kind: str, value: str) -> dict[int, list[float]]:
    """Step -> what the ranks' events of a kind have for it."""
    found: dict[int, list[float]] = {}
    for _, event in events:
        if event["event"] == kind:
            found.setdefault(event["step"], []).append(event[value])
    return found
