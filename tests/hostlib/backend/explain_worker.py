# SPDX-License-Identifier: Apache-2.0
"""One rank of test_explain.py: sums for a while in each situation, and reports what `inagg.explain` says.

Arguments: the file for events, and the situations.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

import inagg
from inagg.explanation import Explanation
from inagg_testbed.events import EventLog


@dataclass(frozen=True)
class Situation:
    """Sums one after the other; before each the last rank, or every rank, does something else."""

    elements: int
    seconds: float = 1.5
    last_rank_s: float = 0.0
    every_rank_s: float = 0.0


SITUATIONS = {
    "large sums": Situation(1_000_000, seconds=2.5),
    "small sums": Situation(4_096),
    "tiny sums": Situation(64),
    "last rank late": Situation(64, last_rank_s=0.05),
    "every rank busy": Situation(64, every_rank_s=0.05),
}


def run(situation: Situation) -> Explanation:
    is_last = dist.get_rank() == dist.get_world_size() - 1
    pause_s = situation.every_rank_s + situation.last_rank_s * is_last
    tensor = torch.ones(situation.elements)
    more = torch.ones(1)
    each = 1 if situation.elements > 100_000 or pause_s + situation.last_rank_s > 0 else 100
    dist.all_reduce(tensor)
    dist.barrier()
    end = time.monotonic() + situation.seconds
    with inagg.stats() as figures:
        while more:
            for _ in range(each):
                time.sleep(pause_s)
                dist.all_reduce(tensor)
                tensor.fill_(1.0)
            more.fill_(time.monotonic() < end)
            dist.broadcast(more, 0)
    return inagg.explain(figures)


def wait_once(log: EventLog) -> None:
    """The last rank is late once. Rank 0, and no other, explains right after that sum."""
    last = dist.get_world_size() - 1
    tensor = torch.ones(64)
    for late in (False, True, False):
        if late and dist.get_rank() == last:
            time.sleep(2)
        dist.all_reduce(tensor)
        if late and dist.get_rank() == 0:
            found = inagg.explain()
            log.write("explained", situation="late once", report=str(found), figures=dict(found.figures))


def main() -> None:
    log = EventLog(Path(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("inagg")
    if sys.argv[2:] == ["late once"]:
        wait_once(log)
    for name in [name for name in sys.argv[2:] if name in SITUATIONS]:
        found = run(SITUATIONS[name])
        log.write(
            "explained",
            situation=name,
            verdict=found.verdict,
            causes=found.causes,
            shares=dict(found.shares),
            report=str(found),
            figures=dict(found.figures),
        )
    log.write("since the start", report=str(inagg.explain()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
