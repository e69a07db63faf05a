# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of `inagg bench jobs`: joins when it is the job's turn, and does the phases of its task."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

import inagg
from inagg_testbed.bench.jobs.plan import Task
from inagg_testbed.events import EventLog

_POLL_S = 0.005
_PATTERN = 251  # a prime: neighbouring blocks differ, and so do the words of a packet
_FACTORS = 7


class Sums:
    """All-reduces of small integers, whose sums are exact in float32. Each differs from the one before."""

    def __init__(self, elements: int) -> None:
        self._pattern = (torch.arange(elements) % _PATTERN + 1).float()
        self._tensor, self._exact = torch.empty(elements), torch.empty(elements)
        self._number = 0

    def do(self) -> bool:
        """Do the next all-reduce; return whether the result is the exact sum."""
        factor, workers = 1 + self._number % _FACTORS, dist.get_world_size()
        self._number += 1
        torch.mul(self._pattern, factor * (dist.get_rank() + 1), out=self._tensor)
        dist.all_reduce(self._tensor)
        torch.mul(self._pattern, factor * (workers * (workers + 1) // 2), out=self._exact)
        return torch.equal(self._tensor, self._exact)


def wait_for(path: Path) -> None:
    """Wait until a file exists. The launcher makes it, or ends this process."""
    while not path.exists():
        time.sleep(_POLL_S)


def run(task: Task, log: EventLog) -> None:
    """Do all phases; write the events "ready" and "phase". All processes share the clock of their times."""
    sums = Sums(task.elements)
    right = sums.do()  # gloo connects the ranks in its first all-reduce
    found = inagg.stats()
    log.write("ready", job=found.get("job"), path=found["path"], at=time.monotonic(), wrong=int(not right))
    late_s = task.late_s if dist.get_rank() == dist.get_world_size() - 1 else 0.0
    wait_for(Path(task.start))
    for phase in task.phases:
        time.sleep(phase.pause_s)
        began, wrong = time.monotonic(), 0
        for _ in range(phase.sums):
            time.sleep(late_s)
            wrong += not sums.do()
        log.write("phase", began=began, ended=time.monotonic(), wrong=wrong)


def main() -> None:
    """Entry point: python -m inagg_testbed.bench.jobs.worker TASK EVENTS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Task.from_json)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wait_for(Path(arguments.task.turn))
    dist.init_process_group("inagg")
    run(arguments.task, EventLog(arguments.events))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
