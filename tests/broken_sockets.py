# SPDX-License-Identifier: Apache-2.0
"""Breaks a socket under the thread that uses it, as a program does that closes descriptors it does not own."""

import contextlib
import os
import socket
import stat
from pathlib import Path

# What the kernel says to a thread that receives from it then.
COMPLAINT = "cannot receive: Socket operation on non-socket"


def break_socket(address: tuple[str, int]) -> None:
    """Put /dev/null in the place of this process's UDP socket at `address`, and wake the thread that waits in poll().

    Raises AssertionError if the process has no such socket.
    """
    descriptors = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    found = [descriptor for descriptor in descriptors if _is_at(descriptor, address)]
    assert found, f"this process has no UDP socket at {address}"
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in found:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    # poll() holds the socket, so the datagram still comes there.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anyone:
        anyone.sendto(b"", address)


def _is_at(descriptor: int, address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError):  # one that has been closed meanwhile
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            with socket.socket(fileno=os.dup(descriptor)) as one:
                return one.type == socket.SOCK_DGRAM and one.getsockname() == address
    return False
