# SPDX-License-Identifier: Apache-2.0
"""Send Ethernet frames from a host, many at a time (sendmmsg(2)), and capture a host's frames."""

import contextlib
import ctypes
import errno
import os
import socket
import time
from collections.abc import Iterator, Sequence

from inagg_testbed.network.control import call_in_network_namespace
from inagg_testbed.network.testbed import Testbed

BATCH = 128
_ETH_P_ALL = 3
_LIBC = ctypes.CDLL(None, use_errno=True)
_BUSY = (errno.ENOBUFS, errno.EAGAIN)  # the queue is full, or the other end of the link drops the frame
_MOST_WAITS = 20


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_IoVector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("sent", ctypes.c_uint),
    )


class Batch:
    """Frames to send any number of times."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        count = len(frames)
        self._vectors = (_IoVector * count)(*(_IoVector(frame, len(frame)) for frame in frames))
        self._messages = (_Message * count)(
            *(_Message(vectors=ctypes.pointer(vector), vector_count=1) for vector in self._vectors)
        )
        self.count = count

    def send(self, link: socket.socket) -> int:
        """Send each frame once; returns how many the kernel took. It refuses frames that the interface cannot carry."""
        at = taken = waits = 0
        while at < self.count:
            messages = ctypes.byref(self._messages, at * ctypes.sizeof(_Message))
            done = _LIBC.sendmmsg(link.fileno(), messages, self.count - at, 0)
            if done > 0:
                at, taken, waits = at + done, taken + done, 0
            elif (number := ctypes.get_errno()) in _BUSY and waits < _MOST_WAITS:
                waits += 1
                time.sleep(0.0005)
            elif number in (*_BUSY, errno.EMSGSIZE, errno.EINVAL):
                at, waits = at + 1, 0
            else:
                raise OSError(number, os.strerror(number))
        return taken


def send_all(link: socket.socket, frames: Sequence[bytes]) -> int:
    """Send frames in batches; returns how many the kernel took."""
    return sum(Batch(frames[at : at + BATCH]).send(link) for at in range(0, len(frames), BATCH))


@contextlib.contextmanager
def packet_socket(testbed: Testbed, host: int) -> Iterator[socket.socket]:
    """A socket that sends and receives whole frames on the interface of a host."""
    interface = testbed.network.gloo_interface(host)

    def make() -> socket.socket:
        link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        link.bind((interface, _ETH_P_ALL))
        return link

    with call_in_network_namespace(testbed.network.host(host).pid, make) as link:
        yield link


def capture(testbed: Testbed, host: int, count: int, *, timeout_s: float = 20.0) -> list[bytes]:
    """Up to `count` datagrams of the protocol that leave or reach a host. The large frames that segmentation offload
    makes of several datagrams are left out."""
    found: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    with packet_socket(testbed, host) as link:
        link.settimeout(1.0)
        while len(found) < count and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                frame = link.recv(1 << 16)
                if len(frame) <= 1514 and is_ours(frame):
                    found.append(frame)
    return found


def is_ours(frame: bytes) -> bool:
    """Whether it is a UDP datagram from or to the aggregator's port. Attacks also send frames that are cut off."""
    port = (18753).to_bytes(2, "big")
    return frame[12:14] == b"\x08\x00" and frame[23:24] == b"\x11" and port in (frame[34:36], frame[36:38])
