# SPDX-License-Identifier: Apache-2.0
"""One rank of test_late_ranks.py: rank 1 computes longer in each backward pass, rank 3 waits for its data.

Reports what `inagg.explain` says at the end. Arguments: the file for events; "prompt" if no rank is to be late.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import inagg
from inagg_testbed.events import EventLog

BUSY_RANK, BUSY_S = 1, 0.2
LOADING_RANK, LOADING_S = 3, 0.15
STEPS = 12


class Samples(Dataset[torch.Tensor]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._pause_s)
        return torch.ones(10)


def be_busy(gradient: torch.Tensor) -> None:
    end = time.monotonic() + BUSY_S
    while time.monotonic() < end:
        gradient.sum()


def main() -> None:
    log = EventLog(Path(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("inagg")
    rank = dist.get_rank() if sys.argv[2:] != ["prompt"] else None
    model = DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Samples(LOADING_S if rank == LOADING_RANK else 0.0)):
        optimizer.zero_grad()
        outputs = model(batch)
        if rank == BUSY_RANK:
            outputs.register_hook(be_busy)
        outputs.sum().backward()
        optimizer.step()
    found = inagg.explain()
    late = found.figures["late"]
    log.write(
        "explained", late=late, report=str(found), path=found.figures["path"], waits=found.figures["waits"]
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
