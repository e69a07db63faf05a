# SPDX-License-Identifier: Apache-2.0
"""One rank of test_many_groups.py: makes many groups of all ranks, sums in each, and writes what it found as JSON.

Arguments: how many groups, and the file to append the result to.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import inagg


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def main(count: int, results: Path) -> None:
    dist.init_process_group("inagg")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first = threads()
    groups = [dist.new_group() for _ in range(count)]
    for group in groups:
        tensor = torch.full((100,), float(rank + 1))
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [ranks * (ranks + 1) / 2] * 100
        dist.barrier(group)
    ways = [inagg.stats(group)["aggregation"] for group in groups]
    with results.open("a") as file:
        file.write(json.dumps({"ways": ways, "threads": threads() - first}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
