# SPDX-License-Identifier: Apache-2.0
"""One rank of `inagg bench device`: times all-reduces of host and device tensors, with and without products."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from inagg.options import StagedOptions
from inagg_testbed.bench.device import device_of
from inagg_testbed.events import EventLog

ITERATIONS = 5


def run(device: torch.device, elements: int, log: EventLog) -> None:
    """Measure and write one event with all times."""
    staged = dist.new_group(backend="inagg", pg_options=StagedOptions())
    there, here = torch.ones(elements, device=device), torch.ones(elements)
    matrix = torch.randn(1024, 1024, device=device)

    def timed(call: Callable[[], object]) -> float:
        """Milliseconds until the call and the device's work are done."""
        dist.barrier()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) * 1e3

    def sum_here() -> None:
        dist.all_reduce(here, op=dist.ReduceOp.AVG)  # the average of ones is 1: no overflow

    def sum_there() -> None:
        dist.all_reduce(there, op=dist.ReduceOp.AVG, group=staged)

    def products(count: int) -> None:
        for _ in range(count):
            matrix @ matrix

    def both(count: int) -> None:
        work = dist.all_reduce(there, op=dist.ReduceOp.AVG, group=staged, async_op=True)
        assert work is not None
        products(count)
        work.wait()

    for _ in range(2):
        timed(sum_here)
        device_ms = timed(sum_there)
        product_ms = timed(lambda: products(10)) / 10
    count = torch.tensor(max(1, round(device_ms / product_ms)))
    dist.broadcast(count, 0)
    each = int(count)
    log.write(
        "end",
        cpu_ms=[timed(sum_here) for _ in range(ITERATIONS)],
        device_ms=[timed(sum_there) for _ in range(ITERATIONS)],
        compute_ms=[timed(lambda: products(each)) for _ in range(ITERATIONS)],
        both_ms=[timed(lambda: both(each)) for _ in range(ITERATIONS)],
    )


def main() -> None:
    """Entry point: python -m inagg_testbed.bench.device_worker DEVICE ELEMENTS EVENTS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("elements", type=int)
    parser.add_argument("events", type=Path)
    arguments = parser.parse_args()
    device = device_of(arguments.device)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    dist.init_process_group("inagg")
    run(device, arguments.elements, EventLog(arguments.events))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
