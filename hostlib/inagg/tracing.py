# SPDX-License-Identifier: Apache-2.0
"""Writes what this rank does when into ``INAGG_TRACE``, a folder, for `inagg trace`: the spans of the last steps.

Ranks have different clocks. Each rank asks rank 0 through the store for the time, when the first group is made, and
takes the answer to be of the middle of the round trip (Cristian's algorithm): it is wrong by at most half of that. Of
several questions the one with the shortest round trip counts. Ranks of one machine share CLOCK_MONOTONIC.
"""

import atexit
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed.distributed_c10d import PrefixStore, Store

from inagg import spans
from inagg.base_errors import ConfigurationError
from inagg.training_spans import watch_training

VARIABLE = "INAGG_TRACE"
_QUESTIONS = 5
_PATIENCE = timedelta(seconds=60)  # after all ranks have made the group
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Clock:
    """offset_s: what to add to this rank's `time.monotonic` for rank 0's. error_s: by which it may be wrong."""

    offset_s: float = 0.0
    error_s: float = 0.0


def start(store: Store, rank: int, size: int) -> None:
    """Trace this rank from its first group on, if ``INAGG_TRACE`` is set. All ranks of the group call this.

    At the end of the process it writes FOLDER/rankR.json. Raises ConfigurationError if there can be no such folder.
    """
    folder = os.environ.get(VARIABLE)
    if not folder or spans.recorder() is not None:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}={folder}: {error.strerror}") from error
    recorder = spans.start()
    watch_training(recorder)
    clock = compare_clocks(PrefixStore("inagg-trace", store), rank, size, _boot_id())
    atexit.register(write, Path(folder), rank, clock, recorder)


def write(folder: Path, rank: int, clock: Clock, recorder: spans.Recorder) -> None:
    """Write FOLDER/rankR.json: who, the clock, and the steps, as `inagg.spans` has them."""
    document = {
        "rank": rank,
        "host": os.environ.get("INAGG_HOST_NAME") or socket.gethostname(),
        "pid": os.getpid(),
        "clock": asdict(clock),
        "steps": recorder.steps(),
    }
    scratch = folder / f".rank{rank}.json"
    scratch.write_text(json.dumps(document))
    scratch.replace(folder / f"rank{rank}.json")


def compare_clocks(
    store: Store, rank: int, size: int, machine: str, clock: Callable[[], float] = time.monotonic
) -> Clock:
    """Compare this rank's clock with rank 0's. All ranks call this.

    machine: equal where ranks share a clock. Raises ConfigurationError if another rank does not answer.
    """
    if rank == 0:
        store.set("machine", machine)
        for other in range(1, size):
            for number in range(int(_get(store, f"{other}/questions"))):
                _get(store, f"{other}/{number}/question")
                store.set(f"{other}/{number}/answer", repr(clock()))
        return Clock()
    if _get(store, "machine").decode() == machine:
        store.set(f"{rank}/questions", "0")
        return Clock()
    store.set(f"{rank}/questions", str(_QUESTIONS))
    found = []
    for number in range(_QUESTIONS):
        asked_s = clock()
        store.set(f"{rank}/{number}/question", "")
        theirs_s = float(_get(store, f"{rank}/{number}/answer"))
        now_s = clock()
        found.append(Clock(theirs_s - (asked_s + now_s) / 2, (now_s - asked_s) / 2))
    return min(found, key=lambda each: each.error_s)


def _get(store: Store, key: str) -> bytes:
    """What another rank writes."""
    try:
        store.wait([key], _PATIENCE)
    except RuntimeError as error:
        raise ConfigurationError(
            f"another rank has not answered for {_PATIENCE.total_seconds():.0f} s: {VARIABLE} must be set for all ranks"
        ) from error
    return store.get(key)


def _boot_id() -> str:
    """Of this machine since it was started."""
    return _BOOT_ID.read_text().strip()
