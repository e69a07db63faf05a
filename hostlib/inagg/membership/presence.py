# SPDX-License-Identifier: Apache-2.0
"""The connection by which the controller sees that a rank's process lives: the kernel closes it when the process dies.

It carries one HTTP request whose body never ends. The chunks of the body are beats. A dead machine sends none. A thread
of the core writes them, so that a program which holds the GIL for minutes does not look dead. When the network breaks
the connection, another thread makes a new one.
"""

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import httpx

from inagg._core import Pulse
from inagg.base_errors import InaggError

_log = logging.getLogger(__name__)

_BEAT = b"1\r\n.\r\n"  # a chunk of one byte (RFC 9112, 7.1)
_JOIN_S = 1.0


class Presence(Protocol):
    def close(self) -> None:
        """End the connection. Closing twice changes nothing."""


class TcpPresence:
    """Beats until closed, or until the controller answers because it wants no more beats.

    The constructor makes the first connection and raises what `connect` raises. If a later `connect` fails, only
    heartbeats are left.

    connect: makes a connection. target, headers: of the request. interval_s: between beats.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        target: str,
        headers: Mapping[str, str],
        interval_s: float,
    ) -> None:
        self._connect = connect
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        self._request = (
            f"POST {target} HTTP/1.1\r\n{''.join(lines)}Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        self._interval_s = interval_s
        self._lock = threading.Lock()  # guards the following
        self._closed = False
        self._begin(connect())
        self._thread = threading.Thread(target=self._attend, name="inagg-presence", daemon=True)
        self._thread.start()
        _living.add(self)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()
        self._thread.join(_JOIN_S)

    def forget(self) -> None:
        """Close a forked child's copy of the connection, so that the connection ends when the parent dies."""
        self._connection.close()

    def _begin(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self._request)
        self._connection = connection
        self._pulse = Pulse(socket_fd=connection.fileno(), beat=_BEAT, interval_s=self._interval_s)

    def _end(self) -> None:
        self._pulse.close()
        with contextlib.suppress(OSError):  # broken, or closed
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._connection.close()

    def _attend(self) -> None:
        while not self._answered():
            with self._lock:
                if self._closed:
                    return
                self._end()
            try:
                connection = self._connect()
                with self._lock:
                    if self._closed:
                        connection.close()
                        return
                    self._begin(connection)
            except (InaggError, OSError) as error:
                _log.warning(
                    "could not reconnect the presence of this process, so the controller relies on heartbeats: %s",
                    error,
                )
                return

    def _answered(self) -> bool:
        """Wait until the connection ends. Returns whether the controller's answer has ended it."""
        try:
            return bool(self._connection.recv(1))
        except OSError:
            return False


class HttpsPresence:
    """The same over TLS, which the core does not speak.

    These beats need the GIL. And forked children keep the connection open when the parent dies.

    post: sends a request with the given body, and returns its answer. interval_s: between beats.
    """

    def __init__(self, post: Callable[[Iterator[bytes]], httpx.Response], interval_s: float) -> None:
        self._post = post
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="inagg-presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    def _attend(self) -> None:
        while not self._closed.is_set():
            try:
                self._post(self._beats())
                return
            except httpx.TransportError as error:
                _log.info("the presence connection broke, connecting again: %s", error)
            except RuntimeError:  # httpx's, of a client that has been closed
                return
            self._closed.wait(self._interval_s)

    def _beats(self) -> Iterator[bytes]:
        yield b"."
        while not self._closed.wait(self._interval_s):
            yield b"."


_living: "weakref.WeakSet[TcpPresence]" = weakref.WeakSet()


def _forget_all() -> None:
    for presence in _living:
        presence.forget()


os.register_at_fork(after_in_child=_forget_all)
