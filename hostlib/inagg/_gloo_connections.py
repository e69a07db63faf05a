# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of a gloo group, to break them off: gloo itself offers no way to end a collective under way.

Gloo connects every two ranks when a group is made: one of them connects to the port at which the other's device
listens. So a socket is the group's if its own port is such a port of ours, or its peer's one of another rank's.
"""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from inagg._assembly import Assembly

# linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received of struct tcp_info.
_CARRIED, _CARRIED_AT = struct.Struct("QQ"), 120

# Held while a device is made, so that the ports that appear are its own.
_making = Lock()


class GlooConnections:
    """Those of one group, found when it is made. The ranks that make it are watched by them until `unwatch`.

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
        self._watched: list[tuple[int, tuple[int, ...]]] = []
        self._gone: tuple[int, ...] = ()  # before they could be watched
        # Gloo's constructor waits for the others without an eye on signals, or on ranks that fail.
        told = ranks.tell_all("listening", sorted(self._own))
        self._listeners = {(ip, port): rank for rank, own in enumerate(told) for ip, port in own}
        self.group: Any = make(devices)
        self._watch(ranks.rank)
        ranks.connections = self

    def _watch(self, own_rank: int) -> None:
        # Not socket.dup(): that makes what it copies blocking, gloo's own descriptor with it.
        connected = [(os.dup(tcp.fileno()), peer) for tcp, peer in self._connected()]
        calling = {self._listeners.get(peer) for _, peer in connected}
        for descriptor, peer in connected:
            ranks: tuple[int, ...] = (self._listeners[peer],) if peer in self._listeners else ()
            if not ranks:  # it has called from another port than its own: only its host is known
                there = {rank for (ip, _), rank in self._listeners.items() if ip == peer[0]} - {own_rank}
                ranks = tuple(sorted(there - calling or there))
            self._watched.append((descriptor, ranks))
        seen = {rank for _, ranks in self._watched for rank in ranks}
        self._gone = tuple(sorted(set(self._listeners.values()) - seen - {own_rank}))

    def unwatch(self) -> None:
        """Watch the other ranks no longer."""
        while self._watched:
            os.close(self._watched.pop()[0])

    def ended(self) -> tuple[int, ...]:
        """See `Connections`."""
        if self._gone:
            return self._gone
        look = select.poll()
        by_descriptor = dict(self._watched)
        for descriptor in by_descriptor:
            look.register(descriptor, select.POLLRDHUP)
        found = [by_descriptor[descriptor] for descriptor, _ in look.poll(0)]
        return min(found, key=len, default=())

    def break_off(self) -> None:
        """Shut the connections down: what waits for another rank fails, here and there, and so does what follows."""
        for tcp, _ in self._connected():
            with contextlib.suppress(OSError):  # ended meanwhile
                tcp.shutdown(socket.SHUT_RDWR)

    def carried(self) -> int:
        """Bytes that have gone over them so far, both ways."""
        return sum(
            sum(_CARRIED.unpack_from(tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _CARRIED_AT))
            for tcp, _ in self._connected()
        )

    def _connected(self) -> Iterator[tuple[socket.socket, tuple[str, int]]]:
        """Each with the address of its other end."""
        own_ports = {port for _, port in self._own}
        for tcp in _sockets():
            try:
                peer, own = tcp.getpeername()[:2], tcp.getsockname()[:2]
            except OSError:
                continue  # not connected
            if peer in self._listeners or own[1] in own_ports:
                yield tcp, peer


def _listening() -> Iterator[tuple[str, int]]:
    for tcp in _sockets():
        if tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield tcp.getsockname()[:2]


def _sockets() -> Iterator[socket.socket]:
    """This process's TCP sockets, each by a descriptor of its own that is closed when the next is asked for."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            duplicate = os.dup(int(entry.name))
        except OSError:
            continue  # closed meanwhile: the listing's own
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield found
