# SPDX-License-Identifier: Apache-2.0
"""The connection by which the controller sees that a rank's process lives: its kernel closes it when it dies.

What goes over it is one HTTP request whose body never ends. Its chunks are beats, written by a thread of the core, so
that a program which holds the GIL for minutes is not taken for a dead one; a machine that has died sends none.
"""

import os
import socket
import weakref

from ._core import Pulse

_BEAT = b"1\r\n.\r\n"  # a chunk of one byte (RFC 9112, 7.1)


class Presence:
    """Beats over `connection`, which it takes over, until closed.

    host, target: of the request. interval_s: between beats.
    """

    def __init__(self, connection: socket.socket, host: str, target: str, interval_s: float) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            f"POST {target} HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        self._pulse = Pulse(socket_fd=connection.fileno(), beat=_BEAT, interval_s=interval_s)
        _living.add(self)

    def close(self) -> None:
        """End the connection. Closing twice changes nothing."""
        self._pulse.close()
        self._connection.close()

    def forget(self) -> None:
        """In a child that has been forked: it must not keep the connection of a parent that dies."""
        self._connection.close()


_living: "weakref.WeakSet[Presence]" = weakref.WeakSet()


def _forget_all() -> None:
    for presence in _living:
        presence.forget()


os.register_at_fork(after_in_child=_forget_all)
