# SPDX-License-Identifier: Apache-2.0
"""One rank of test_multicast.py: python multicast_worker.py EVENTS STOP. It sums without pause, and checks every sum,
until a rank finds the file STOP. It writes its progress to the file EVENTS."""

import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import inagg
from inagg_testbed.events import EventLog

LOG = EventLog(Path(sys.argv[1]))
STOP = Path(sys.argv[2])
ELEMENTS = 40_000
REPORT_EVERY_S = 0.05


def say(event: str, **facts: Any) -> None:
    stats = inagg.stats()
    figures = ("job", "multicast_received", "unicast_in_a_row", "discarded", "corrupt", "packet_threads")
    LOG.write(event, **{name: stats[name] for name in figures}, **facts)


def sum_until_stopped(rank: int, world: int) -> int:
    """Returns the number of sums. The last element tells all ranks that STOP was found."""
    ramp = torch.arange(ELEMENTS, dtype=torch.float32) % 1000
    reported, number, last = 0.0, 0, False
    while not last:
        tensor = ramp * (rank + 1)
        tensor[-1] = float(STOP.exists())
        dist.all_reduce(tensor)
        last = bool(tensor[-1] > 0)
        assert torch.equal(tensor[:-1], ramp[:-1] * (world * (world + 1) // 2))
        number += 1
        if time.monotonic() - reported > REPORT_EVERY_S:
            reported = time.monotonic()
            say("sums", number=number)
    return number


logging.basicConfig(level=logging.WARNING)
dist.init_process_group("inagg")
say("joined")
say("ended", number=sum_until_stopped(dist.get_rank(), dist.get_world_size()))
dist.destroy_process_group()
