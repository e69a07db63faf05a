# SPDX-License-Identifier: Apache-2.0
"""Lets this machine's browsers watch a testbed's controller, which listens in a network namespace.

A thread accepts connections at a port of the loopback address, and opens one to the controller for each. Any program
and any web page can reach that port. So only what the live page reads is passed on, one request a connection, and only
if it names this machine as its host: a page whose domain resolves to this machine names that domain (DNS rebinding).
Sockets belong to the namespace in which they are made: the listening one is made before the thread moves.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Coroutine
from contextlib import closing, suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import h11

from inagg_testbed.network.control import enter_network_namespace

_log = logging.getLogger(__name__)

_PIECE = 1 << 16
_END_S = 5.0
_PATHS = (b"/live", b"/overview", b"/events")
_HEADERS = (b"host", b"authorization", b"accept")  # that are passed on


class Gateway:
    """url: where the controller's live page is from here, while the block runs.

    target: the controller's URL in the network namespace of process `pid`. Raises NetworkError if there is no such
    process, OSError if connections cannot be accepted.
    """

    def __init__(self, target: str, pid: int) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._pid = pid
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._hosts = (f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode())
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._ready = threading.Event()
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            enter_network_namespace(self._pid)
            asyncio.run(self._serve())  # ends the connections
        except Exception as error:
            self._error = error
        finally:
            self._listener.close()
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._answer, sock=self._listener)
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = h11.Connection(h11.SERVER)
        with closing(writer), suppress(OSError):
            try:
                while (event := client.next_event()) is h11.NEED_DATA:
                    client.receive_data(await reader.read(_PIECE))
            except h11.RemoteProtocolError as error:
                _log.debug("not a request of HTTP: %s", error)
                return
            if not isinstance(event, h11.Request):
                return
            if not self._is_of_the_page(event):
                writer.write(_answer_of(client, HTTPStatus.FORBIDDEN, "only the live page is to be had here"))
                return
            try:
                above, below = await asyncio.open_connection(*self._target)
            except OSError as error:
                _log.debug("the controller at %s cannot be reached: %s", self._target, error)
                writer.write(_answer_of(client, HTTPStatus.BAD_GATEWAY, "the controller cannot be reached"))
                return
            with closing(below):
                below.write(_passed_on(event))
                await _first(_copy(above, writer), _ended(reader))

    def _is_of_the_page(self, request: h11.Request) -> bool:
        path = request.target.partition(b"?")[0]
        hosts = [value.lower() for name, value in request.headers if name == b"host"]
        named = len(hosts) == 1 and hosts[0] in self._hosts
        return named and request.method == b"GET" and (path in _PATHS or path.startswith(b"/live/"))


def _passed_on(request: h11.Request) -> bytes:
    """A request for the controller: its head, after which the controller closes the connection."""
    headers = [(name, value) for name, value in request.headers if name in _HEADERS]
    head = h11.Request(method="GET", target=request.target, headers=[*headers, (b"connection", b"close")])
    return h11.Connection(h11.CLIENT).send(head) or b""


def _answer_of(client: h11.Connection, status: HTTPStatus, text: str) -> bytes:
    body = f"{text}\n".encode()
    headers = [
        ("Content-Type", "text/plain"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    head = client.send(h11.Response(status_code=status, reason=status.phrase, headers=headers)) or b""
    return head + body


async def _first(*works: Coroutine[Any, Any, None]) -> None:
    """Wait until one has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()


async def _ended(reader: asyncio.StreamReader) -> None:
    """Wait until the client has gone. What else it sends is dropped."""
    with suppress(OSError):
        while await reader.read(_PIECE):
            pass
