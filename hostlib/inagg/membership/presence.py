# SPDX-License-Identifier: Apache-2.0
"""The connection by which the controller sees that a rank's process lives: the kernel closes it when the process dies.

It carries one HTTP request whose body never ends. The chunks of the body are beats. A dead machine sends none. A thread
of the core writes them, so that a program which holds the GIL for minutes does not look dead. Another thread sees the
connections end, and when the network has broken one, a third makes a new one. All groups of a process share the first
two threads. A controller that has ended may start again, so a connection is made again until this is closed.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import httpx

from inagg._core import Pulse
from inagg.base_errors import InaggError

_log = logging.getLogger(__name__)

_BEAT = b"1\r\n.\r\n"  # a chunk of one byte (RFC 9112, 7.1)
_JOIN_S = 1.0
_PAUSE_S = 0.5  # between attempts to connect again
# The answers of a controller that ends, or of a proxy without a controller, begin here. Any other one means that the
# controller wants no more beats.
_AWAY = 500
_LEAST_PAUSE_S = 1.0
_MOST_ANSWER = 256  # bytes of an answer that are looked at
_JUST_NOW_S = 5.0  # in this time after a pause, a rank learns that the job has ended meanwhile


class Presence(Protocol):
    def close(self) -> None:
        """End the connection. Closing twice changes nothing."""

    def pause(self, least_s: float) -> str:
        """What kept this process from beating for `least_s` or more until just now, such as "was stopped or suspended
        for about 14 s"; empty if nothing did."""


class TcpPresence:
    """Beats until closed, or until the controller answers because it wants no more beats.

    The constructor makes the first connection and raises what `connect` raises. While a later one cannot be made, only
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
        self._lock = threading.Lock()  # guards the following; before the lock of `_watched`
        self._closed = threading.Event()
        self._repair: threading.Thread | None = None
        self._begin(connect())
        _living.add(self)

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._end()
            repair = self._repair
        _watched.join()
        if repair is not None:
            repair.join(_JOIN_S)

    def pause(self, least_s: float) -> str:
        with self._lock:
            seconds = self._pulse.pause(_JUST_NOW_S)
        return f"was stopped or suspended for about {seconds:.0f} s" if seconds >= least_s else ""

    def forget(self) -> None:
        """Close a forked child's copy of the connection, so that the connection ends when the parent dies."""
        self._connection.close()

    def _begin(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(self._request)
        self._connection = connection
        self._pulse = Pulse(socket_fd=connection.fileno(), beat=_BEAT, interval_s=self._interval_s)
        _watched.add(connection, self._look)

    def _end(self) -> None:
        self._pulse.close()
        _watched.remove(self._connection)
        with contextlib.suppress(OSError):  # broken, or closed
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _look(self) -> None:
        """Called when the connection seems to have ended. If the controller's answer has ended it, that is all."""
        with self._lock:
            if self._closed.is_set():
                return
            try:
                answer = self._connection.recv(_MOST_ANSWER, socket.MSG_DONTWAIT)
            except BlockingIOError:  # an earlier connection with this descriptor has ended
                _watched.add(self._connection, self._look)
                return
            except OSError:
                answer = b""
            away = answer.startswith(b"HTTP/1.1 5")
            if away or not answer:
                self._end()
                self._repair = threading.Thread(
                    target=self._reconnect, args=(away,), name="inagg-repair", daemon=True
                )
                self._repair.start()

    def _reconnect(self, later: bool) -> None:
        """later: not at once, because there is no controller, or it has too many connections."""
        if later:
            self._closed.wait(_PAUSE_S)
        while not self._closed.is_set():
            try:
                connection = self._connect()
                with self._lock:
                    if self._closed.is_set():
                        connection.close()
                    else:
                        self._begin(connection)
                    return
            except (InaggError, OSError, RuntimeError) as error:  # RuntimeError: the client has been closed
                _log.debug("could not reconnect the presence of this process: %s", error)
            self._closed.wait(_PAUSE_S)


class _Watched:
    """The connections of all groups, and the thread that sees them end. It runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._calls: dict[int, Callable[[], None]] = {}  # by descriptor
        self._thread: threading.Thread | None = None

    def add(self, connection: socket.socket, call: Callable[[], None]) -> None:
        """Call `call` once, on the thread, when there is something to read or the connection has ended."""
        with self._lock:
            if not self._calls:
                self._poll, self._stop = select.epoll(), os.eventfd(0)
                self._poll.register(self._stop, select.EPOLLIN)
                self._thread = threading.Thread(
                    target=self._run, args=(self._poll, self._stop), name="inagg-presence", daemon=True
                )
                self._thread.start()
            known = connection.fileno() in self._calls
            self._calls[connection.fileno()] = call
            change = self._poll.modify if known else self._poll.register
            change(connection.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def remove(self, connection: socket.socket) -> None:
        """Forget a connection that is still open. The thread ends with the last one."""
        with self._lock:
            if self._calls.pop(connection.fileno(), None) is None:
                return
            self._poll.unregister(connection.fileno())
            if not self._calls:
                os.eventfd_write(self._stop, 1)

    def join(self) -> None:
        """Wait for the thread, if it is about to end."""
        with self._lock:
            thread = None if self._calls else self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def _run(self, poll: select.epoll, stop: int) -> None:
        with poll:
            while True:
                for descriptor, _ in poll.poll():
                    if descriptor == stop:
                        os.close(stop)
                        return
                    with self._lock:
                        call = self._calls.get(descriptor)
                    if call is not None:
                        call()


class HttpsPresence:
    """The same over TLS, which the core does not speak.

    These beats need the GIL. And forked children keep the connection open when the parent dies.

    post: sends a request with the given body, and returns its answer. interval_s: between beats.
    """

    def __init__(self, post: Callable[[Iterator[bytes]], httpx.Response], interval_s: float) -> None:
        self._post = post
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._due: float | None = None  # when the next beat should be sent; None while there is no connection
        self._paused_s, self._resumed = 0.0, 0.0
        self._thread = threading.Thread(target=self._attend, name="inagg-presence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)

    def pause(self, least_s: float) -> str:
        now, due = time.monotonic(), self._due
        seconds = self._paused_s if now - self._resumed <= _JUST_NOW_S else 0.0
        if due is not None:
            seconds = max(seconds, now - due)
        if seconds < least_s:
            return ""
        return f"was stopped or suspended, or held the GIL, for about {seconds:.0f} s"

    def _attend(self) -> None:
        while not self._closed.is_set():
            try:
                if self._post(self._beats()).status_code < _AWAY:
                    return
            except httpx.TransportError as error:
                _log.info("the presence connection broke, connecting again: %s", error)
            except RuntimeError:  # httpx's, of a client that has been closed
                return
            finally:
                self._due = None
            self._closed.wait(self._interval_s)

    def _beats(self) -> Iterator[bytes]:
        while True:
            self._due = due = time.monotonic() + self._interval_s
            yield b"."
            if self._closed.wait(self._interval_s):
                return
            now = time.monotonic()
            if now - due >= _LEAST_PAUSE_S:
                self._paused_s, self._resumed = now - due, now


_living: "weakref.WeakSet[TcpPresence]" = weakref.WeakSet()
_watched = _Watched()


def _forget_all() -> None:
    global _watched
    _watched = _Watched()
    for presence in _living:
        presence.forget()


os.register_at_fork(after_in_child=_forget_all)
