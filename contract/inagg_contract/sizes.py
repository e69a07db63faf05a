# SPDX-License-Identifier: Apache-2.0
"""Sizes of packets in bytes (docs/protocol.md, 2)."""

from inagg_contract.constants import (
    ETHERNET_HEADER_BYTES,
    INAGG_HEADER_BYTES,
    IPV4_HEADER_BYTES,
    UDP_HEADER_BYTES,
    WORD_BYTES,
)

# Of an IPv4 packet without words, and of the frame that carries it.
HEADERS_BYTES = IPV4_HEADER_BYTES + UDP_HEADER_BYTES + INAGG_HEADER_BYTES
FRAME_HEADERS_BYTES = ETHERNET_HEADER_BYTES + HEADERS_BYTES


def data_mtu(words: int) -> int:
    """A DATA packet from its IPv4 header on: what the path MTU must allow."""
    return HEADERS_BYTES + WORD_BYTES * words
