# SPDX-License-Identifier: Apache-2.0
"""simple_switch_CLI: sends lines to the console of a running switch and prints the answers.

Errors are printed, and the exit status is 0, as with BMv2's. It speaks to inagg's switch only, not Thrift.
"""

import cmd
import os
import socket
import sys
from collections.abc import Sequence
from io import BufferedIOBase
from typing import cast

from inagg_switch.cli.options import UsageError
from inagg_switch.console.wire import ask
from inagg_switch.shims.options import Options, parse

_PORT = 9090


def main(arguments: Sequence[str]) -> int:
    """Read commands from stdin until its end; return the exit status."""
    parser = Options("simple_switch_CLI", "Send commands to a running simple_switch. help lists them.")
    parser.add_argument("--thrift-port", type=int, default=_PORT)
    parser.add_argument("--thrift-ip", default="localhost")
    parser.add_without_effect("--json", "--pre", value=True)
    try:
        options = parse(parser, arguments)
        if options.file is not None:
            raise UsageError(f"{options.file}: commands come on stdin")
        with socket.create_connection((options.thrift_ip, options.thrift_port)) as connection:
            _Client(cast(BufferedIOBase, connection.makefile("rwb"))).cmdloop()
    except UsageError as error:
        print(f"simple_switch_CLI: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        place = f"{options.thrift_ip}:{options.thrift_port}"
        print(f"Could not connect to the switch at {place}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


class _Client(cmd.Cmd):
    prompt = "RuntimeCmd: "
    intro = "Control utility for runtime P4 table manipulation"

    def __init__(self, stream: BufferedIOBase) -> None:
        super().__init__()
        self._stream = stream
        self._names = [line.strip() for line in ask(stream, "help").text.splitlines()[1:]]

    def onecmd(self, line: str) -> bool:
        """Send a line; True ends the loop."""
        if line == "EOF":
            print()
            return True
        if line.startswith(("!", "shell ")):
            sys.stdout.flush()
            os.system(line.removeprefix("!").removeprefix("shell "))
            return False
        answer = ask(self._stream, line)
        print(answer.text, end="", flush=True)
        print(answer.notes, end="", file=sys.stderr, flush=True)
        return False

    def completenames(self, text: str, *_: object) -> list[str]:
        """The commands that begin with a text."""
        return [name for name in self._names if name.startswith(text)]
