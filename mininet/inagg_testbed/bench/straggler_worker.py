# SPDX-License-Identifier: Apache-2.0
"""One rank of `inagg bench straggler`: runs all-reduces without a late rank, then one that the last rank joins late.

The other ranks sample every SAMPLE_S seconds what their transport has sent since the collective began.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

import inagg
from inagg_testbed.bench.straggler import SAMPLE_S
from inagg_testbed.events import EventLog

PROMPT_COLLECTIVES = 5


def all_reduce(elements: int) -> tuple[torch.Tensor, dist.Work]:
    """Start an all-reduce; each element of its sum is N(N+1)/2."""
    tensor = torch.full((elements,), float(dist.get_rank() + 1))
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return tensor, work


def run(elements: int, sleep_s: float, log: EventLog) -> None:
    """Run all collectives; write the events "prompt", "sample" and "end"."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    for _ in range(PROMPT_COLLECTIVES):
        dist.barrier()
        began = time.perf_counter()
        all_reduce(elements)[1].wait()
        log.write("prompt", seconds=time.perf_counter() - began)
    before = inagg.stats()
    dist.barrier()
    began = time.perf_counter()
    late = rank == workers - 1
    if late:
        time.sleep(sleep_s)
    tensor, work = all_reduce(elements)
    for number in range(1, 0 if late else int(sleep_s / SAMPLE_S)):
        time.sleep(max(0.0, began + number * SAMPLE_S - time.perf_counter()))
        now = inagg.stats()
        counts = {name: now[name] - before[name] for name in ("packets_sent", "retransmits")}
        log.write("sample", seconds=time.perf_counter() - began, **counts)
    work.wait()
    exact = workers * (workers + 1) / 2
    wrong = int((tensor != exact).sum())
    log.write("end", seconds=time.perf_counter() - began, wrong=wrong, srtt_s=inagg.stats()["srtt_s"])


def main() -> None:
    """Entry point: python -m inagg_testbed.bench.straggler_worker ELEMENTS SLEEP_S EVENTS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("elements", type=int)
    parser.add_argument("sleep_s", type=float)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("inagg")
    run(arguments.elements, arguments.sleep_s, EventLog(arguments.events))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
