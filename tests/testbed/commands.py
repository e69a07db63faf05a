# SPDX-License-Identifier: Apache-2.0
"""The command `inagg` in the test's own process, which has imported what the command imports.

With the fixture `forked_processes`, the ranks that such a command starts are forked, too. A command needs a process if
the test sends it a signal, reads it through a pipe, or holds its standard error against what gRPC may write there;
`exec` and `shell`, because they become another program; `counters`, because it forks; `registers` and `slots` of a
star, because they move into the switch's network namespace.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli import options
from inagg_testbed.cli.main import app

WIDTH = 100
MOST_S = 120.0

_NETWORK = Path("/proc/thread-self/ns/net")


def inagg(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `inagg ARGUMENTS` in a terminal of 100 columns. An exception that would end the command with a traceback is
    raised."""
    network = _NETWORK.readlink()
    with pytest.MonkeyPatch.context() as patch:
        for console in (options.console, options.complaints):
            patch.setattr(console, "_width", WIDTH)  # which they have since they were made, perhaps
        done = CliRunner().invoke(app, arguments)
    assert _NETWORK.readlink() == network, (
        f"inagg {arguments[0]} moves the tests to another network: use inagg_process"
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(["inagg", *arguments], done.exit_code, done.stdout, done.stderr)


def inagg_process(
    *arguments: str,
    input: str | None = None,
    timeout: float = MOST_S,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """The same in a process of its own. environment: more variables of it."""
    return subprocess.run(
        [sys.executable, "-m", "inagg_testbed", *arguments],
        input=input,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "COLUMNS": str(WIDTH), **environment},
    )
