# SPDX-License-Identifier: Apache-2.0
"""What the testbed raises: the class says whose fault it is, the message what to do about it."""


class LauncherError(Exception):
    """Base of everything the testbed raises on purpose."""


class ConfigurationError(LauncherError):
    """An option that cannot work; nothing has been started."""


class MissingRequirementError(LauncherError):
    """The machine lacks something: root, Mininet, a command, a kernel feature."""


class NetworkError(LauncherError):
    """The kernel refused part of the network (a namespace, an interface, a queueing discipline)."""


class ProcessFailedError(LauncherError):
    """A process of the testbed ended or never became ready; the message holds the end of its log."""


class WorkerFailedError(ProcessFailedError):
    """Workers ended with an error. `failures` maps the rank to what its log says: the error, or else the last lines."""

    def __init__(self, message: str, failures: dict[int, str]) -> None:
        super().__init__(message)
        self.failures = failures


class ControllerRefusedError(LauncherError):
    """The controller answered with an error."""


class ControllerUnreachableError(LauncherError):
    """The controller does not answer: it has ended, or is stuck."""


class WrongResultError(LauncherError):
    """A sum, or final weights, are not what they have to be."""
