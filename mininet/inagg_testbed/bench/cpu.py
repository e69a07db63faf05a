# SPDX-License-Identifier: Apache-2.0
"""CPU time of processes, to the nanosecond.

It is all that the scheduler charges to their threads, in user space and in the kernel. Softirqs run, and are charged,
wherever they are raised: across a veth the sender's system call carries the packet through to the receiver's socket or
to the switch's ring, so that work is in the sender's time. Two kinds of work are not: what the kernel hands to its
ksoftirqd threads (`softirq_threads`, which serve the whole machine), and timers that fire while a core is idle (the
token buckets of shaped links).
"""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path


def process_clock(pid: int) -> int:
    """The clock id of a process's CPU time: clock_getcpuclockid(3), CPUCLOCK_SCHED in linux/posix-timers.h."""
    return ~pid << 3 | 2


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of processes so far, together; of those that are still there."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime(process_clock(pid))
    return total


def softirq_threads() -> list[int]:
    """The kernel's ksoftirqd threads."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "comm").read_text().startswith("ksoftirqd/"):
                found.append(int(entry.name))
    return found
