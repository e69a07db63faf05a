# SPDX-License-Identifier: Apache-2.0
"""Processes inside nodes: started, logged, watched, ended, and explained when they fail.

Each gets a log file of its own (stdout and stderr), is killed by the kernel when the launcher dies,
and is in the run's manifest while it lives. Start them from the main thread only: the kernel's
"parent" of PR_SET_PDEATHSIG is the thread that forked.
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
    """One process in one node."""

    def __init__(self, run: Run, name: str, popen: "subprocess.Popen[bytes]", log_path: Path) -> None:
        self.name, self.log_path = name, log_path
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
        """Start `command` in the namespaces of a Mininet node; NAME.log gets what it prints.

        Raises MissingRequirementError when there is no such command.
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
        return cls(run, name, popen, log_path)

    def poll(self) -> int | None:
        """Exit status (negative: the signal), None while it runs."""
        return self._popen.poll()

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The end of its log."""
        text = self.log_path.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(f"    {line}" for line in text) or "    (it printed nothing)"

    def reported_error(self) -> str | None:
        """The last line of its log that names an error, such as `PeerLostError: ...`; torch's "[rank0]: " left out.

        Not simply the last line: where the error comes from a C++ callback, torch prints a stack after it.
        """
        lines = self.log_path.read_text(errors="replace").splitlines()
        found = next((line for line in reversed(lines) if _ERROR.search(line)), None)
        return None if found is None else _RANK_PREFIX.sub("", found)

    def failure(self, what: str) -> ProcessFailedError:
        """An error that says what happened and shows the end of the log."""
        return ProcessFailedError(f"{self.name} {what}. The end of {self.log_path}:\n{self.log_tail()}")

    def wait_for_line(self, wanted: str, *, timeout_s: float) -> None:
        """Wait until it has printed the line `wanted`. Raises ProcessFailedError."""
        deadline = time.monotonic() + timeout_s
        while wanted not in self.log_path.read_text(errors="replace").splitlines():
            status = self.poll()
            if status is not None:
                raise self.failure(f"ended with {describe_exit(status)} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise ProcessFailedError if it has ended."""
        status = self.poll()
        if status is not None:
            raise self.failure(f"ended with {describe_exit(status)}")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.identity.signal(number)

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL; it is reaped and off the record afterwards."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is None:
                self.signal(number)
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
