# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that a fault hits: python -m tests.chaos.worker EVENTS FOLDER WHEN.

The rank sums STEPS times tensors of several sizes, and writes an event with a digest after each sum. In the phase WHEN
it says "here" and, where the phase needs it, waits for the file FOLDER/go. The sums are the same whatever WHEN is.
"""

import hashlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import inagg
from inagg_testbed.events import EventLog

STEPS = 6
HIT = 3  # the step with the phases
LARGE = 2_500_000  # 10 MB: most of a second at 100 Mbit/s
SMALL = 100  # sums of one block in that step


class Rank:
    """The program, and what it tells."""

    def __init__(self, events: Path, folder: Path, when: str) -> None:
        self._log = EventLog(events)
        self._go = folder / "go"
        self._when = when
        self._digest = hashlib.sha256()
        self._count = 0

    def say(self, event: str, **facts: Any) -> None:
        """Write an event."""
        self._log.write(event, at=time.time(), **facts)

    def here(self, when: str, *, wait: bool = False) -> None:
        """Say that a phase has come, if it is WHEN. wait: until the file is there."""
        if when != self._when:
            return
        self.say("here")
        while wait and not self._go.exists():
            time.sleep(0.005)

    def sum(self, size: int) -> None:
        """Sum a tensor, and say the digest of all sums so far."""
        tensor = torch.randn(size, generator=self._draws)
        dist.all_reduce(tensor)
        self._digest.update(tensor.numpy().tobytes())
        self._count += 1
        self.say("sum", number=self._count, digest=self._digest.hexdigest())

    def run(self) -> None:
        """Join, sum, leave."""
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        last = rank == world - 1
        self.here("join", wait=last)
        dist.init_process_group("inagg", timeout=timedelta(seconds=60))
        self._draws = torch.Generator().manual_seed(rank)
        for step in range(STEPS):
            self.sum(200_000)
            if step == HIT:
                self.here("between steps", wait=True)
                # The others have sent their exponents, and cannot send more without those of the last rank.
                self.here("exponents", wait=last)
                self.sum(70_001)
                self.here("data")
                self.sum(LARGE)
                for number in range(SMALL):
                    if number == SMALL // 4:
                        self.here("last block")
                    self.sum(1)
        changes = inagg.stats()["changes"]
        self.here("leave", wait=rank > 0)
        dist.destroy_process_group()
        self.say("end", changes=changes)


if __name__ == "__main__":
    Rank(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]).run()
