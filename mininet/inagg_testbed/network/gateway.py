# SPDX-License-Identifier: Apache-2.0
"""Lets this machine's programs, such as a browser, reach a testbed's controller, which listens in a network namespace.

A thread accepts connections at a port of the loopback address, opens one to the controller for each, and passes bytes.
Sockets belong to the namespace in which they are made: the listening one is made before the thread moves.
"""

import asyncio
import logging
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from inagg_testbed.network.control import enter_network_namespace

_log = logging.getLogger(__name__)

_PIECE = 1 << 16
_END_S = 5.0


class Gateway:
    """url: where the controller is reached from here, while the block runs.

    target: the controller's URL in the network namespace of process `pid`. Raises NetworkError if there is no such
    process.
    """

    def __init__(self, target: str, pid: int) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._pid = pid
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._ready = threading.Event()
        self._error: Exception | None = None
        self._serving: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        serving = self._serving
        if serving is not None:
            self._loop.call_soon_threadsafe(serving.cancel)
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            enter_network_namespace(self._pid)
        except Exception as error:
            self._error = error
            self._listener.close()
            self._loop.close()
            self._ready.set()
            return
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        async with await asyncio.start_server(self._pass_on, sock=self._listener) as server:
            self._ready.set()
            await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            above, below = await asyncio.open_connection(*self._target)
        except OSError as error:
            _log.debug("the controller at %s cannot be reached: %s", self._target, error)
            writer.close()
            return
        ways = [asyncio.ensure_future(_copy(reader, below)), asyncio.ensure_future(_copy(above, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            below.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
