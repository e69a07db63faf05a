# SPDX-License-Identifier: Apache-2.0
"""One rank of test_room.py: python room_worker.py [FILE]. Joins a job, sums, waits until FILE exists, and leaves. It
prints the outcome as JSON."""

import json
import logging
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import inagg

logging.basicConfig(level=logging.WARNING)
endings = [Path(argument) for argument in sys.argv[1:]]
try:
    dist.init_process_group("inagg")
except BaseException as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
    sys.exit(1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [dist.get_world_size()] * 3
print(json.dumps({"path": inagg.stats()["path"]}), "summed", sep="\n", flush=True)
while not all(ending.exists() for ending in endings):
    time.sleep(0.01)
dist.destroy_process_group()
