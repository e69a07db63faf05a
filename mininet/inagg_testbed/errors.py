# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the testbed. The class says whose fault it is, the message what to do."""


class LauncherError(Exception):
    """Base of all exceptions of the testbed."""


class ConfigurationError(LauncherError):
    """An option that cannot work; nothing has been started."""


class MissingRequirementError(LauncherError):
    """The machine lacks something: root, Mininet, a command, a kernel feature."""


class NetworkError(LauncherError):
    """The kernel refused part of the network (a namespace, an interface, a queueing discipline)."""


class ProcessFailedError(LauncherError):
    """A process of the testbed ended or never became ready; the message contains the end of its log."""


class WorkerFailedError(ProcessFailedError):
    """Workers failed. `failures` maps each failed rank to the error in its log, or else to the log's last lines."""

    def __init__(self, message: str, failures: dict[int, str]) -> None:
        super().__init__(message)
        self.failures = failures


class ControllerRefusedError(LauncherError):
    """The controller answered with an error."""


class ControllerUnreachableError(LauncherError):
    """The controller does not answer: it has ended or hangs."""


class SwitchUnreadableError(LauncherError):
    """A switch does not answer a read over P4Runtime, or answers with an error."""


class WrongResultError(LauncherError):
    """A sum is wrong, or the ranks' final weights differ."""
