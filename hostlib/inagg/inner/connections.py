# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of a gloo group, to break them off: gloo itself offers no way to end a collective under way.

Gloo connects every two ranks when a group is made: one of them connects to the port at which the other's device
listens. So a socket is the group's if its own port is such a port of ours, or its peer's one of another rank's.
"""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from inagg.membership.assembly import Assembly
from inagg.membership.sockets import tcp_sockets

# linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received of struct tcp_info.
_CARRIED, _CARRIED_AT = struct.Struct("QQ"), 120

# Held while a device is made, so that the ports that appear are its own, and by those who open others.
_making = Lock()


class GlooConnections:
    """Those of one group, found when it is made.

    Args:
        open_devices: opens the group's devices, which begin to listen. Nothing else is done while it does, so that
            listeners of the program, which may have other threads, are not taken for gloo's.
        make: makes the group with them, when all ranks have opened theirs.
        ranks: those of the group.
    """

    def __init__(
        self, open_devices: Callable[[], list[Any]], make: Callable[[list[Any]], Any], ranks: Assembly
    ) -> None:
        with _making:
            before = set(_listening())
            devices = open_devices()
            self._own = set(_listening()) - before
            for ip, _ in sorted(self._own)[:1]:  # in the network that gloo uses
                ranks.watch(ip)
        # Gloo's constructor waits for the others without an eye on signals, or on ranks that fail.
        told = ranks.tell_all("listening", sorted(self._own))
        self._listeners = {(ip, port) for own in told for ip, port in own}
        ranks.check()  # all are there to be watched
        self.group: Any = make(devices)
        ranks.break_off = self.break_off

    def break_off(self) -> None:
        """Shut the connections down: what waits for another rank fails, here and there, and so does what follows."""
        for tcp in self._connected():
            with contextlib.suppress(OSError):  # ended meanwhile
                tcp.shutdown(socket.SHUT_RDWR)

    def carried(self) -> int:
        """Bytes that have gone over them so far, both ways."""
        return sum(
            sum(_CARRIED.unpack_from(tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _CARRIED_AT))
            for tcp in self._connected()
        )

    def _connected(self) -> Iterator[socket.socket]:
        own_ports = {port for _, port in self._own}
        for tcp in tcp_sockets():
            try:
                peer, own = tcp.getpeername()[:2], tcp.getsockname()[:2]
            except OSError:
                continue  # not connected
            if peer in self._listeners or own[1] in own_ports:
                yield tcp


def _listening() -> Iterator[tuple[str, int]]:
    for tcp in tcp_sockets():
        if tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield tcp.getsockname()[:2]
