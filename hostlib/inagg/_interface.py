"""Which of this host's interfaces leads to the aggregator, and what is known of it."""

import fcntl
import socket
import struct
from dataclasses import dataclass

from inagg.errors import ConfigurationError

# linux/sockios.h. Not /sys/class/net: that shows the network namespace of whoever mounted /sys.
_SIOCGIFADDR = 0x8915
_SIOCGIFMTU = 0x8921
_SIOCGIFHWADDR = 0x8927


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
    """mac is written ``aa:bb:cc:dd:ee:ff``; mtu is in bytes of an IP packet."""

    mac: str
    mtu: int


def interface_of(address: str) -> Interface:
    """The interface that has the IPv4 ``address``.

    Raises:
        ConfigurationError: none has.
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
                return Interface(hardware[18:24].hex(":"), mtu)
    raise ConfigurationError(f"no interface of this host has the address {address}")
