# SPDX-License-Identifier: Apache-2.0
"""Breaks off the TCP connections of a gloo group, because gloo offers no way to end a collective under way.

Gloo connects every two ranks when a group is made: one rank connects to the port at which the other's device listens.
So a socket belongs to the group if its own port is a listening port of this rank, or its peer's of another rank.
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

# Held while devices are opened, so that new listening ports are those of the devices.
_making = Lock()


class GlooConnections:
    """The connections of one gloo group.

    Args:
        open_devices: opens the group's devices, which begin to listen. It does nothing else, because another thread of
            the program may open a listener at the same time, which would be taken for gloo's.
        make: makes the group with the devices, once all ranks have opened theirs.
        ranks: the ranks that make the group.
    """

    def __init__(
        self, open_devices: Callable[[], list[Any]], make: Callable[[list[Any]], Any], ranks: Assembly
    ) -> None:
        with _making:
            before = set(_listening())
            devices = open_devices()
            self._own = set(_listening()) - before
            for ip, _ in sorted(self._own)[:1]:  # an address in the network that gloo uses
                ranks.watch(ip)
        # Wait for all ranks here: gloo's constructor would not notice signals, or ranks that fail.
        listening = ranks.exchange("listening", sorted(self._own))
        self._listeners = {(ip, port) for own in listening for ip, port in own}
        ranks.check()  # connects to all ranks, so that it sees them end
        self.group: Any = make(devices)
        ranks.break_off = self.break_off

    def break_off(self) -> None:
        """Shut the connections down. Collectives under way and later ones fail, at both ends."""
        for tcp in self._connected():
            with contextlib.suppress(OSError):  # it has just ended
                tcp.shutdown(socket.SHUT_RDWR)

    def carried(self) -> int:
        """Bytes that the connections have carried so far, in both directions."""
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
