# SPDX-License-Identifier: Apache-2.0
"""IPv4 and MAC addresses as the HTTP API writes them."""

import ipaddress
import re
from typing import TypeAlias

_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def parse_ip(text: str) -> int:
    """Parse a host's IPv4 address. Raises ValueError."""
    try:
        ip = ipaddress.IPv4Address(text)
    except ipaddress.AddressValueError:
        raise ValueError(f"{text[:40]!r} is not an IPv4 address") from None
    if ip.is_multicast or ip.is_unspecified or ip == _BROADCAST:
        raise ValueError(f"{text} is not a host's address")
    return int(ip)


def parse_source(text: str) -> Address:
    """Parse the address that requests come from; a proxy may write an IPv4 address in IPv6. Raises ValueError."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if address.is_multicast or address.is_unspecified:
        raise ValueError(f"{text} is not a host's address")
    return mapped or address


def parse_mac(text: str) -> int:
    """Parse a station's MAC address: six hexadecimal bytes with colons. Raises ValueError."""
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address such as 02:00:00:00:00:01")
    mac = int(text.replace(":", ""), 16)
    if mac == 0 or mac >> 40 & 1:
        raise ValueError(f"{text} is not a station's address")
    return mac


def parse_multicast_network(text: str) -> ipaddress.IPv4Network:
    """Parse a network of IPv4 multicast addresses. Raises ValueError."""
    network = ipaddress.IPv4Network(text)
    if not network.is_multicast:
        raise ValueError(f"{text} is not a network of multicast addresses, which are in 224.0.0.0/4")
    return network


def multicast_mac(ip: int) -> int:
    """The MAC address of an IPv4 multicast address (RFC 1112, 6.4)."""
    return 0x01005E000000 | ip & 0x7FFFFF


def format_ip(ip: int) -> str:
    """The inverse of parse_ip."""
    return str(ipaddress.IPv4Address(ip))


def format_mac(mac: int) -> str:
    """The inverse of parse_mac."""
    return mac.to_bytes(6, "big").hex(":")
