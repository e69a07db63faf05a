# SPDX-License-Identifier: Apache-2.0
"""inagg-controller as a process."""

import sys
from collections.abc import Mapping

from tests import forks


class CommandLine:
    """The words of a command line from good options."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self._options = options

    def __call__(self, **changes: object) -> list[str]:
        """The words, with some options replaced; a list repeats its option, True stands for a flag."""
        options = {**self._options, **{name.replace("_", "-"): value for name, value in changes.items()}}
        return [
            word
            for name, given in options.items()
            for value in (given if isinstance(given, list) else [given])
            for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
        ]


class Launcher:
    """Starts controllers. processes: all that it has started."""

    def __init__(self, command_line: CommandLine) -> None:
        self.processes: list[forks.Process] = []
        self._command_line = command_line

    def __call__(self, **changes: object) -> forks.Process:
        """Start a controller with the good options, some of them replaced."""
        process = forks.start_piped(
            *(sys.executable, "-m", "inagg_controller"),
            *self._command_line(**changes),
            modules=forks.OF_COMMANDS,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """Kill all processes."""
        for process in self.processes:
            process.kill()
            process.communicate()


def read_line(process: forks.Process) -> str:
    """The next line that the process prints, without its end; waits for it.

    Raises RuntimeError with what the process has written to stderr if it ends instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        _, errors = process.communicate()
        raise RuntimeError(f"the process ended with {process.returncode}: {errors}")
    return line.rstrip("\n")
