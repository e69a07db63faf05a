# SPDX-License-Identifier: Apache-2.0
"""What the scheduler has counted: times of threads, and how idle the processors were. Without Mininet: workers read
them too."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_OWN_CLOCKS = 8  # user to steal; guest time is in them already (proc_stat(5))
_IDLE = (3, 4)  # idle, and idle while a disk works


@dataclass(frozen=True)
class ThreadTimes:
    """Seconds in which a thread was on a processor, and ready to run while others had the processors."""

    ran_s: float = 0.0
    queued_s: float = 0.0

    @property
    def wanted_s(self) -> float:
        """Both."""
        return self.ran_s + self.queued_s


Threads = Mapping[int, ThreadTimes]


def thread_times(pid: int) -> Threads:
    """By thread of a process. Empty if it has ended, or without the kernel's statistics."""
    found = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                ran, queued, _ = (task / "schedstat").read_text().split()
                found[int(task.name)] = ThreadTimes(int(ran) / 1e9, int(queued) / 1e9)
    return found


def busiest(before: Threads, after: Threads) -> ThreadTimes:
    """Of the threads that live at the end, the times of the one that wanted a processor longest in between."""
    added = (
        ThreadTimes(
            now.ran_s - before.get(thread, ThreadTimes()).ran_s,
            now.queued_s - before.get(thread, ThreadTimes()).queued_s,
        )
        for thread, now in after.items()
    )
    return max(added, key=lambda times: times.wanted_s, default=ThreadTimes())


def processor_clocks() -> tuple[int, int]:
    """Ticks of all processors of this machine together, since it has started, and of these the idle ones."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    ticks = [int(number) for number in first.split()[1 : 1 + _OWN_CLOCKS]]
    return sum(ticks), sum(ticks[number] for number in _IDLE)
