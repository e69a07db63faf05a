# SPDX-License-Identifier: Apache-2.0
"""A script written from the README: it uses only the backend's name of inagg, and does not destroy the group.

Arguments, if any: the backend's name with devices, and the rendezvous.
"""

import os
import sys

import torch
import torch.distributed as dist

if len(sys.argv) == 1:
    dist.init_process_group("inagg")
else:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(sys.argv[1], init_method=sys.argv[2], rank=rank, world_size=size)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [dist.get_world_size()] * 3

import inagg  # noqa: E402 - only now, to see what happened

assert inagg.stats()["path"] == "switch"
