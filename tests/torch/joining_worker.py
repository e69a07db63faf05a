# SPDX-License-Identifier: Apache-2.0
"""One rank of test_joining.py: python joining_worker.py HOW. Rank 1 fails so while it makes a group. Every rank prints,
as JSON, when it noticed, and what."""

import json
import os
import resource
import signal
import sys
import time
from typing import Any

import torch.distributed as dist

import inagg
import inagg._join

HOW = sys.argv[1]


def say(**facts: Any) -> None:
    print(json.dumps({"at": time.time(), **facts}), flush=True)


def fail(*_: object) -> None:
    say(failed=HOW)
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise {"interrupted": KeyboardInterrupt, "exits": SystemExit}[HOW]("as programs do")


if os.environ["RANK"] == "1":
    if HOW == "out of descriptors":
        begin = inagg._join._enter

        def enter(*arguments: Any) -> Any:
            free = os.open("/dev/null", os.O_RDONLY)
            os.close(free)
            say(failed=HOW)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
            return begin(*arguments)

        inagg._join._enter = enter
    else:
        inagg._join._enter = fail  # type: ignore[assignment]
try:
    dist.init_process_group("inagg")
except BaseException as error:
    if HOW == "out of descriptors" and os.environ["RANK"] == "1":
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    say(error=type(error).__name__, message=str(error))
    sys.exit(1)
say(error=None)
