# SPDX-License-Identifier: Apache-2.0
"""One rank of test_fallback.py: a sum on a network that has no controller. Prints the outcome as JSON."""

import json
import logging
import time

import torch
import torch.distributed as dist

import inagg
import inagg.process_group  # its time is not to be measured

logging.basicConfig(level=logging.WARNING)
begun = time.time()
try:
    dist.init_process_group("inagg")
except inagg.InaggError as error:
    print(
        json.dumps(
            {"error": type(error).__name__, "message": str(error), "begun": begun, "ended": time.time()}
        )
    )
else:
    made = time.time()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    print(json.dumps({"sum": tensor.tolist(), "stats": inagg.stats(), "made": made - begun}))
    dist.destroy_process_group()
