# SPDX-License-Identifier: Apache-2.0
"""Writes what this rank does when into ``INAGG_TRACE``, a folder, for `inagg trace`: the spans of the last steps.

Ranks of one machine share CLOCK_MONOTONIC. Ranks of several machines are compared in one of two ways:

| the world is | clocks | wrong by |
|---|---|---|
| a group of inagg's | when it is made, each rank asks rank 0 for the time through the store | half a round trip |
| of another backend | each rank takes its machine's time of day | what NTP or PTP leaves |

An answer is taken to be of the middle of the round trip (Cristian's algorithm). Of several questions the one with the
shortest round trip counts. Only the world is asked: groups of some ranks may be made by some of them first, and rank 0
may be in none.
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
from inagg.spans import VARIABLE
from inagg.training_spans import watch_training

_QUESTIONS = 5
_PATIENCE = timedelta(seconds=60)  # after all ranks have made the world
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Clock:
    """offset_s: what to add to this rank's `time.monotonic` for rank 0's, or, if error_s is None, for the time of day.

    error_s: by which that may be wrong; None: unknown.
    """

    offset_s: float = 0.0
    error_s: float | None = 0.0


def start(rank: int, size: int, world: Store | None) -> None:
    """Trace this rank from its first group on, if ``INAGG_TRACE`` is set.

    At the end of the process it writes FOLDER/rankR.json. A file of that name, of an earlier training, is removed.
    Raises ConfigurationError if that fails.

    rank: in the world. size: of the group. world: the store of the group if it is the world; then all ranks call this.
    """
    name = os.environ.get(VARIABLE)
    if not name or spans.recorder() is not None:
        return
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _file(folder, rank).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}={name}: {error.strerror}") from error
    began_s = time.monotonic()
    recorder = spans.start()
    watch_training(recorder)
    if world is None:
        clock = Clock(time.time() - time.monotonic(), None)
    else:
        clock = compare_clocks(PrefixStore("inagg-trace", world), rank, size, _boot_id())
    atexit.register(write, folder, rank, clock, began_s, recorder)


def write(folder: Path, rank: int, clock: Clock, began_s: float, recorder: spans.Recorder) -> None:
    """Write FOLDER/rankR.json: who, the clock, since when, and the steps, as `inagg.spans` has them."""
    document = {
        "rank": rank,
        "host": os.environ.get("INAGG_HOST_NAME") or socket.gethostname(),
        "pid": os.getpid(),
        "machine": _boot_id(),
        "clock": asdict(clock),
        "began_s": began_s,
        "ended_s": time.monotonic(),
        "steps": recorder.steps(),
    }
    path = _file(folder, rank)
    scratch = path.with_name(f".{path.name}")
    scratch.write_text(json.dumps(document))
    scratch.replace(path)


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


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
    found: list[tuple[float, float]] = []  # error and offset
    for number in range(_QUESTIONS):
        asked_s = clock()
        store.set(f"{rank}/{number}/question", "")
        theirs_s = float(_get(store, f"{rank}/{number}/answer"))
        now_s = clock()
        found.append(((now_s - asked_s) / 2, theirs_s - (asked_s + now_s) / 2))
    error_s, offset_s = min(found)
    return Clock(offset_s, error_s)


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
