# SPDX-License-Identifier: Apache-2.0
"""CPU time of processes, to the nanosecond.

It is the time that the scheduler charges to their threads, in user space and in the kernel. A softirq is charged to the
thread on whose core it is raised: across a veth, the sender's system call carries the packet to the receiver's socket
or to the switch's ring, so the sender is charged for that work. Two kinds of work are not included: work that the
kernel defers to its ksoftirqd threads (`softirq_threads`, which serve the whole machine), and timers that fire while a
core is idle (the token buckets of shaped links).
"""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path


def process_clock(pid: int) -> int:
    """The clock id of a process's CPU time: clock_getcpuclockid(3), CPUCLOCK_SCHED in linux/posix-timers.h."""
    return ~pid << 3 | 2


def cpu_seconds(pids: Iterable[int]) -> float:
    """Total CPU time of processes so far, in seconds; processes that have ended count as 0."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime(process_clock(pid))
    return total


def softirq_threads() -> list[int]:
    """Pids of the kernel's ksoftirqd threads."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text().startswith("ksoftirqd/"):
                found.append(int(entry.name))
    return found
