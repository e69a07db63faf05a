"""What a newcomer writes from the README: nothing of inagg but the backend's name; no clean end."""

import torch
import torch.distributed as dist

dist.init_process_group("inagg")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [dist.get_world_size()] * 3

import inagg  # noqa: E402 - only now, to see what happened

assert inagg.stats()["path"] == "switch"
