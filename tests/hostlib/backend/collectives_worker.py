# SPDX-License-Identifier: Apache-2.0
"""One rank of test_collectives.py: runs every case on backend "inagg" and writes one JSON line a case.

Started by the testbed with torch's env:// variables; argument: the file to append results to. Inputs are seeded by
rank, so each rank knows what the others sent and computes the expected sum itself, in float64.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch.distributed as dist

from inagg.options import Options
from tests.hostlib.backend import (
    collectives_groups,  # noqa: F401 - cases
    collectives_inner,  # noqa: F401 - cases
    collectives_methods,  # noqa: F401 - cases
    collectives_rare,  # noqa: F401 - cases
    collectives_sums,  # noqa: F401 - cases
)
from tests.hostlib.backend.collectives_cases import CASES as CASES

STAGE_CPU = "TESTS_STAGE_CPU"  # a variable: process CPU tensors like CUDA tensors


def main() -> None:
    if STAGE_CPU in os.environ:
        Options.stage_cpu = True
        os.environ["INAGG_DEVICE_SUMS"] = ("torch", "host")[
            int(os.environ["RANK"]) % 2
        ]  # ranks may differ in it
    dist.init_process_group("inagg")
    with Path(sys.argv[1]).open("a") as results:
        for run in CASES:
            start = time.monotonic()
            try:
                run()
                problem = None
            except Exception:
                problem = traceback.format_exc()
            row = {"case": run.__name__, "problem": problem, "seconds": time.monotonic() - start}
            results.write(json.dumps(row) + "\n")
            results.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
