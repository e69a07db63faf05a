# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes that do one of the jobs of `worker`."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inagg_testbed.network.workers import ONE_THREAD
from tests import forks

LONGEST_S = 120.0


def start(job: str, ranks: int, folder: Path, **settings: object) -> list[forks.Process]:
    """Start ranks, which meet in a file. folder: may have had other ranks. settings: of the job."""
    store = tempfile.mkdtemp(dir=folder)
    return [
        forks.start_piped(
            *(sys.executable, "-m", "tests.baselines.worker", job, json.dumps(settings)),
            modules=forks.OF_RANKS,
            environment={
                **os.environ,
                **ONE_THREAD,
                "GLOO_SOCKET_IFNAME": "lo",
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "STORE": store,
            },
        )
        for rank in range(ranks)
    ]


def outputs(processes: Sequence[forks.Process], timeout_s: float = LONGEST_S) -> list[tuple[str, str]]:
    """Standard output and error of each rank, once all have ended. Ends those that do not."""
    try:
        return [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()


def run(job: str, ranks: int, folder: Path, **settings: object) -> list[Any]:
    """What each rank returns from a job. Fails if a rank fails."""
    processes = start(job, ranks, folder, **settings)
    written = outputs(processes)
    assert [process.returncode for process in processes] == [0] * ranks, written
    return [json.loads(output.splitlines()[-1]) for output, _ in written]
