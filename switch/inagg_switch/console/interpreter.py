# SPDX-License-Identifier: Apache-2.0
"""Carries out lines of simple_switch_CLI's language. Its reference is BMv2's tools/runtime_CLI.py."""

import logging
from collections.abc import Callable

from inagg_switch.console.commands import COMMANDS
from inagg_switch.console.context import CommandError, Context, Kept
from inagg_switch.console.wire import Answer
from inagg_switch.p4runtime.errors import MAX_ERROR_TEXT, RequestError
from inagg_switch.p4runtime.server import SwitchServer
from inagg_switch.ports import Ports

logger = logging.getLogger(__name__)


class Interpreter:
    """Executes commands, each with the lock of the control plane. What it keeps, such as handles, ends with the
    program."""

    def __init__(self, server: SwitchServer, ports: Ports) -> None:
        self._server = server
        self._ports = ports
        self._kept = Kept(None)

    def execute(self, line: str, there: Callable[[], bool] = lambda: True) -> Answer:
        """Carry out one line; return what it prints. An empty line and a comment (# or //) do nothing.

        there: whether the client is still there; without it a command that waits for its turn is not carried out.
        """
        words = line.split()
        if not words or words[0].startswith(("#", "//")):
            return Answer("")
        if words[0] in ("help", "?"):
            return Answer(_help(words[1:]))
        if words[0] not in COMMANDS:
            return _refused(f"*** Unknown syntax: {line.strip()}")
        try:
            return self._run(words[0], words[1:], there)
        except RequestError as error:
            return _refused(f"Error: {error}")
        except Exception:  # a defect of ours; the client gets an answer, and the next command works
            logger.exception("command failed: %s", line[:MAX_ERROR_TEXT])
            return _refused("Error: the switch failed on this command: see its log")

    def _run(self, name: str, arguments: list[str], there: Callable[[], bool]) -> Answer:
        with self._server.exclusive(there) as target:
            if self._kept.target is not target:
                self._kept = Kept(target)
            context = Context(target, self._kept, self._ports, self._server.restart)
            refusal = ""
            try:
                COMMANDS[name](context, arguments)
            except CommandError as error:
                refusal = str(error)
                context.print(refusal)
            return Answer("".join(context.printed), "".join(context.notes), refusal)


def _refused(why: str) -> Answer:
    return Answer(f"{why}\n", refusal=why)


def _help(names: list[str]) -> str:
    if not names:
        return "Commands (help COMMAND shows one):\n" + "".join(f"  {name}\n" for name in sorted(COMMANDS))
    command = COMMANDS.get(names[0])
    return f"{command.__doc__}\n" if command is not None else f"*** No help on {names[0]}\n"
