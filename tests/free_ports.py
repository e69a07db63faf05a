# SPDX-License-Identifier: Apache-2.0
"""TCP ports for programs that take a port's number instead of a socket."""

import random
import socket
from pathlib import Path

FIRST = 10000  # inagg's own ports are below


def free_port() -> int:
    """A TCP port on which nothing listens, out of the range from which the kernel takes ports for connections.

    Raises OSError if a hundred ports are taken.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.Random().sample(range(FIRST, end), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("no TCP port is free")
