"""Who computes where. The switch is a machine of its own in reality; here it shares one with the workers.

With as many workers as processors the kernel often puts the switch and a worker that it has just woken on one of them
and leaves another idle: of 2 processors, 2 workers and the switch used 1.5. So the switch gets one to itself, and the
workers' packet threads the others. With more workers there is always one that can run, and keeping them off the
switch's processor gains nothing (docs/design.md, D6).
"""

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processors:
    """A division of this machine's processors. of_workers is a list as `inagg.Options.cpus` has it."""

    of_switch: frozenset[int]
    of_workers: str


def share_processors(workers: int) -> Processors | None:
    """How `workers` and a switch share the processors this process may use; None: all may use all."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < max(2, workers):
        return None
    *others, last = available
    return Processors(frozenset({last}), ",".join(map(str, others)))


@contextlib.contextmanager
def confined_to(processors: Collection[int] | None) -> Iterator[None]:
    """Processes started in the block, by this thread, run on these processors; None changes nothing."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors if processors is not None else before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
