# SPDX-License-Identifier: Apache-2.0
"""A TCP server for the console and for metrics: a limit of connections, and an end without threads left behind."""

import socket
import time
from contextlib import suppress
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any


class LimitedServer(ThreadingMixIn, TCPServer):
    """Has a thread for each connection. A connection beyond `most` is closed at once."""

    def __init__(self, address: tuple[str, int], handler: type[BaseRequestHandler], *, most: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._most = most
        self._since: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection beyond the limit."""
        if len(self._since) >= self._most:
            return False
        self._since[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Make room for another connection."""
        self._since.pop(request, None)
        super().shutdown_request(request)

    def end_connections(self, older_than_s: float = 0.0) -> None:
        """End connections that are open for longer."""
        for connection, since in list(self._since.items()):
            if time.monotonic() - since >= older_than_s:
                with suppress(OSError):  # it has ended already
                    connection.shutdown(socket.SHUT_RDWR)

    def server_close(self) -> None:
        """Stop listening, end all connections, and wait for their threads. Call it after shutdown()."""
        self.end_connections()
        super().server_close()
