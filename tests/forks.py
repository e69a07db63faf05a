# SPDX-License-Identifier: Apache-2.0
"""Forks Python programs from an interpreter that has imported what they import, which takes each of them seconds
otherwise: torch in ranks, gRPC, FastAPI and others in the commands of inagg.

`Forks` starts that interpreter, which runs `serve`. A request to fork is a file of JSON with a "number", the "command",
its "environment", "folder" and limit of open files, and the "node" whose namespaces it is to be in (a process), or
null. The descriptors of the file and of the program's standard input, output and error go through a socket. The
answers, messages of JSON, are "started", a number, with the "process", and later "ended", the number, with the
"status". A process that has ended stays a zombie until the message "reap", so that nobody takes another one for it.
When the socket is closed, the programs that are left are killed. The first answer names "threads" that the imports have
started, as some builds of torch do: then nothing can be forked, and processes are started.

What is forked shares the seed of hashes, and has in /proc/PID/environ that of the interpreter. test_plain_script.py,
test_launched.py and test_exit.py start their ranks as users do.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeAlias

import pytest

from inagg_testbed.network import servers, switches, testbed
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.switches import command_path
from inagg_testbed.network.workers import ONE_THREAD
from tests import ROOT

# What ranks import. A group imports httpcore, DDP and optimizers torch._dynamo, the digits sklearn.
OF_RANKS = ("torch", "inagg.process_group", "httpcore", "torch._dynamo", "sklearn.datasets")
# What the commands below import.
OF_COMMANDS = (
    *("inagg_controller.cli", "inagg_server.cli", "inagg_switch.cli.main", "inagg_switch.p4runtime.server"),
    *("inagg_switch.compiler", "inagg_switch.ports", "inagg_switch.metrics"),
)

_COMMANDS = {command_path(name) for name in ("inagg-controller", "inagg-server", "inagg-switch")}

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_PR_SET_PDEATHSIG = 1
_FOREVER_S = 1e9
_LONGEST = 1 << 12  # bytes of a message

_libc = ctypes.CDLL(None, use_errno=True)


class Fork:
    """A process that has been forked; of subprocess.Popen what the tests and inagg_testbed.network.processes use."""

    def __init__(self, forks: "Forks", number: int, pid: int) -> None:
        self._forks = forks
        self._number = number
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """As Popen.poll."""
        if self.returncode is None:
            self._forks.read(0)
            self.returncode = self._forks.ended.pop(self._number, None)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As Popen.wait."""
        deadline = time.monotonic() + (_FOREVER_S if timeout is None else timeout)
        while self.poll() is None:
            if (left := deadline - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
            self._forks.read(left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As Popen.send_signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """As Popen.terminate."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As Popen.kill."""
        self.send_signal(signal.SIGKILL)


class PipedFork(Fork):
    """A process that has been forked, with pipes for its standard input, output and error, in text."""

    def __init__(self, forks: "Forks", command: Sequence[str], environment: Mapping[str, str]) -> None:
        (their_in, our_in), (our_out, their_out), (our_error, their_error) = (os.pipe() for _ in range(3))
        self.stdin = os.fdopen(our_in, "w", buffering=1)
        self.stdout, self.stderr = os.fdopen(our_out), os.fdopen(our_error)
        streams = (their_in, their_out, their_error)
        try:
            super().__init__(forks, *forks.fork(command, streams, environment=environment))
        except BaseException:
            self._close()
            raise
        finally:
            for stream in streams:
                os.close(stream)
        self._readers: list[_Reader] = []

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """As Popen.communicate without input."""
        deadline = time.monotonic() + (_FOREVER_S if timeout is None else timeout)
        with suppress(BrokenPipeError):
            self.stdin.close()
        if not self._readers:
            self._readers = [_Reader(self.stdout), _Reader(self.stderr)]
        for reader in self._readers:
            reader.join(max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        self.wait(deadline - time.monotonic())
        self._close()
        output, errors = (reader.text for reader in self._readers)
        return output, errors

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()


class _Reader(threading.Thread):
    """Reads a stream until its end. text: what it has read."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(daemon=True)  # a program that does not end does not hold up the end of the tests
        self.text = ""
        self._stream = stream
        self.start()

    def run(self) -> None:
        self.text = self._stream.read()


Process: TypeAlias = "PipedFork | subprocess.Popen[str]"


class Forks:
    """An interpreter that has imported `modules`, and what is forked from it. Not for several threads."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        serve_here = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests import forks"
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{serve_here}; exec(forks.serve(sys.argv[1:]))", *modules],
                stdin=theirs.fileno(),
                cwd=ROOT,
                env=os.environ | ONE_THREAD | dict(environment or {}),
                start_new_session=True,  # Ctrl-C is for this process
            )
        self._started: dict[int, int] = {}  # the processes by number, until `fork` has returned them
        self.ended: dict[int, int] = {}  # the statuses by number, until `Fork.poll` has taken them
        self._numbers = count()
        self._threads: list[str] | None = None

    @property
    def threads(self) -> list[str]:
        """The names of threads that importing the modules has started. They would be missing in what is forked."""
        while self._threads is None:
            self.read(_FOREVER_S)
        return self._threads

    def start(self, command: Sequence[str], *, environment: Mapping[str, str], node: int, log: Path) -> Fork:
        """Fork a program in a node's namespaces, which writes to a log; its environment is only `environment`."""
        with Path(os.devnull).open() as nothing, log.open("a") as written:
            streams = [nothing.fileno(), written.fileno(), written.fileno()]
            return Fork(self, *self.fork(command, streams, environment=environment, node=node))

    def fork(
        self,
        command: Sequence[str],
        streams: Sequence[int],
        *,
        environment: Mapping[str, str],
        node: int | None = None,
    ) -> tuple[int, int]:
        """Fork a program, `command` being `python ...`. Returns its number and its process."""
        assert can_fork(command, environment), command
        assert not self.threads
        number = next(self._numbers)
        request = {
            "number": number,
            "command": command[1:],
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "node": node,
            "most_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())
            file.seek(0)
            socket.send_fds(self._socket, [b"fork"], [file.fileno(), *streams])
        while number not in self._started:
            self.read(_FOREVER_S)
        return number, self._started.pop(number)

    def read(self, timeout_s: float) -> None:
        """Take the answers that there are; wait for one for so long."""
        while select.select([self._socket], [], [], timeout_s)[0]:
            timeout_s = 0
            if not (read := self._socket.recv(_LONGEST)):
                raise ChildProcessError(
                    f"the interpreter that forks has ended: status {self._process.wait()}"
                )
            answer = json.loads(read)
            if "threads" in answer:
                self._threads = answer["threads"]
            elif "started" in answer:
                self._started[answer["started"]] = answer["process"]
            else:
                self.ended[answer["ended"]] = answer["status"]
                self._socket.send(json.dumps({"reap": answer["process"]}).encode())

    def close(self) -> None:
        """End the interpreter, and with it what has been forked."""
        self._socket.close()
        self._process.wait()


@cache
def interpreter(modules: tuple[str, ...]) -> Forks:
    """The interpreter with these modules for the tests of this process, which ends with it."""
    forks = Forks(modules)
    atexit.register(forks.close)
    return forks


def start_piped(
    *command: str, modules: tuple[str, ...], environment: Mapping[str, str] = os.environ
) -> Process:
    """Start `python ...` with pipes; forked if it can be."""
    forks = interpreter(modules)
    if forks.threads or not can_fork(command, environment):
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1
        )
    return PipedFork(forks, command, environment)


@contextmanager
def forked_processes(ranks: Forks, commands: Forks) -> Iterator[None]:
    """Testbeds fork their ranks and the commands of inagg, where they can, instead of starting them."""

    class ForkedProcess(NodeProcess):
        def _started(self) -> "subprocess.Popen[bytes]":
            environment = os.environ | self._run.environment | dict(self._environment)
            forks, python = ranks, self.command
            if self.command[0] in _COMMANDS:
                forks, python = commands, [sys.executable, *self.command]
            if forks.threads or not can_fork(python, environment):
                return super()._started()
            self.log_path.touch()  # whoever starts a process may read its log at once
            # It has what is used of Popen.
            return forks.start(  # type: ignore[return-value]
                python, environment=environment, node=self._node.pid, log=self.log_path
            )

    def run(command: Sequence[str], *, timeout: float, **settings: Any) -> "subprocess.CompletedProcess[str]":
        python = [sys.executable, *command]
        if command[0] not in _COMMANDS or commands.threads or not can_fork(python, os.environ):
            return subprocess.run(command, timeout=timeout, **settings)
        compiler = PipedFork(commands, python, os.environ)
        output, errors = compiler.communicate(timeout)
        assert compiler.returncode is not None
        return subprocess.CompletedProcess(command, compiler.returncode, output, errors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switches, "subprocess", types.SimpleNamespace(run=run))
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
    imported = _open_descriptors()
    requests = socket.socket(fileno=os.dup(0))
    running: dict[int, tuple[int, int]] = {}  # descriptor -> number, process

    def end() -> NoReturn:
        for _, process in running.values():
            _kill(process)
        os._exit(0)

    def answer(**words: int | list[str]) -> None:
        try:
            requests.send(json.dumps(words).encode())
        except OSError:  # nobody asks any more
            end()

    answer(threads=[(thread / "comm").read_text().strip() for thread in threads])
    # Of what has been imported. What a program makes is looked through when its interpreter ends, as ever.
    gc.freeze()
    look = select.poll()
    look.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in look.poll():
            if descriptor in running:
                look.unregister(descriptor)
                os.close(descriptor)
                number, process = running.pop(descriptor)
                answer(ended=number, process=process, status=_status(process))
                continue
            read, descriptors, *_ = socket.recv_fds(requests, _LONGEST, 4)
            if not read:
                end()
            if not descriptors:
                os.waitpid(json.loads(read)["reap"], 0)
                continue
            file, *streams = descriptors
            with os.fdopen(file) as request_file:
                request = json.load(request_file)
            process = os.fork()
            if process == 0:
                requests.close()
                return _become(request, streams, imported)
            for stream in streams:
                os.close(stream)
            descriptor = os.pidfd_open(process)
            running[descriptor] = request["number"], process
            look.register(descriptor, select.POLLIN)
            answer(started=request["number"], process=process)


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


def _open_descriptors() -> set[int]:
    found = set()
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the list has its own descriptor, which is closed
            os.fstat(int(entry.name))
            found.add(int(entry.name))
    return found


def _become(request: dict[str, Any], streams: Sequence[int], imported: set[int]) -> types.CodeType:
    """In the child: the process that a launcher would have started. imported: descriptors that modules have opened."""
    os.setsid()  # so that each gets as much of a processor as it would elsewhere (sched(7), autogroup)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    if (node := request["node"]) and _libc.setns(os.pidfd_open(node), _CLONE_NEWNS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.chdir(request["folder"])
    for descriptor in _open_descriptors() - imported - {0, 1, 2}:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, request["most_files"])
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
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{command[1]}.__main__")
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
