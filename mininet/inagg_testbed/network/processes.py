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
from typing import Any, Self

from inagg_testbed.errors import MissingRequirementError, ProcessFailedError
from inagg_testbed.network.lifecycle import ProcessId, Run

_LOG_TAIL_LINES = 15
_POLL_S = 0.02
_TERM_GRACE_S = 5.0
_ERROR = re.compile(r"\b\w+Error: ")
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")


class NodeProcess:
    """One process in one node. command: what was started. is_killed: by `kill`, so `check` says nothing."""

    def __init__(
        self,
        run: Run,
        node: Any,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start `command` in the namespaces of a Mininet node; its output goes to `log_path`.

        Raises MissingRequirementError if the command does not exist.
        """
        self.name, self.command, self.log_path, self.is_killed = name, command, log_path, False
        self._run, self._node, self._environment = run, node, environment or {}
        self._first_log, self._starts = log_path, 1
        try:
            self._popen = self._started()
        except FileNotFoundError as error:
            raise MissingRequirementError(f"cannot start {name}: {error}") from error
        self.started_at = time.monotonic()
        self.identity: ProcessId = run.record_process(self._popen.pid, name)

    def _started(self) -> "subprocess.Popen[bytes]":
        with self.log_path.open("ab") as log:
            process: subprocess.Popen[bytes] = self._node.popen(
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(os.environ) | dict(self._environment),
            )
        return process

    def again(self) -> Self:
        """End it, if it runs, and start the same command in the same node. NAME.log is followed by NAME.2.log, ...

        Raises MissingRequirementError.
        """
        self.kill()
        self.stop()
        starts = self._starts + 1
        log_path = self._first_log.with_suffix(f".{starts}.log")
        again = type(self)(
            self._run, self._node, self.name, self.command, log_path=log_path, environment=self._environment
        )
        again._first_log, again._starts = self._first_log, starts
        return again

    @property
    def part(self) -> str:
        """What it is in the testbed: "controller" of the controller, "leaf1" of "switch leaf1", "h5" of "server h5",
        "b1" of "bridge b1"."""
        return self.name.split()[-1]

    @property
    def kind(self) -> str:
        """ "switch", "controller", "server", "bridge", or the name of a launch."""
        return self.name.split()[0]

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
        while not self.has_printed(wanted):
            status = self.poll()
            if status is not None:
                raise self.failure(f"ended with {describe_exit(status)} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def has_printed(self, line: str) -> bool:
        """Whether its log has this line."""
        return line in self.log_path.read_text(errors="replace").splitlines()

    def check(self) -> None:
        """Raise ProcessFailedError if the process has ended, unless `kill` has ended it."""
        status = self.poll()
        if status is not None and not self.is_killed:
            raise self.failure(f"ended with {describe_exit(status)}")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.identity.signal(number)

    def kill(self) -> None:
        """End the process with SIGKILL. It stays in the manifest until `stop`.

        Raises ProcessFailedError if the kernel cannot end it now.
        """
        self.is_killed = True
        if self.poll() is None:
            self.signal(signal.SIGKILL)
            try:
                self._popen.wait(_TERM_GRACE_S)
            except subprocess.TimeoutExpired as error:
                raise self.failure("cannot be killed") from error

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
