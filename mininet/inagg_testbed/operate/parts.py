# SPDX-License-Identifier: Apache-2.0
"""`inagg kill` and `inagg restart`: the parts of a testbed that `inagg up` or `inagg run` keeps.

Only the launcher can start processes of its testbed, because the kernel ends them with their parent. So these commands
send it a request through a UNIX socket that the manifest names: one line of JSON, answered by another. The launcher
serves requests between its other tasks (`Attendant.attend`).
"""

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from inagg_testbed.errors import ConfigurationError, LauncherError
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.processes import NodeProcess, describe_exit
from inagg_testbed.network.switches import is_switch
from inagg_testbed.network.testbed import Testbed

Kind = Literal["switch", "controller", "server", "bridge"]  # as NodeProcess.kind
SignalName = Literal["KILL", "STOP", "CONT", "TERM", "INT", "HUP"]
_SETTING = "requests"  # of the manifest: the path of the socket
_LINE_S = 2.0
_READY_S = 180.0
_LONGEST = 4096
_SHORT_LIFE_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 1.0, 32.0


def parse_kinds(text: str) -> frozenset[str]:
    """From "switch,controller"; the empty text has none. Raises ConfigurationError."""
    kinds = frozenset(text.split(",")) if text else frozenset()
    if not kinds <= {*get_args(Kind)}:
        known = ", ".join(get_args(Kind))
        raise ConfigurationError(f"--restart {text}: must be like switch,controller; there is {known}")
    return kinds


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    do: Literal["restart", "signal"]
    part: str
    signal: SignalName = "KILL"


class _Answer(BaseModel):
    """error: why it was not done; null if it was. log, ready: after "restart"."""

    error: str | None = None
    log: Path | None = None
    ready: bool = False


class Attendant:
    """Says which parts have ended, starts those of some kinds again, and does what commands ask for.

    A part that ends starts again at once; one that ends again within 10 s after 1 s, then after 2 s, up to 32 s.
    """

    def __init__(self, testbed: Testbed, say: Callable[[str], object], again: Collection[str] = ()) -> None:
        """say: gets a line for each part that has ended. again: kinds to start again."""
        self._testbed, self._say, self._again = testbed, say, again
        self._ended: dict[NodeProcess, float] = {}  # since when
        self._pauses: dict[str, float] = {}  # before the next start of a part
        self._due: dict[str, float] = {}  # when to start a part
        self._waiting: list[tuple[socket.socket, NodeProcess]] = []  # commands, until a part is ready
        path = testbed.run.temporary_folder() / "requests"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        testbed.run.manifest.settings[_SETTING] = str(path)
        testbed.run.save()

    def attend(self, wait_s: float = 0.0) -> None:
        """Look after the parts and serve requests; wait for the next request for `wait_s` seconds."""
        for process in self._testbed.services:
            status = process.poll()
            if status is not None and process not in self._ended:
                self._note_end(process, status)
        for part in [part for part, at in self._due.items() if at <= time.monotonic()]:
            try:
                self._start(part)
            except (LauncherError, OSError) as error:
                self._say(str(error))
        self._answer_waiting()
        if select.select([self._listener], [], [], wait_s)[0]:
            connection, _ = self._listener.accept()
            connection.settimeout(_LINE_S)
            self._serve(connection)

    def close(self) -> None:
        """Serve no more."""
        self._listener.close()
        for connection, _ in self._waiting:
            connection.close()

    def seconds_without_switches(self) -> float:
        """Since when no switch runs; 0 if one does, or if there is none."""
        switches = [process for process in self._testbed.services if is_switch(process)]
        if not switches or any(process not in self._ended for process in switches):
            return 0.0
        return time.monotonic() - max(self._ended[process] for process in switches)

    def _note_end(self, process: NodeProcess, status: int) -> None:
        self._ended[process] = now = time.monotonic()
        line = f"the {process.name} ended with {describe_exit(status)}; its log is {process.log_path}"
        if process.kind not in self._again:
            self._say(f"{line}; `inagg restart {process.part}` starts it again")
            return
        short = now - process.started_at < _SHORT_LIFE_S
        pause = self._pauses.get(process.part, 0.0) if short else 0.0
        self._pauses[process.part] = min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._due[process.part] = now + pause
        self._say(f"{line}; it starts again" + (f" in {pause:g} s" if pause else ""))

    def _start(self, part: str) -> NodeProcess:
        self._due.pop(part, None)
        return self._testbed.restart(part)

    def _serve(self, connection: socket.socket) -> None:
        try:
            request = _Request.model_validate_json(connection.recv(_LONGEST))
            if request.do == "restart":
                self._waiting.append((connection, self._start(request.part)))
                return
            self._testbed.signal(request.part, signal.Signals[f"SIG{request.signal}"])
            answer = _Answer()
        except (LauncherError, OSError, ValueError) as error:  # ValueError: the request makes no sense
            answer = _Answer(error=str(error))
        _answer(connection, answer)

    def _answer_waiting(self) -> None:
        """Answer those whose part is ready, or has ended instead. BMv2 does not say when it is."""
        waiting, self._waiting = self._waiting, []
        for connection, process in waiting:
            silent = self._testbed.switch == "bmv2" and is_switch(process)
            if process not in self._testbed.services:
                answer = _Answer(error=f"{process.part} has been started once more meanwhile")
            elif (status := process.poll()) is not None:
                answer = _Answer(error=str(process.failure(f"ended with {describe_exit(status)}")))
            elif silent or process.has_printed("ready"):
                answer = _Answer(log=process.log_path, ready=not silent)
            else:
                self._waiting.append((connection, process))
                continue
            _answer(connection, answer)


def _answer(connection: socket.socket, answer: _Answer) -> None:
    with connection, contextlib.suppress(OSError):  # the command has gone
        connection.sendall(answer.model_dump_json().encode() + b"\n")


def send_signal(manifest: Manifest, part: str, name: SignalName) -> None:
    """Have the launcher send a signal to a part. Raises ConfigurationError."""
    _ask(manifest, _Request(do="signal", part=part, signal=name))


def restart(manifest: Manifest, part: str) -> str:
    """Have the launcher start a part again. Returns a sentence about it once it is ready. Raises ConfigurationError."""
    answer = _ask(manifest, _Request(do="restart", part=part))
    return f"{part} {'is ready' if answer.ready else 'was started'}; its log is {answer.log}"


def _ask(manifest: Manifest, request: _Request) -> _Answer:
    if _SETTING not in manifest.settings:
        raise ConfigurationError(
            f"run {manifest.run} takes no requests: `inagg up` and `inagg run` take them, once they have started"
        )
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_READY_S)
        try:
            connection.connect(manifest.settings[_SETTING])
            connection.sendall(request.model_dump_json().encode())
            with connection.makefile() as answers:
                answer = _Answer.model_validate_json(answers.readline())
        except TimeoutError as error:
            raise ConfigurationError(f"run {manifest.run} has not answered within {_READY_S:g} s") from error
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"run {manifest.run} is going down") from error
    if answer.error is not None:
        raise ConfigurationError(answer.error)
    return answer
