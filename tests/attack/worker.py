# SPDX-License-Identifier: Apache-2.0
"""One rank under attack: python -m tests.attack.worker EVENTS STOP TIMEOUT_S.

It sums without pause tensors whose exact sum every rank knows, until rank 0 finds the file STOP. Then it leaves. It
writes its progress to the file EVENTS.
"""

import functools
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from inagg_testbed.events import EventLog

LOG = EventLog(Path(sys.argv[1]))


def say(event: str, **facts: Any) -> None:
    LOG.write(event, at=time.time(), **facts)


say("importing")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import inagg  # noqa: E402

STOP = Path(sys.argv[2])
TIMEOUT = timedelta(seconds=float(sys.argv[3]))
SIZES = (3, 1000, 40_000, 300_000)
PERIOD = 31  # of the values: prime to the number of sizes, so that each size has all of them
REPORT_EVERY_S = 0.1


def contribution(rank: int, number: int, size: int) -> torch.Tensor:
    """Integers with absolute values below 512. Lanes hold them and their sums exactly."""
    places = torch.arange(size, dtype=torch.int64)
    return ((places * (rank + 3) + number * 7919) % 1021 - 510).to(torch.float32)


@functools.cache
def prepared(number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's contribution and the sum of all, made once: the job's speed shall be that of its links."""
    all_of_them = [contribution(rank, number, size) for rank in range(dist.get_world_size())]
    return all_of_them[dist.get_rank()], sum(all_of_them, torch.zeros(size))


def sums() -> Iterator[bool]:
    """Sum until rank 0 has found STOP; yields for each sum whether it was right. The tensor's last element tells all
    ranks that STOP was found."""
    number, last = 0, False
    while not last:
        own, expected = prepared(number % PERIOD, SIZES[number % len(SIZES)])
        tensor = own.clone()
        tensor[-1] = float(dist.get_rank() == 0 and STOP.exists())
        dist.all_reduce(tensor)
        last = bool(tensor[-1] == 1)
        expected[-1] = float(last)
        yield torch.equal(tensor, expected)
        number += 1


def run() -> None:
    checked = wrong = corrupt = 0
    reported = 0.0
    try:
        for right in sums():
            checked += 1
            wrong += not right
            if time.monotonic() - reported > REPORT_EVERY_S:
                reported = time.monotonic()
                corrupt = inagg.stats().get("corrupt", 0)
                say("sums", checked=checked, wrong=wrong, corrupt=corrupt)
    finally:
        say("sums", checked=checked, wrong=wrong, corrupt=corrupt)


say("joining")
dist.init_process_group("inagg", timeout=TIMEOUT)
say("joined", path=inagg.stats()["path"])
run()
say("leaving")
dist.destroy_process_group()
say("left")
