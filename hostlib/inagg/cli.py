# SPDX-License-Identifier: Apache-2.0
"""The command ``inagg launch``: starts a training program that `inagg.takeover` takes over.

It needs the extra ``worker`` only. The other commands of ``inagg`` need the extra ``testbed``.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from inagg.base_errors import ConfigurationError
from inagg.options import Options, launcher_environment, variable_of
from inagg.takeover import BACKENDS, VARIABLE, check_launch

_DESCRIPTION = """Start a program whose groups of other backends become inagg's.

The program is not changed: groups that it makes under the names of
--take-over, or without a name, sum through inagg. The command replaces this
process; its exit status is that of the program."""
_EXAMPLES = """Example: inagg launch -- torchrun --nproc-per-node 2 train.py

Example: inagg launch --take-over nccl --set lane_bits=16 -- torchrun train.py"""


def launch(arguments: Sequence[str]) -> NoReturn:
    """Run ``inagg launch`` with these arguments. Ends the process, or replaces it by the command."""
    parser = _parser()
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("name the command that starts the program, such as torchrun train.py")
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    settings = [*given.set, *([] if given.controller is None else [f"controller={given.controller}"])]
    try:
        environment = launch_environment(os.environ, given.take_over, settings)
        path = shutil.which(command[0], path=environment["PATH"])
        if path is None:
            raise ConfigurationError(f"there is no command {command[0]}")
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the command would inherit that
        os.execve(path, command, environment)
    except (ConfigurationError, OSError) as error:
        sys.exit(f"inagg: {error}")


def launch_environment(
    environment: Mapping[str, str], take_over: str, settings: Sequence[str]
) -> dict[str, str]:
    """The environment of a program that is taken over.

    Commands of this interpreter's folder, such as torchrun, come first: inagg is installed for them.

    Args:
        environment: the launcher's.
        take_over: the backends, as in ``INAGG_TAKE_OVER``.
        settings: options of the groups, as NAME=VALUE.

    Raises:
        ConfigurationError: a setting is wrong, no controller is given, or torch is told to load no backends.
    """
    check_launch(environment, take_over)
    new = {**environment, **launcher_environment(settings), VARIABLE: take_over}
    Options.resolve(environment=new)
    folder = str(Path(sys.executable).parent)
    new["PATH"] = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    return new


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="inagg launch",
        usage="inagg launch [OPTIONS] [--] COMMAND [ARGUMENTS]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--take-over",
        metavar="NAMES",
        default=",".join(BACKENDS),
        help="the backends whose groups become inagg's (default: %(default)s)",
    )
    parser.add_argument(
        "--controller",
        metavar="URL",
        help=f"the controller, as {variable_of('controller')} or inagg.toml may name it too",
    )
    parser.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        default=[],
        help="an option of the groups, such as lane_bits=16 (docs/options.md); may be given several times",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="what starts the program, or a script (*.py)"
    )
    return parser
