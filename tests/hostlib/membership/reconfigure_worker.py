# SPDX-License-Identifier: Apache-2.0
"""One rank of test_reconfigure.py: makes a group of the ranks that are present, again and again, as torchft does.

Argument: the file for events. There is no default process group. Rank 0 keeps the store, as torchft's lighthouse does.
"""

import gc
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

import inagg
from inagg_testbed.events import EventLog

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LONG = timedelta(seconds=60)
LOG = EventLog(Path(sys.argv[1]))


class Reconfigurable:
    """Like torchft's ProcessGroupWrapper: `configure` aborts the current group and makes another."""

    def __init__(self, store: TCPStore) -> None:
        self.group: inagg.ProcessGroup | None = None
        self._store = store

    def abort(self) -> None:
        if self.group is not None:
            self.group.abort()
            self.group = None

    def configure(self, prefix: str, rank: int, size: int) -> inagg.ProcessGroup:
        self.abort()
        self.group = inagg.ProcessGroup.create(PrefixStore(prefix, self._store), rank, size, timeout=LONG)
        return self.group


def summed(group: inagg.ProcessGroup, elements: int = 20_000) -> float:
    """The sum, through the switch, of rank + 1 over all ranks. Checks that all elements are equal."""
    tensor = torch.full((elements,), float(group.rank() + 1))
    group.allreduce([tensor]).wait()
    assert inagg.stats(group)["path"] == "switch"
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0])


def held() -> dict[str, int]:
    """The process's threads and descriptors, after a garbage collection."""
    gc.collect()
    return {
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "pythons": threading.active_count(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def meet(store: TCPStore, place: str) -> None:
    """Wait until all ranks are here, so that no rank aborts a group that another still needs."""
    store.set(f"{place}/{RANK}", "")
    store.wait([f"{place}/{rank}" for rank in range(RANKS)], LONG)


def trained(group: inagg.ProcessGroup) -> list[float]:
    """The weights after a step of data parallel training in this group."""
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False), process_group=group)
    model(torch.full((1, 4), float(group.rank() + 1))).sum().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient.flatten().tolist()


def worlds(store: TCPStore) -> list[float]:
    """Sums of pairs in three worlds that are made one after another with the same store."""
    sums = []
    for first in range(RANKS):
        dist.init_process_group("inagg", store=PrefixStore("world", store), rank=RANK, world_size=RANKS)
        pair = sorted([first, (first + 1) % RANKS])
        group = dist.new_group(pair)  # of the same name in each world
        tensor = torch.full((3,), float(RANK + 1))
        if RANK in pair:
            dist.all_reduce(tensor, group=group)
        sums.append(float(tensor[0]))
        dist.barrier()
        dist.destroy_process_group()
    return sums


def main() -> None:
    torch.set_num_threads(1)
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, RANK == 0, LONG)
    ours = Reconfigurable(store)
    for number in range(4):
        group = ours.configure(f"quorum-{number}", RANK, RANKS)
        LOG.write("sum", quorum=number, sum=summed(group), job=inagg.stats(group)["job"])
        meet(store, f"summed-{number}")
        del group
        ours.abort()
        LOG.write("aborted", quorum=number, **held())
    LOG.write("worlds", sums=worlds(store))
    group = ours.configure("quorum-3", RANK, RANKS)  # again, with the same keys
    LOG.write("trained", gradient=trained(group))
    meet(store, "trained")
    if RANK == RANKS - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            summed(group)
    except inagg.InaggError as error:
        LOG.write("lost", error=type(error).__name__, message=str(error), after_s=time.monotonic() - began)
    group = ours.configure("quorum-of-survivors", RANK, RANKS - 1)
    LOG.write("sum", quorum="survivors", sum=summed(group))
    group.shutdown()
    store.set(f"end/{RANK}", "")
    if RANK == 0:  # rank 0 ends last, because it keeps the store
        store.wait([f"end/{rank}" for rank in range(RANKS - 1)], LONG)


if __name__ == "__main__":
    main()
