# SPDX-License-Identifier: Apache-2.0
"""`inagg capture`: writes the packets of one interface of a testbed to a file that Wireshark and tcpdump read.

An AF_PACKET socket belongs to the network namespace in which it was made. So a thread that joins the node's namespace
makes the socket, and the command's own thread reads from it. It sees the frames that the kernel exchanges with the
interface: as in tcpdump, with offloads on a GSO segment is one frame and checksums may be missing.

The file is a pcap with nanoseconds (magic 0xa1b23c4d), one global header and 16 bytes before each frame
(draft-ietf-opsawg-pcap).
"""

import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from inagg_testbed.errors import ConfigurationError, NetworkError
from inagg_testbed.network.control import call_in_network_namespace
from inagg_testbed.network.fabric import CONTROL_PORT, Fabric
from inagg_testbed.network.lifecycle import Manifest
from inagg_testbed.network.topology import CONTROL_INTERFACE, port_interface, station_interface

_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
_LINKTYPE_ETHERNET = 1
_LONGEST = 0x40000  # bytes of a frame, GSO included
_QUEUE_BYTES = 64 << 20
_HEADER = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, _LONGEST, _LINKTYPE_ETHERNET)
_TIMESPEC = struct.Struct("=qq")


@dataclass(frozen=True)
class Place:
    """Where to capture: an interface, in the network namespace of a process."""

    name: str
    pid: int
    interface: str


@dataclass
class Captured:
    """Number of frames in the file, and of frames that the kernel dropped because writing was too slow."""

    frames: int = 0
    dropped: int = 0


def find_place(manifest: Manifest, text: str) -> Place:
    """h1 is the host's interface, ctl0 the controller's, leaf1:101 a port of a switch.

    In a star 1 (or p1) is a port, and s1 the controller's interface; with a topology file s1-p1 is a port. Raises
    ConfigurationError.
    """
    fabric = Fabric.from_settings(manifest.settings)
    if not fabric.described and (
        text == CONTROL_INTERFACE or (fabric.is_star and text == fabric.control_switch)
    ):
        return Place(CONTROL_INTERFACE, manifest.namespace(fabric.control_switch).pid, CONTROL_INTERFACE)
    if (port := fabric.find_port(text)) is not None:
        name = f"p{port.port}" if fabric.is_star else f"{port.switch}-p{port.port}"
        return Place(name, manifest.namespace(port.switch).pid, port_interface(manifest.run, port.port))
    if fabric.is_star and text.removeprefix("p").isdecimal():
        raise ConfigurationError(
            f"no port {text.removeprefix('p')}; the switch has 1 to {len(fabric.hosts)} and {CONTROL_PORT}"
        )
    if ":" in text:
        known = ", ".join(map(str, sorted(fabric.neighbours)))
        raise ConfigurationError(f"no port {text}; there are {known}")
    pid = manifest.namespace(text).pid
    number = next((host for host in fabric.hosts if fabric.host_name(host) == text), None)
    if number is None:
        raise ConfigurationError(
            f"{text} is no host and no port of a switch, such as {next(iter(fabric.neighbours))}"
        )
    return Place(text, pid, station_interface(manifest.run, fabric, number))


def capture(
    place: Place, file: BinaryIO, captured: Captured, *, count: int | None, alive: Callable[[], bool]
) -> None:
    """Write frames until there are `count`, the testbed has ended, or an exception (a signal) interrupts.

    `captured` is correct in each case. Raises NetworkError.
    """
    with call_in_network_namespace(place.pid, lambda: _open(place.interface)) as source:
        file.write(_HEADER)
        file.flush()
        try:
            while (count is None or captured.frames < count) and alive():
                if select.select([source], [], [], 0.2)[0]:
                    _take(source, file, captured)
                else:
                    file.flush()
        finally:
            _frames, captured.dropped = struct.unpack(
                "=II", source.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            )


def _open(interface: str) -> socket.socket:
    source = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        source.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _QUEUE_BYTES)
        source.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        source.bind((interface, _ETH_P_ALL))  # protocol 0 above: no frame of another interface before this
    except OSError as error:
        source.close()
        raise NetworkError(f"cannot capture on {interface}: {error.strerror}") from error
    return source


def _take(source: socket.socket, file: BinaryIO, captured: Captured) -> None:
    """Read one frame and write it."""
    try:
        frame, ancillary, _flags, _address = source.recvmsg(_LONGEST, socket.CMSG_SPACE(_TIMESPEC.size))
    except OSError as error:  # the interface is gone
        raise NetworkError(f"the capture has ended: {error.strerror}") from error
    seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
    file.write(struct.pack("=IIII", seconds & 0xFFFFFFFF, nanoseconds, len(frame), len(frame)) + frame)
    captured.frames += 1
