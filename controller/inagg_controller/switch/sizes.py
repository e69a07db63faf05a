# SPDX-License-Identifier: Apache-2.0
"""Packet sizes in bytes: what p4/include/constants.p4 says and P4Info does not tell."""

PACKET_HEADERS_BYTES = 20 + 8 + 20  # IPv4, UDP, inagg
WORD_BYTES = 256


def data_mtu(words: int) -> int:
    """A DATA packet from its IPv4 header on (docs/protocol.md, 2): what the path MTU must allow."""
    return PACKET_HEADERS_BYTES + WORD_BYTES * words
