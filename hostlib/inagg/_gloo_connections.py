# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of a gloo group, to break them off: gloo itself offers no way to end a collective under way.

Gloo connects every two ranks when a group is made: one of them connects to the port at which the other's device
listens. So a socket is the group's if its own port is such a port of ours, or its peer's one of another rank's.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any

from torch.distributed.distributed_c10d import Store

from inagg._store import tell_all

# Held while a device is made, so that the ports that appear are its own.
_making = Lock()


class GlooConnections:
    """Those of one group, found when it is made.

    Args:
        open_devices: opens the group's devices, which begin to listen. Nothing else is done while it does, so that
            listeners of the program, which may have other threads, are not taken for gloo's.
        make: makes the group with them.
        store: keys that the group's ranks share.
        rank, size: this process in the group.
        timeout: that the other ranks have to come.
    """

    def __init__(
        self,
        open_devices: Callable[[], list[Any]],
        make: Callable[[list[Any]], Any],
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
    ) -> None:
        with _making:
            before = set(_listening())
            devices = open_devices()
            self._own = set(_listening()) - before
        self.group = make(devices)
        told = tell_all(store, "listening", rank, range(size), sorted(self._own), timeout)
        self._listeners = {(ip, port) for addresses in told for ip, port in addresses}

    def break_off(self) -> None:
        """Shut the connections down: what waits for another rank fails, here and there, and so does what follows."""
        own_ports = {port for _, port in self._own}
        for tcp in _sockets():
            with contextlib.suppress(OSError):  # not connected
                if tcp.getpeername()[:2] in self._listeners or tcp.getsockname()[1] in own_ports:
                    tcp.shutdown(socket.SHUT_RDWR)


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
