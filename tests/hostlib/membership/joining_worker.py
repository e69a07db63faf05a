# SPDX-License-Identifier: Apache-2.0
"""One rank of test_joining.py: python joining_worker.py HOW RANK. That rank fails so while it makes a group. Every rank
prints, as JSON, when it noticed, and what."""

import json
import os
import resource
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import inagg
import inagg.inner.connections
import inagg.inner.group
import inagg.membership.join

HOW = sys.argv[1]
FAILS = os.environ["RANK"] == sys.argv[2]


def say(**facts: Any) -> None:
    print(json.dumps({"at": time.time(), **facts}), flush=True)


def fail(*_: object) -> None:
    say(failed=HOW)
    if HOW.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW.startswith("stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    raise {"interrupted": KeyboardInterrupt, "exits": SystemExit}[HOW]("as programs do")


def die_within_gloo(*arguments: Any) -> Any:
    """Of a signal that Python does not handle: gloo's constructor waits for the other ranks meanwhile."""
    say(failed=HOW)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    return connect(*arguments)


def enter_without_descriptors(*arguments: Any) -> Any:
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    say(failed=HOW)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
    return begin(*arguments)


def after_the_switch(continued: Any) -> Any:
    """The test ends the switch when this rank says that it is so far, and then makes the file."""

    def wait_and_go_on(*arguments: Any) -> Any:
        say(failed=HOW)
        end = time.monotonic() + 60
        while not Path(os.environ["SWITCH_HAS_ENDED"]).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return continued(*arguments)

    return wait_and_go_on


connect, begin = inagg.inner.group._gloo, inagg.membership.join._enter
if FAILS and HOW == "out of descriptors":
    inagg.membership.join._enter = enter_without_descriptors
elif FAILS and HOW == "killed before it has met the others":
    inagg.inner.connections.Assembly.exchange = fail  # type: ignore[assignment,method-assign]
elif FAILS and HOW == "killed before gloo connects":
    inagg.inner.group._gloo = fail
elif FAILS and HOW == "killed as gloo connects":
    inagg.inner.group._gloo = die_within_gloo
elif FAILS and HOW == "switch ends before gloo connects":
    inagg.inner.group._gloo = after_the_switch(connect)
elif FAILS and HOW == "switch ends before all have joined":
    inagg.membership.join._enter = after_the_switch(begin)
elif FAILS and HOW == "switch ends before packets pass":
    inagg.membership.join.Session.try_path = after_the_switch(inagg.membership.join.Session.try_path)  # type: ignore[method-assign]
elif FAILS:
    inagg.membership.join._enter = fail  # type: ignore[assignment]
inagg.membership.join._OUTCOMES_PATIENCE = timedelta(seconds=2)
try:
    dist.init_process_group("inagg")
except BaseException as error:
    if FAILS and HOW == "out of descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    errors = traceback.format_exception(error).count("Traceback (most recent call last):\n")
    say(error=type(error).__name__, message=str(error), errors=errors)
    sys.exit(1)
say(error=None)
