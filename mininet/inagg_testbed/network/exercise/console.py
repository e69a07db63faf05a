# SPDX-License-Identifier: Apache-2.0
"""Runs a cli_input, commands of simple_switch_CLI, on the console of a switch."""

import logging
from pathlib import Path

from inagg_switch.console.wire import ask
from inagg_testbed.errors import ConfigurationError, ProcessFailedError
from inagg_testbed.network.control import call_in_network_namespace
from inagg_testbed.network.switch_console import connected

log = logging.getLogger(__name__)


def run_commands(pid: int, path: Path, output: Path) -> None:
    """Run the commands of a file, one a line, on a switch in the network namespace of a process.

    What simple_switch_CLI would print goes to `output`. A command that the switch refuses is a warning, as
    run_exercise.py goes on then. Raises ConfigurationError, ProcessFailedError.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    try:
        call_in_network_namespace(pid, lambda: _run(path, lines, output))
    except (OSError, ValueError) as error:
        raise ProcessFailedError(f"the switch's console has not answered {path}: {error}") from error


def _run(path: Path, lines: list[str], output: Path) -> None:
    with connected() as stream, output.open("a") as said:
        for number, line in enumerate(lines, 1):
            answer = ask(stream, line)
            said.write(f"{line}\n{answer.text}{answer.notes}")
            if answer.refusal:
                log.warning("%s:%d: `%s`: %s", path, number, line.strip(), answer.refusal)
