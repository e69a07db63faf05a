# SPDX-License-Identifier: Apache-2.0
"""Starts the commands. Each needs an extra of the distribution.

This package and `inagg_contract.installation` need the standard library only. So a command whose extra is not installed
ends with one line that names the extra. The commands' own packages cannot do that: their imports fail first.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from inagg_contract.installation import pip_install


def testbed() -> None:
    """The command inagg. Its ``launch`` is for workers, and needs their extra only; ``decode`` needs scapy."""
    if sys.argv[1:2] == ["launch"]:
        with _explained("inagg launch", "worker"):
            from inagg.cli import launch

            launch(sys.argv[2:])
    if sys.argv[1:2] == ["decode"]:
        with _explained("inagg decode", "wire"):
            from inagg_wire.cli import main as decode

            decode()
            return
    besides = "`inagg launch` needs the extra worker only, `inagg decode` the extra wire"
    with _explained("inagg", "testbed", besides):
        from inagg_testbed.cli import main

        main()


def switch() -> None:
    """The command inagg-switch."""
    with _explained("inagg-switch", "switch"):
        from inagg_switch.cli import main

        main()


def controller() -> None:
    """The command inagg-controller."""
    with _explained("inagg-controller", "controller"):
        from inagg_controller.cli import main

        main()


def server() -> None:
    """The command inagg-server."""
    with _explained("inagg-server", "server"):
        from inagg_server import main

        main()


@contextmanager
def _explained(command: str, extra: str, besides: str = "") -> Iterator[None]:
    """Ends the process with exit status 1 and one line if the block imports a module that is not installed, or if the
    disk of its standard output is full.

    besides: what the line says at its end.

    A missing module of inagg itself is a broken installation: its traceback stays. So does that of an error with a file
    that the command should have explained.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("inagg"):
            raise
        line = f"{command} needs the extra {extra}: {pip_install(extra)} (there is no module {error.name})"
        sys.exit(f"{line}; {besides}" if besides else line)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered is lost
        sys.exit(f"{command}: standard output: {error.strerror}")
