# SPDX-License-Identifier: Apache-2.0
"""One rank of the training of a soak: python -m tests.chaos.training EVENTS LAST.

It trains until the step whose number is in the file LAST, and writes an event with a digest of the weights after every
EACH steps. The weights follow from the number of steps alone.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inagg
from inagg_testbed.events import EventLog

EACH = 10
_INPUTS, _WIDTH, _CLASSES, _BATCH = 64, 4096, 10, 16  # 1.2 MB of weights
_PAGE = os.sysconf("SC_PAGE_SIZE")


def last_step(path: Path) -> int:
    """The last step; very late before somebody has decided it."""
    return int(path.read_text()) if path.exists() else sys.maxsize


def resident_bytes(process: int | str = "self") -> int:
    """The resident memory of a process (proc(5), statm)."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE


def descriptors(process: int | str = "self") -> int:
    """The number of its open descriptors."""
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def main(events: Path, last: Path) -> None:
    log = EventLog(events)
    dist.init_process_group("inagg")
    torch.manual_seed(1)
    layers = torch.nn.Linear(_INPUTS, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _CLASSES)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draws = torch.Generator().manual_seed(dist.get_rank())
    step = 0
    while step < last_step(last):
        step += 1
        inputs = torch.randn(_BATCH, _INPUTS, generator=draws)
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :_CLASSES].argmax(1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % EACH == 0:
            weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
            log.write(
                "step",
                at=time.time(),
                number=step,
                loss=loss.item(),
                digest=hashlib.sha256(weights).hexdigest(),
                changes=len(inagg.stats()["changes"]),
                descriptors=descriptors(),
                resident=resident_bytes(),
            )
    dist.destroy_process_group()
    log.write("end")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
