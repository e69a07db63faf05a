# SPDX-License-Identifier: Apache-2.0
"""TCP connections that end when the other host is silent, and access to those of torch and gloo."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

# linux/tcp.h: a connection with few packets in flight repeats the first six times without backoff.
TCP_THIN_LINEAR_TIMEOUTS = 16

# Silence before the first probe, and time between probes (tcp(7): TCP_KEEPIDLE, TCP_KEEPINTVL).
_PROBE_S = 1


def ending_in_silence(seconds: float) -> list[tuple[int, int, int]]:
    """Options with which a TCP connection ends when the other host leaves data or probes unanswered for `seconds`.

    The kernel answers for a process that is busy or stopped, so such a process is not silent. After a short outage of
    the network the connection goes on within a fraction of a second.
    """
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds)),
        (socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
    ]


def tcp_sockets() -> Iterator[socket.socket]:
    """This process's TCP sockets, each as a duplicate that is closed when the iteration goes on."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            duplicate = os.dup(int(entry.name))
        except OSError:
            continue  # closed in the meantime, such as the listing's own descriptor
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield found


def listeners() -> Iterator[tuple[str, int]]:
    """The addresses and ports at which this process listens."""
    for tcp in tcp_sockets():
        if tcp.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield tcp.getsockname()[:2]
