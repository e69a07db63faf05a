# SPDX-License-Identifier: Apache-2.0
"""HTTPS: the TLS handshake before uvicorn's protocol.

asyncio and uvicorn know a connection from the end of its handshake on. Here it counts from its beginning, so that
strangers who connect and then stay silent are within the limits of `Connections`.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from inagg_controller.http.connections import Connections

_log = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0


def secured(
    protocol: type[asyncio.Protocol], context: ssl.SSLContext, connections: Connections
) -> type[asyncio.Protocol]:
    """A protocol class that does the TLS handshake and then hands the connection over to `protocol`."""

    class Handshake(asyncio.Protocol):
        """A connection until its handshake is complete."""

        def __init__(self, **options: Any) -> None:
            self._make: Callable[[], asyncio.Protocol] = lambda: protocol(**options)
            self._host: str | None = None
            self._early = bytearray()
            self._ended = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Begin the handshake, unless there are too many connections."""
            peer = transport.get_extra_info("peername")
            host = peer[0] if peer else ""
            if not connections.take(host):
                transport.abort()
                return
            self._host = host
            self._task = asyncio.ensure_future(self._shake_hands(transport))

        async def _shake_hands(self, transport: asyncio.Transport) -> None:
            loop = asyncio.get_running_loop()
            try:
                above = await loop.start_tls(
                    transport, self, context, server_side=True, ssl_handshake_timeout=_HANDSHAKE_S
                )
            except OSError as error:  # ssl.SSLError is one, and a timeout too
                _log.debug("no TLS with %s: %s", self._host, error)
                return
            if above is None or self._ended:
                return
            self._give_back()  # the protocol counts the connection itself
            inner = self._make()
            above.set_protocol(inner)
            inner.connection_made(above)
            if self._early:
                inner.data_received(bytes(self._early))

        def data_received(self, data: bytes) -> None:
            """Keep what came with the end of the handshake."""
            self._early += data

        def connection_lost(self, exc: Exception | None) -> None:
            """Count the end of a connection whose handshake has not been completed."""
            self._ended = True
            self._give_back()

        def _give_back(self) -> None:
            if self._host is not None:
                connections.give_back(self._host)
                self._host = None

    return Handshake
