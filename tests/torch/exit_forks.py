# SPDX-License-Identifier: Apache-2.0
"""Forks the ranks of exit_hunt.py from one process that has imported torch, and says how they have ended.

A request is a line of JSON on standard input: "run", its name; the program's "arguments"; "ranks", each with the
"node" whose namespaces it is in (a process), an "environment" and a "log". The answer is a line on standard output:
"run", and the "statuses" of the ranks. When standard input ends, the ranks that are left are killed.
"""

import ctypes
import faulthandler
import gc
import json
import os
import select
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpcore  # noqa: F401  as the next one, what a group would import

import inagg.process_group  # noqa: F401

_LONGEST_S = 100.0  # of a run
_GRACE_S = 40.0  # for the other ranks, from when one has ended
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Run:
    """Its processes are known by descriptors, which can be polled."""

    name: str
    statuses: list[int | None]  # None: it has not ended, or had to be killed
    ranks: dict[int, tuple[int, int]] = field(default_factory=dict)  # descriptor -> rank, process
    deadline: float = field(default_factory=lambda: time.monotonic() + _LONGEST_S)
    late: bool = False


def serve() -> list[str]:
    """Fork ranks until there are no more requests. Returns only in those, with their arguments."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in what is forked"
    # Of what has been imported. What a rank makes is looked through when its interpreter ends, as ever.
    gc.freeze()
    look = select.poll()
    look.register(0, select.POLLIN)
    runs: dict[int, _Run] = {}  # by the descriptors of their processes
    unread = b""
    while True:
        now = time.monotonic()
        for run in {id(run): run for run in runs.values()}.values():
            if now >= run.deadline:
                _kill(run)
        for descriptor, _ in look.poll(1000):
            if descriptor != 0:
                look.unregister(descriptor)
                _reap(runs.pop(descriptor), descriptor)
                continue
            if not (read := os.read(0, 1 << 16)):
                for run in runs.values():
                    run.late = True
                    _kill(run)
                os._exit(0)
            *requests, unread = (unread + read).split(b"\n")
            for request in map(json.loads, requests):
                run = _Run(request["run"], [None] * len(request["ranks"]))
                for number, rank in enumerate(request["ranks"]):
                    process = os.fork()
                    if process == 0:
                        _become(rank)
                        return list(request["arguments"])
                    descriptor = os.pidfd_open(process)
                    run.ranks[descriptor] = number, process
                    runs[descriptor] = run
                    look.register(descriptor, select.POLLIN)


def _become(rank: dict[str, Any]) -> None:
    """In the child: the process that a launcher would have started."""
    os.setsid()  # so that each gets as much of a processor as it would elsewhere (sched(7), autogroup)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if _libc.setns(os.pidfd_open(rank["node"]), _CLONE_NEWNS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.update(rank["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs lack
    faulthandler.enable()


def _reap(run: _Run, descriptor: int) -> None:
    number, process = run.ranks.pop(descriptor)
    os.close(descriptor)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not run.late:
        run.statuses[number] = status
        run.deadline = min(run.deadline, time.monotonic() + _GRACE_S)
    if not run.ranks:
        print(json.dumps({"run": run.name, "statuses": run.statuses}), flush=True)


def _kill(run: _Run) -> None:
    """With what they have forked; first so that their threads' stacks come into the logs."""
    for _, process in run.ranks.values():
        try:
            os.killpg(process, signal.SIGKILL if run.late else signal.SIGABRT)
        except ProcessLookupError:  # it has not come to setsid()
            os.kill(process, signal.SIGKILL)
    run.late, run.deadline = True, time.monotonic() + 5
