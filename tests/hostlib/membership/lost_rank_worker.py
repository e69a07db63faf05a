# SPDX-License-Identifier: Apache-2.0
"""One rank of test_lost_rank.py: a group whose ranks form it, lose one, go on without it, and admit its replacement.

Argument: the file for events. The last rank is a process of its own below this one, which starts another in its place
when it has been killed, as torchrun does. Rank 0 keeps the store.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import inagg
from inagg.options import Options
from inagg_testbed.events import EventLog
from inagg_testbed.network.control import token_path

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = RANKS - 1
LONG = timedelta(seconds=60)
LOG = EventLog(Path(sys.argv[1]))
PART = sys.argv[2] if len(sys.argv) > 2 else ""  # of the last rank: which of its processes this is
HAVE_ENABLE_RECONFIGURE = hasattr(dist, "_reconfigure")


def make(store: TCPStore) -> inagg.ProcessGroup:
    """A group that does nothing before `form`: the world, where torch can make it."""
    if HAVE_ENABLE_RECONFIGURE:
        settings: dict[str, Any] = {"enable_reconfigure": True}
        dist.init_process_group("inagg", store=store, rank=RANK, world_size=RANKS, timeout=LONG, **settings)
        group = dist.group.WORLD
        assert isinstance(group, inagg.ProcessGroup)
        return group
    return inagg.ProcessGroup(store, RANK, RANKS, LONG, Options.resolve(), formed=False)


def form(group: inagg.ProcessGroup, store: TCPStore, uuid: int, members: list[int]) -> None:
    """Have these ranks form the group, once all of them are there."""
    store.set(f"handle/{uuid}/{RANK}", group.get_reconfigure_handle())
    handles = [store.get(f"handle/{uuid}/{member}").decode() for member in members]
    began = time.monotonic()
    if HAVE_ENABLE_RECONFIGURE:
        torchs: Any = dist
        torchs._reconfigure(uuid, handles, timeout=LONG).wait()
    else:
        group.reconfigure(SimpleNamespace(uuid=uuid, handles=handles, timeout=LONG)).wait()
    LOG.write(
        "formed",
        uuid=uuid,
        rank=group.rank(),
        size=group.size(),
        seconds=time.monotonic() - began,
        path=group.path,
        seed=group.options.seed,
        timeout_s=group.timeout_s,
    )


def summed(group: inagg.ProcessGroup) -> float:
    """The sum of the made ranks + 1. Checks that all elements are equal."""
    tensor = torch.full((20_000,), float(RANK + 1))
    group.allreduce([tensor]).wait()
    assert bool((tensor == tensor[0]).all())
    return float(tensor[0])


def gradient(model: DistributedDataParallel) -> float:
    """Of a step in which each rank's gradient is its made rank + 1: the mean."""
    model.zero_grad()
    model(torch.full((1, 4), float(RANK + 1))).sum().backward()
    mean = next(model.parameters()).grad
    assert mean is not None
    return float(mean.flatten()[0])


def leased() -> int:
    """Slot versions that jobs lease, at all switches; each is given back when its entries have been removed."""
    token = token_path(Path(sys.argv[1]).parent).read_text().strip()
    request = urllib.request.Request(
        f"{os.environ['INAGG_CONTROLLER']}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        text = answer.read().decode()
    found = re.findall(r'inagg_pool_slot_versions\{[^}]*state="leased"[^}]*\} (\S+)', text)
    return sum(int(float(count)) for count in found)


def lose(model: DistributedDataParallel, store: TCPStore) -> None:
    """Train until the last rank is lost, and look when the job's slots are free."""
    held, began = leased(), time.monotonic()
    store.set(f"looked/{RANK}", "")
    try:
        while True:
            gradient(model)
    except RuntimeError as error:
        found = {"message": str(error), "after_s": time.monotonic() - began}
    seen = time.monotonic()
    while leased() and time.monotonic() < seen + 20:
        time.sleep(0.01)
    LOG.write("lost", **found, held=held, freed_s=time.monotonic() - seen)


def abort_under_way(group: inagg.ProcessGroup, store: TCPStore) -> None:
    """Abort while a thread of rank 0 waits for a sum and another for a message, which never come."""
    store.set(f"aborting/{RANK}", "")
    store.wait([f"aborting/{rank}" for rank in range(RANKS)], LONG)
    if RANK != 0:
        return
    works = [group.allreduce([torch.ones(1000)]), group.recv([torch.ones(3)], 1, 7)]
    ends: list[float] = []

    def wait(work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError:
            ends.append(time.monotonic())

    threads = [threading.Thread(target=wait, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    group.abort()
    for thread in threads:
        thread.join(20)
    LOG.write("aborted", seconds=max(ends) - began, waits=len(ends), aborting_s=time.monotonic() - began)


def train(part: str) -> None:
    torch.set_num_threads(1)
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, RANK == 0, LONG)
    everyone = list(range(RANKS))
    group = make(store)
    if part != "replacement":
        try:
            summed(group)
        except inagg.InaggError as error:
            LOG.write("unformed", message=str(error), path=group.path)
        form(group, store, 1, everyone)
        torch.manual_seed(3)
        model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False), process_group=group)
        LOG.write("sum", uuid=1, sum=summed(group), gradient=gradient(model))
        if RANK == LAST:
            store.wait([f"looked/{rank}" for rank in everyone[:-1]], LONG)
            os.kill(os.getpid(), signal.SIGKILL)
        group.options = group.options.model_copy(update={"seed": 7})
        lose(model, store)
        form(group, store, 2, everyone[:-1])
        LOG.write("sum", uuid=2, sum=summed(group), gradient=gradient(model))
    form(group, store, 3, everyone)
    LOG.write("sum", uuid=3, sum=summed(group))
    abort_under_way(group, store)
    form(group, store, 4, everyone[::-1])
    LOG.write("sum", uuid=4, sum=summed(group), calls=group.stats()["calls"]["all_reduce"]["count"])
    if RANK != LAST:
        form(group, store, 5, everyone[:-1])
    try:
        LOG.write("left", sum=summed(group))
    except inagg.InaggError as error:
        LOG.write("left out", error=type(error).__name__, message=str(error))
    store.set(f"end/{RANK}", "")
    if RANK == 0:  # rank 0 ends last, because it keeps the store
        store.wait([f"end/{rank}" for rank in everyone], LONG)
    if RANK != 0:
        group.abort()  # and no shutdown: the program must end nevertheless


def main() -> None:
    if RANK != LAST or PART:
        train(PART)
        return
    again = [sys.executable, __file__, sys.argv[1]]
    assert subprocess.run([*again, "first"], check=False).returncode == -signal.SIGKILL
    subprocess.run([*again, "replacement"], check=True)


if __name__ == "__main__":
    main()
