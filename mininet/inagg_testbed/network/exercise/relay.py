# SPDX-License-Identifier: Apache-2.0
"""TCP ports of the machine for the P4Runtime servers of switches, which listen at UNIX sockets.

The switches are in network namespaces. run_exercise.py starts them outside, at 127.0.0.1:50051 and up, and exercises
have controllers that connect there.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from inagg_testbed.errors import ConfigurationError

_CHUNK = 1 << 16


class Relay:
    """Passes connections to consecutive ports of 127.0.0.1 on to UNIX sockets, in its own thread."""

    def __init__(self, first: int, count: int) -> None:
        """Take the ports `first` and up. Raises ConfigurationError if one is taken."""
        self.ports = range(first, first + count)
        self._sockets: list[socket.socket] = []
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        for port in self.ports:
            own = socket.socket()
            self._sockets.append(own)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                own.bind(("127.0.0.1", port))
                own.listen()
            except (OSError, OverflowError) as error:
                self.close()
                raise ConfigurationError(
                    f"127.0.0.1:{port}, for P4Runtime, is not free ({error}): take down the testbed or the program that"
                    " has it, or choose others with --grpc-port"
                ) from error

    def serve(self, paths: Sequence[str]) -> None:
        """Pass connections on, those to the n-th port to the n-th path."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(paths)), name="inagg-relay")
        self._thread.start()
        self._ready.wait()

    async def _main(self, paths: Sequence[str]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        servers = [
            await asyncio.start_server(partial(_pass_on, path), sock=own)
            for path, own in zip(paths, self._sockets, strict=True)
        ]
        self._ready.set()
        await self._over.wait()
        for server in servers:
            server.close()

    def close(self) -> None:
        """End all connections and free the ports."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
        for own in self._sockets:
            own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _pass_on(path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(OSError):
        there, back = await asyncio.open_unix_connection(path)
        with contextlib.closing(back):
            ways = [asyncio.ensure_future(_copy(*way)) for way in ((reader, back), (there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
