# SPDX-License-Identifier: Apache-2.0
"""Two ranks as processes, each of which sums once and prints what came of it."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests import forks
from tests.free_ports import free_port
from tests.hostlib.gloo_output import without_gloo

WORKER = Path(__file__).with_name("fallback_worker.py")
RANKS = 2


def run_ranks(*of_rank: dict[str, str], **environment: str) -> list[tuple[dict[str, Any], str]]:
    """Runs ranks; returns what each printed, and its log. By default, the controller's address has no listener.

    of_rank: environment variables of each rank. environment: those of all ranks.
    """
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(RANKS),
        "INAGG_CONTROLLER": f"http://127.0.0.1:{free_port()}",
        **environment,
    }
    processes = [
        forks.start_piped(
            *(sys.executable, str(WORKER)),
            modules=forks.OF_RANKS,
            environment={**shared, "RANK": str(rank), **own},
        )
        for rank, own in enumerate(of_rank or [{}] * RANKS)
    ]
    try:
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [(json.loads(without_gloo(output)), log) for output, log in outputs]
