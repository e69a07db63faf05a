# SPDX-License-Identifier: Apache-2.0
"""One rank of test_joining.py: python joining_worker.py HOW RANK. Rank RANK fails in the way HOW while it makes a
group. Each rank prints as JSON when its attempt ended, and the error."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

import inagg.inner.group
import inagg.membership.join
from inagg.membership.assembly import Assembly
from inagg.membership.session import Session

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
    """Die of a signal that Python does not handle, while gloo's constructor waits for the other ranks."""
    say(failed=HOW)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    return connect(*arguments)


def stop_within_gloo(*arguments: Any) -> Any:
    """Stop while gloo's constructor waits for the other ranks."""
    say(failed=HOW)
    subprocess.Popen(["kill", "-STOP", str(os.getpid())])
    return connect(*arguments)


def hold_the_gil_and_go_on(*arguments: Any) -> Any:
    ctypes.PyDLL(None).sleep(12)
    return begin(*arguments)


def enter_without_descriptors(*arguments: Any) -> Any:
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    say(failed=HOW)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
    return begin(*arguments)


def after_the_switch(continued: Any) -> Any:
    """Returns a function that waits, before it calls `continued`, until the switch has ended: the test ends the switch
    when this rank prints that it is here, and then creates the file SWITCH_HAS_ENDED."""

    def wait_and_go_on(*arguments: Any) -> Any:
        say(failed=HOW)
        end = time.monotonic() + 60
        while not Path(os.environ["SWITCH_HAS_ENDED"]).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return continued(*arguments)

    return wait_and_go_on


connect, begin = inagg.inner.gloo.make_gloo, inagg.membership.join._enter
REPLACEMENTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "out of descriptors": (inagg.membership.join, "_enter", enter_without_descriptors),
    "killed before it has met the others": (Assembly, "exchange", fail),
    "stopped before it has met the others": (Assembly, "exchange", fail),
    "stopped before gloo connects": (inagg.inner.group, "make_gloo", fail),
    "stopped as gloo connects": (inagg.inner.group, "make_gloo", stop_within_gloo),
    "stopped before it knows its job": (inagg.membership.join, "_begin", fail),
    "stopped before packets pass": (Session, "try_path", fail),
    "busy before it has joined": (inagg.membership.join, "_enter", hold_the_gil_and_go_on),
    "killed before gloo connects": (inagg.inner.group, "make_gloo", fail),
    "killed as gloo connects": (inagg.inner.group, "make_gloo", die_within_gloo),
    "switch ends before gloo connects": (inagg.inner.group, "make_gloo", after_the_switch(connect)),
    "switch ends before all have joined": (inagg.membership.join, "_enter", after_the_switch(begin)),
    "switch ends before packets pass": (Session, "try_path", after_the_switch(Session.try_path)),
}
if FAILS:
    owner, name, replacement = REPLACEMENTS.get(HOW, (inagg.membership.join, "_enter", fail))
    setattr(owner, name, replacement)
try:
    dist.init_process_group("inagg")
except BaseException as error:
    if FAILS and HOW == "out of descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    errors = traceback.format_exception(error).count("Traceback (most recent call last):\n")
    say(error=type(error).__name__, message=str(error), errors=errors)
    sys.exit(1)
say(error=None)
