# SPDX-License-Identifier: Apache-2.0
"""Finds this host's interface towards the aggregator: its addresses, MTU and rate."""

import array
import fcntl
import socket
import struct
from dataclasses import dataclass

from inagg.base_errors import ConfigurationError

# linux/sockios.h. Not /sys/class/net: that shows the network namespace of whoever mounted /sys.
_SIOCGIFADDR = 0x8915
_SIOCGIFMTU = 0x8921
_SIOCGIFHWADDR = 0x8927
_SIOCETHTOOL = 0x8946
# linux/ethtool.h: a command, and struct ethtool_cmd with the low and the high half of the speed in Mbit/s.
_ETHTOOL_GSET = 1
_ETHTOOL_CMD = struct.Struct("I8xH14xH14x")
_SPEED_UNKNOWN = 0xFFFFFFFF
_LARGEST_PACKET = 65535  # of IPv4; the loopback interface's MTU is one byte more


def source_address(destination: str) -> str:
    """The IPv4 address this host would use towards ``destination``.

    Raises:
        ConfigurationError: there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))  # a UDP connect only looks up the route; nothing is sent
        except OSError as error:
            raise ConfigurationError(
                f"no route from this host to the aggregator at {destination} ({error.strerror}); is the interface "
                "towards the switch up?"
            ) from error
        address: str = probe.getsockname()[0]
        return address


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface.

    mac: such as ``aa:bb:cc:dd:ee:ff``. mtu: bytes of an IPv4 packet, at most 65535. rate: bits per second; None if the
    driver does not say.
    """

    mac: str
    mtu: int
    rate: float | None


def interface_of(address: str) -> Interface:
    """The interface that has the IPv4 ``address``.

    Raises:
        ConfigurationError: no interface has it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                reply = fcntl.ioctl(query.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(reply[20:24]) == address:
                hardware = fcntl.ioctl(query.fileno(), _SIOCGIFHWADDR, request)
                (mtu,) = struct.unpack_from("i", fcntl.ioctl(query.fileno(), _SIOCGIFMTU, request), 16)
                return Interface(hardware[18:24].hex(":"), min(mtu, _LARGEST_PACKET), _rate(query, name))
    raise ConfigurationError(f"no interface of this host has the address {address}")


def _rate(query: socket.socket, name: str) -> float | None:
    answer = array.array("B", _ETHTOOL_CMD.pack(_ETHTOOL_GSET, 0, 0))
    try:
        fcntl.ioctl(
            query.fileno(), _SIOCETHTOOL, struct.pack("16sP16x", name.encode(), answer.buffer_info()[0])
        )
    except OSError:
        return None
    _, low, high = _ETHTOOL_CMD.unpack(answer)
    speed = high << 16 | low
    return None if speed in (0, _SPEED_UNKNOWN) else speed * 1e6
