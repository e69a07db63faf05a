# SPDX-License-Identifier: Apache-2.0
"""One host of a testbed: counts the bytes on its link while ranks exchange weights, beside what theory says."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from inagg_baselines import catalog, exchanges

ELEMENTS = 500_000
STEPS = 4  # of local:2, two have an all-reduce


def counted() -> torch.Tensor:
    """Bytes of frames that the host's interface has received, and sent."""
    (interface,) = (one for one in Path("/sys/class/net").iterdir() if one.name != "lo")
    names = ("rx_bytes", "tx_bytes")
    return torch.tensor([int((interface / "statistics" / name).read_text()) for name in names])


def main() -> None:
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    racks = [range(ranks // 2), range(ranks // 2, ranks)]
    found = {}
    for name in sys.argv[1:]:
        architecture = catalog.parse(name)
        weights = torch.zeros(ELEMENTS)
        exchange = exchanges.make(architecture, racks)
        exchange.start([weights])
        dist.barrier()
        before = counted()
        dist.barrier()  # none begins before all have counted
        for _ in range(STEPS):
            weights += 1
            exchange.after_step()
        dist.barrier()
        of_ranks = [torch.empty(2, dtype=torch.int64) for _ in range(ranks)]
        dist.all_gather(of_ranks, counted() - before)
        exchange.finish()
        theory = architecture.theory(ranks, racks).share * weights.numel() * weights.element_size() * STEPS
        found[name] = int(torch.stack(of_ranks).max()) / theory
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
