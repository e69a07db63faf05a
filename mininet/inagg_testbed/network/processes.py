# SPDX-License-Identifier: Apache-2.0
"""Processes inside nodes: starts, logs, watches and ends them, and explains their failures.

Each process has its own log file (stdout and stderr) and is in the run's manifest while it lives. The kernel kills it
when the launcher dies. Start processes only from the main thread: for PR_SET_PDEATHSIG the parent is the thread that
forked.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inagg_testbed.errors import MissingRequirementError, ProcessFailedError
from inagg_testbed.network.lifecycle import ProcessId, Run

_LOG_TAIL_LINES = 15
_POLL_S = 0.02
_TERM_GRACE_S = 5.0
_ERROR = re.compile(r"\b\w+Error: ")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")


class NodeProcess:
    """One process in one node. command: what was started."""

    def __init__(
        self, run: Run, name: str, command: Sequence[str], popen: "subprocess.Popen[bytes]", log_path: Path
    ) -> None:
        self.name, self.command, self.log_path = name, command, log_path
        self._run, self._popen = run, popen
        self.identity: ProcessId = run.record_process(popen.pid, name)

    @classmethod
    def start(
        cls,
        run: Run,
        node: Any,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> "NodeProcess":
        """Start `command` in the namespaces of a Mininet node; its output goes to `log_path`.

        Raises MissingRequirementError if the command does not exist.
        """
        with log_path.open("ab") as log:
            try:
                popen = node.popen(
                    list(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(os.environ) | dict(environment or {}),
                )
            except FileNotFoundError as error:
                raise MissingRequirementError(f"cannot start {name}: {error}") from error
        return cls(run, name, command, popen, log_path)

    def poll(self) -> int | None:
        """The exit status (negative: minus the signal); None while the process runs."""
        return self._popen.poll()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The end of its log."""
        text = self.log_path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"    {line}" for line in text) or "    (it printed nothing)"

    def reported_error(self) -> str | None:
        """The last line of the log that names an error, such as `PeerLostError: ...`, without torch's "[rank0]: ".

        It may not be the last line: torch prints a stack after an error of a C++ callback.
        """
        lines = self.log_path.read_text(errors="replace").splitlines()
        found = next((line for line in reversed(lines) if _ERROR.search(line)), None)
        return None if found is None else _RANK_PREFIX.sub("", found)

    def failure(self, what: str) -> ProcessFailedError:
        """An error that says what happened and shows the end of the log."""
        return ProcessFailedError(f"{self.name} {what}. The end of {self.log_path}:\n{self.log_tail()}")

    def wait_for_line(self, wanted: str, *, timeout_s: float) -> None:
        """Wait until the process has printed the line `wanted`. Raises ProcessFailedError."""
        deadline = time.monotonic() + timeout_s
        while wanted not in self.log_path.read_text(errors="replace").splitlines():
            status = self.poll()
            if status is not None:
                raise self.failure(f"ended with {describe_exit(status)} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise ProcessFailedError if the process has ended."""
        status = self.poll()
        if status is not None:
            raise self.failure(f"ended with {describe_exit(status)}")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.identity.signal(number)

    def stop(self) -> None:
        """End the process with SIGTERM, then SIGKILL; reap it and drop it from the manifest."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is None:
                self.signal(number)
                self.signal(signal.SIGCONT)  # a stopped process would not take SIGTERM
                try:
                    self._popen.wait(_TERM_GRACE_S)
                except subprocess.TimeoutExpired:
                    continue
            break
        if self.identity in self._run.manifest.processes:
            self._run.forget_process(self.identity)


def describe_exit(status: int) -> str:
    """`exit status 3` or `signal SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    return f"signal {signal.Signals(-status).name}"
