# SPDX-License-Identifier: Apache-2.0
"""Frames of a capture: the UDP datagrams in them. VLAN tags are skipped.

Link types are those of libpcap (https://www.tcpdump.org/linktypes.html).
"""

import struct
from typing import NamedTuple

from inagg_contract.constants import (
    ECN_BITS,
    ECN_CONGESTED,
    ETHERNET_HEADER_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_SERVICE_VLAN,
    ETHERTYPE_VLAN,
    IP_PROTOCOL_UDP,
    IPV4_HEADER_BYTES,
    UDP_HEADER_BYTES,
)

ETHERNET, RAW, RAW_IPV4, LINUX_COOKED, LINUX_COOKED_2 = 1, 101, 228, 113, 276
LINK_TYPES = {ETHERNET, RAW, RAW_IPV4, LINUX_COOKED, LINUX_COOKED_2}
_TAGS = {ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN}
_COOKED_BYTES = {LINUX_COOKED: 16, LINUX_COOKED_2: 20}
_UDP = struct.Struct(">HHH")
_NOT_WHOLE = 0x3FFF  # more fragments, or a fragment's offset


class Address(NamedTuple):
    """An IPv4 address and a UDP port."""

    ip: int
    port: int


class Datagram(NamedTuple):
    """A UDP datagram. `data` is shorter than `length` if the capture has cut the frame (snaplen)."""

    source: Address
    destination: Address
    data: bytes
    length: int
    congested: bool


def interface(frame: bytes, link_type: int) -> int | None:
    """The number of the interface, which a capture of all interfaces (`-i any`) has in each frame."""
    whole = link_type == LINUX_COOKED_2 and len(frame) >= 8
    return int.from_bytes(frame[4:8], "big") if whole else None


def datagram(frame: bytes, link_type: int) -> Datagram | None:
    """The datagram in a frame; None for other traffic, fragments, and frames cut before the UDP header's end."""
    at = _ipv4(frame, link_type)
    if at is None or len(frame) < at + IPV4_HEADER_BYTES or frame[at] >> 4 != 4:
        return None
    udp = at + 4 * (frame[at] & 15)
    fragment = int.from_bytes(frame[at + 6 : at + 8], "big") & _NOT_WHOLE
    if frame[at + 9] != IP_PROTOCOL_UDP or fragment or len(frame) < udp + UDP_HEADER_BYTES:
        return None
    source_port, destination_port, length = _UDP.unpack_from(frame, udp)
    length -= UDP_HEADER_BYTES
    if length < 0:
        return None
    data = udp + UDP_HEADER_BYTES
    return Datagram(
        Address(int.from_bytes(frame[at + 12 : at + 16], "big"), source_port),
        Address(int.from_bytes(frame[at + 16 : at + 20], "big"), destination_port),
        frame[data : data + length],
        length,
        frame[at + 1] & ECN_BITS == ECN_CONGESTED,
    )


def _ipv4(frame: bytes, link_type: int) -> int | None:
    """Where the IPv4 header begins."""
    if link_type in (RAW, RAW_IPV4):
        return 0
    if link_type == LINUX_COOKED_2:
        at, kind = _COOKED_BYTES[link_type], int.from_bytes(frame[:2], "big")
    else:
        at = _COOKED_BYTES.get(link_type, ETHERNET_HEADER_BYTES)
        kind = int.from_bytes(frame[at - 2 : at], "big")
    while kind in _TAGS:
        kind = int.from_bytes(frame[at + 2 : at + 4], "big")
        at += 4
    return at if kind == ETHERTYPE_IPV4 else None
