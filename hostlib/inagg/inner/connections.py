# SPDX-License-Identifier: Apache-2.0
"""Breaks off the TCP connections of a gloo group, because gloo offers no way to end a collective under way.

Gloo connects every two ranks when a group is made: one rank connects to the port at which the other's device listens.
A device has a port for all its groups, but only one of them connects at a time (`devices`). So a connection belongs to
the group if it has appeared while the group was made, and one of its ends is such a port of one of the ranks.
"""

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

from inagg.inner.devices import Devices
from inagg.membership.assembly import Assembly
from inagg.membership.sockets import tcp_sockets

# linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received of struct tcp_info.
_CARRIED, _CARRIED_AT = struct.Struct("QQ"), 120

_Ends = tuple[Any, Any]  # a connection's own address, and its peer's


class GlooConnections:
    """The connections of one gloo group.

    Args:
        address: of this host, for the devices (`Devices.lend`).
        make: makes the group with the devices, once all ranks have theirs.
        ranks: the ranks that make the group.
    """

    def __init__(self, address: str | None, make: Callable[[list[Any]], Any], ranks: Assembly) -> None:
        self._devices: Devices | None = Devices.lend(address)
        try:
            own = self._devices.listeners
            for ip, _ in own[:1]:  # an address in the network that gloo uses
                ranks.watch(ip)
            # Wait for all ranks here: gloo's constructor would not notice signals, or ranks that fail.
            listening = {(ip, port) for each in ranks.exchange("listening", own) for ip, port in each}
            ranks.check()  # connects to all ranks, so that it sees them end
            before = {ends for _, ends in _connections()}
            self.group: Any = make(self._devices.devices)
            self._ends = {
                ends for _, ends in _connections() if ends not in before and listening.intersection(ends)
            }
        except BaseException:
            self.close()
            raise
        ranks.break_off = self.break_off

    def all_connected(self) -> None:
        """Let another group connect with the devices. To be called when all ranks have connected."""
        if self._devices is not None:
            self._devices.connected()

    def close(self) -> None:
        """Give the devices back. Closing twice changes nothing."""
        self.group = None
        devices, self._devices = self._devices, None
        if devices is not None:
            devices.give_back()

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
        for tcp, ends in _connections():
            if ends in self._ends:
                yield tcp


def _connections() -> Iterator[tuple[socket.socket, _Ends]]:
    """This process's TCP connections."""
    for tcp in tcp_sockets():
        with contextlib.suppress(OSError):  # not connected
            yield tcp, (tcp.getsockname()[:2], tcp.getpeername()[:2])
