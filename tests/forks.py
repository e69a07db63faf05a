# SPDX-License-Identifier: Apache-2.0
"""Forks Python programs from an interpreter that has imported what they import, which takes each of them seconds
otherwise: torch in ranks, gRPC, FastAPI and others in the commands of inagg.

`Forks` starts that interpreter, which runs `serve`. A request is a line of JSON on its standard input: a "number", the
"command", its "environment", the "node" whose namespaces it is to be in (a process) and a "log" for what it prints. The
answers, lines on its standard output, are "started", a process, with the "number", and for each of these "ended", the
process, and its "status". A process that has ended stays a zombie until the request "reap", so that nobody takes
another one for it. When standard input ends, the programs that are left are killed. The first answer names "threads"
that the imports have started, as some builds of torch do: then nothing can be forked, and testbeds start processes.

What is forked shares the seed of hashes, and has in /proc/PID/environ that of the interpreter. test_plain_script.py,
test_launched.py and test_exit.py start their ranks as users do.
"""

import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.network import servers, switches, testbed
from inagg_testbed.network.lifecycle import Run
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.switches import command_path
from inagg_testbed.network.workers import ONE_THREAD
from tests import ROOT

# What ranks import. A group imports httpcore, DDP and optimizers torch._dynamo, the digits sklearn.
OF_RANKS = ("torch", "inagg.process_group", "httpcore", "torch._dynamo", "sklearn.datasets")
# What the commands below import.
OF_COMMANDS = (
    *("inagg_controller.cli", "inagg_server.cli", "inagg_switch.cli.main", "inagg_switch.p4runtime.server"),
    *("inagg_switch.ports", "inagg_switch.metrics"),
)

_COMMANDS = {command_path(name) for name in ("inagg-controller", "inagg-server", "inagg-switch")}

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_PR_SET_PDEATHSIG = 1
_FOREVER_S = 1e9

_libc = ctypes.CDLL(None, use_errno=True)


class Fork:
    """A process that has been forked; of subprocess.Popen what inagg_testbed.network.processes uses."""

    def __init__(self, forks: "Forks", pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """As Popen.poll."""
        if self.returncode is None:
            self._forks.read(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """As Popen.wait."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if (left := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired("a forked program", timeout)
            self._forks.read(left)
        assert self.returncode is not None
        return self.returncode


class Forks:
    """An interpreter that has imported `modules`, and what is forked from it. Not for several threads."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        serve_here = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import forks"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{serve_here}; exec(forks.serve(sys.argv[1:]))", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | dict(environment or {}),
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._unread = b""
        self._running: dict[int, Fork] = {}
        self._started: dict[int, Fork] = {}  # by the number of the request
        self._numbers = count()
        self._threads: list[str] | None = None

    @property
    def threads(self) -> list[str]:
        """The names of threads that importing the modules has started. They would be missing in what is forked."""
        while self._threads is None:
            self.read(_FOREVER_S)
        return self._threads

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], node: int, log: Path) -> Fork:
        """Fork a program, `command` being `python ...`; its environment is only `environment`."""
        assert can_fork(command, environment), command
        assert not self.threads
        number = next(self._numbers)
        self._ask(
            number=number,
            command=command[1:],
            environment=dict(environment),
            node=node,
            log=str(log),
        )
        while number not in self._started:
            self.read(_FOREVER_S)
        return self._started.pop(number)

    def _ask(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def read(self, timeout_s: float) -> None:
        """Take the answers that there are; wait for one for so long."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not readable:
            return
        if not (read := os.read(self._process.stdout.fileno(), 1 << 16)):
            raise ChildProcessError(f"the interpreter that forks has ended: status {self._process.wait()}")
        *answers, self._unread = (self._unread + read).split(b"\n")
        for answer in map(json.loads, answers):
            if "threads" in answer:
                self._threads = answer["threads"]
            elif "started" in answer:
                self._running[answer["started"]] = fork = Fork(self, answer["started"])
                self._started[answer["number"]] = fork
            else:
                self._running.pop(answer["ended"]).returncode = answer["status"]
                self._ask(reap=answer["ended"])

    def close(self) -> None:
        """End the interpreter, and with it what has been forked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def forked_processes(ranks: Forks, commands: Forks) -> Iterator[None]:
    """Testbeds fork their ranks, controllers, switches and servers, where they can, instead of starting them."""

    class ForkedProcess(NodeProcess):
        @classmethod
        def start(
            cls, run: Run, node: Any, name: str, command: Sequence[str], *, log_path: Path, **settings: Any
        ) -> NodeProcess:
            environment = os.environ | run.environment | dict(settings.get("environment") or {})
            forks, python = ranks, command
            if command[0] in _COMMANDS:
                forks, python = commands, [sys.executable, *command]
            if forks.threads or not can_fork(python, environment):
                return super().start(run, node, name, command, log_path=log_path, **settings)
            log_path.touch()  # whoever starts a process may read its log at once
            fork = forks.start(python, environment=environment, node=node.pid, log=log_path)
            return cls(run, name, command, fork, log_path)  # type: ignore[arg-type]  # it has what is used of Popen

    with pytest.MonkeyPatch.context() as patch:
        for module in (servers, switches, testbed):
            patch.setattr(module, "NodeProcess", ForkedProcess)
        yield


def can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a program can be forked: it is one of Python without options, whose environment does not say how the
    interpreter itself is to run."""
    return (
        command[0] == sys.executable
        and len(command) > 1
        and (command[1] in ("-c", "-m") or not command[1].startswith("-"))
        and {name: value for name, value in environment.items() if name.startswith("PYTHON")}
        == {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    )


def serve(modules: Sequence[str]) -> types.CodeType:
    """Fork programs until there are no more requests. Returns only in these, the code to run."""
    for module in modules:
        importlib.import_module(module)
    threads = [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]
    _answer(threads=[(thread / "comm").read_text().strip() for thread in threads])
    # Of what has been imported. What a program makes is looked through when its interpreter ends, as ever.
    gc.freeze()
    look = select.poll()
    look.register(0, select.POLLIN)
    running: dict[int, int] = {}  # descriptor -> process
    unread = b""
    while True:
        for descriptor, _ in look.poll():
            if descriptor != 0:
                look.unregister(descriptor)
                os.close(descriptor)
                ended = running.pop(descriptor)
                _answer(ended=ended, status=_status(ended))
                continue
            if not (read := os.read(0, 1 << 16)):
                for process in running.values():
                    _kill(process)
                os._exit(0)
            *requests, unread = (unread + read).split(b"\n")
            for request in map(json.loads, requests):
                if "reap" in request:
                    os.waitpid(request["reap"], 0)
                    continue
                process = os.fork()
                if process == 0:
                    return _become(request)
                descriptor = os.pidfd_open(process)
                running[descriptor] = process
                look.register(descriptor, select.POLLIN)
                _answer(started=process, number=request["number"])


def _answer(**answer: int | list[str]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def _status(process: int) -> int:
    """Of one that has ended, and stays a zombie; negative: the signal."""
    found = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert found is not None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _kill(process: int) -> None:
    """With what it has forked."""
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # it has not come to setsid()
        os.kill(process, signal.SIGKILL)


def _become(request: dict[str, Any]) -> types.CodeType:
    """In the child: the process that a launcher would have started."""
    os.setsid()  # so that each gets as much of a processor as it would elsewhere (sched(7), autogroup)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    here = Path.cwd()
    if _libc.setns(os.pidfd_open(request["node"]), _CLONE_NEWNS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.chdir(here)  # setns has gone to the root
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs lack
    faulthandler.enable()
    return _program(request["command"])


def _program(command: list[str]) -> types.CodeType:
    """The code of `python COMMAND`, for which `__main__` and sys are made what the interpreter would have made them."""
    main = sys.modules["__main__"]
    sys.path.pop(0)  # the repository's folder
    if command[0] == "-c":
        sys.argv[:] = ["-c", *command[2:]]
        return compile(command[1], "<string>", "exec")
    if command[0] == "-m":
        spec = importlib.util.find_spec(command[1])
        assert spec is not None
        assert spec.origin is not None
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
        sys.path[0] = str(Path.cwd())
        command = [spec.origin, *command[2:]]
    else:
        main.__file__ = command[0]
        sys.path[0] = str(Path(command[0]).resolve().parent)
    sys.argv[:] = command
    return compile(Path(command[0]).read_bytes(), command[0], "exec")
