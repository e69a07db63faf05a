# SPDX-License-Identifier: Apache-2.0
"""Listens for clients of the console, and carries out their commands one after the other."""

import logging
import socket
import struct
import threading
from socketserver import StreamRequestHandler

from inagg_switch.connections import LimitedServer
from inagg_switch.console.interpreter import Interpreter
from inagg_switch.console.wire import answer, receive
from inagg_switch.p4runtime.server import ServerError, host_and_port

logger = logging.getLogger(__name__)

MAX_CLIENTS = 64
PATIENCE_S = 30  # with a client that does not read its answer


class ConsoleServer:
    """Serves the console at an address. It listens once made; commands are answered after start()."""

    def __init__(self, address: str, interpreter: Interpreter) -> None:
        """Listen at "HOST:PORT". Raises ServerError."""
        host, port = host_and_port(address)
        try:
            self._server = _Server((host, port), _Client, most=MAX_CLIENTS)
            self._server.interpreter = interpreter
        except OSError as error:
            raise ServerError(f"cannot serve the console at {address}: {error.strerror or error}") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="inagg-console",
            daemon=True,
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(LimitedServer):
    allow_reuse_address = True
    request_queue_size = 128
    interpreter: Interpreter


class _Client(StreamRequestHandler):
    server: _Server

    def setup(self) -> None:
        """Prepare the connection."""
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE_S, 0))

    def _is_there(self) -> bool:
        """False if the client has closed its connection and has sent no further command."""
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def handle(self) -> None:
        """Answer the commands of one client until it goes."""
        try:
            while (command := receive(self.rfile)) is not None:
                answer(self.wfile, self.server.interpreter.execute(command, self._is_there))
        except OSError:
            pass  # the client has gone
        except ValueError:
            logger.warning(
                "a client of the console at port %d speaks something else, such as Thrift: connection closed",
                self.server.server_address[1],
            )
