# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes: of packets (docs/protocol.md, 2), and of memory."""

import re

from inagg_contract.constants import (
    ETHERNET_HEADER_BYTES,
    INAGG_HEADER_BYTES,
    IPV4_HEADER_BYTES,
    UDP_HEADER_BYTES,
    WORD_BYTES,
)

# Size of an IPv4 packet without words, and of its Ethernet frame.
HEADERS_BYTES = IPV4_HEADER_BYTES + UDP_HEADER_BYTES + INAGG_HEADER_BYTES
FRAME_HEADERS_BYTES = ETHERNET_HEADER_BYTES + HEADERS_BYTES

# What a server keeps of a slot version beside the packet (hostlib/native/server).
SERVER_VERSION_BYTES = 64

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(r"([0-9]+)\s*(KiB|MiB|GiB|)")


def data_mtu(words: int) -> int:
    """The path MTU that a DATA packet needs: its size from the IPv4 header on."""
    return HEADERS_BYTES + WORD_BYTES * words


def server_memory(slots: int, servers: int, words: int) -> int:
    """Bytes of memory that a job takes of each of its servers: two versions of its share of the slots."""
    return 2 * -(-slots // servers) * (INAGG_HEADER_BYTES + WORD_BYTES * words + SERVER_VERSION_BYTES)


def parse_size(text: str) -> int:
    """Bytes of a size such as 256MiB. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be a size such as 256MiB or 2GiB")
    return int(found[1]) * _UNITS[found[2]]
