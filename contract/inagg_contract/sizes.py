# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes: of packets (docs/protocol.md, 2), and of memory. The lengths of runs of chunks (5.5)."""

import re

from inagg_contract.constants import (
    ETHERNET_HEADER_BYTES,
    INAGG_HEADER_BYTES,
    IPV4_HEADER_BYTES,
    RUN_CHUNKS,
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
    run = run_chunks(slots, servers)
    share = -(-(slots // run) // servers) * run
    return 2 * share * (INAGG_HEADER_BYTES + WORD_BYTES * words + SERVER_VERSION_BYTES)


def run_chunks(slots: int, ways: int) -> int:
    """How many chunks in a row go to one of several roots or servers, a power of two (docs/protocol.md, 5.5)."""
    each = 1 if ways.bit_count() == 1 else 8
    return min(RUN_CHUNKS, 1 << max(0, (slots // (each * ways)).bit_length() - 1))


def run_bits(slots: int, ways: int) -> int:
    """log2 of `run_chunks` at a switch, which chooses the root or the server; 0 where there is no choice."""
    return run_chunks(slots, ways).bit_length() - 1 if ways > 1 else 0


def way_of(chunk: int, slots: int, ways: int) -> int:
    """Which of the roots or servers a chunk goes to."""
    return chunk % slots // run_chunks(slots, ways) % ways


def parse_size(text: str) -> int:
    """Bytes of a size such as 256MiB. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be a size such as 256MiB or 2GiB")
    return int(found[1]) * _UNITS[found[2]]
