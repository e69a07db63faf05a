# SPDX-License-Identifier: Apache-2.0
"""The console of a testbed's switch (the switch model): it takes commands of simple_switch_CLI, and others.

It listens in the switch's own network namespace, where no host reaches it.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from typing import TYPE_CHECKING, cast

from inagg_testbed.errors import ProcessFailedError
from inagg_testbed.network.control import call_in_network_namespace

if TYPE_CHECKING:
    from inagg_switch.console.wire import Answer

CONSOLE_PORT = 9090  # simple_switch_CLI's default
_TIMEOUT_S = 30.0


@contextmanager
def connected(port: int = CONSOLE_PORT) -> Iterator[BufferedIOBase]:
    """A stream to the console in this network namespace, for `inagg_switch.console.wire`. Raises OSError."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection,
        connection.makefile("rwb") as stream,
    ):
        yield cast(BufferedIOBase, stream)


def ask_switch(pid: int, name: str, lines: Sequence[str]) -> "list[Answer]":
    """What a console, in the network namespace of a process, answers to commands.

    name: such as "switch leaf1", for the message. Raises ProcessFailedError if the console does not answer.
    """
    from inagg_switch.console.wire import ask  # imports the switch, which takes time

    def asked() -> "list[Answer]":
        with connected() as stream:
            return [ask(stream, line) for line in lines]

    try:
        return call_in_network_namespace(pid, asked)
    except (OSError, ValueError) as error:
        raise ProcessFailedError(
            f"the console of {name} does not answer ({error}): does it run? `inagg status` shows it"
        ) from error
