# SPDX-License-Identifier: Apache-2.0
"""Packets of docs/protocol.md, section 2, and the datagrams that hold them.

They are read without scapy's layers: those take a millisecond for a frame, which is too long for a capture of a GB.

A message of several packets is one datagram to whoever captures before segmentation (GSO) or after reassembly (GRO):
all its packets have the length of the first, but the last, which may be shorter. `split` finds that length.
"""

import itertools
import struct
from collections.abc import Collection
from typing import NamedTuple

from inagg_contract.constants import (
    EXPONENT_CHECK,
    FLAG_AGAIN,
    INAGG_HEADER_BYTES,
    INAGG_VERSION,
    KIND_DATA,
    KIND_EXPONENT,
    KIND_QUERY,
    KIND_RESULT,
    MAX_EXPONENT,
    MEMBERS_BYTES,
    WORD_BYTES,
)
from inagg_wire.errors import NoPacketError

_HEADER = struct.Struct(">BBHHHIII")
_BITS = struct.Struct(">Q")
_CONTENTS = {KIND_EXPONENT, KIND_DATA}
_MOST_WORDS = 64  # of a packet: an MTU of 16 KiB
assert _HEADER.size == INAGG_HEADER_BYTES


class Packet(NamedTuple):
    """The fields of section 2.1, and the bits of 5.7."""

    kind: int
    rank: int
    job: int
    flags: int
    exponent: int
    flags_check: int
    exponent_check: int
    epoch: int
    chunk: int
    checksum: int
    length: int  # bytes of the datagram
    members: int | None = None
    waits_with: int | None = None

    @property
    def is_result(self) -> bool:
        return self.kind & (KIND_RESULT | KIND_QUERY) == KIND_RESULT

    @property
    def is_answer(self) -> bool:
        return self.kind & (KIND_RESULT | KIND_QUERY) == KIND_RESULT | KIND_QUERY

    @property
    def is_query(self) -> bool:
        return self.kind & (KIND_RESULT | KIND_QUERY) == KIND_QUERY

    @property
    def is_contribution(self) -> bool:
        return self.kind & (KIND_RESULT | KIND_QUERY) == 0

    @property
    def asks_again(self) -> bool:
        """Of an answer: the asker is to send its contribution."""
        return bool(self.flags & FLAG_AGAIN)

    @property
    def checks(self) -> bool:
        """Whether the check fields match (3.2), and the exponent is one that a packet may carry."""
        return (
            self.flags_check == self.flags
            and self.exponent_check == self.exponent + EXPONENT_CHECK
            and self.exponent <= MAX_EXPONENT
        )


def parse(data: bytes, length: int) -> Packet:
    """Read a packet of `length` bytes, of which a capture may have fewer. Its check fields may be wrong.

    Raises NoPacketError.
    """
    if len(data) < INAGG_HEADER_BYTES:
        raise NoPacketError("a header is cut short")
    first, rank, job, stated, check, epoch, chunk, checksum = _HEADER.unpack_from(data)
    version, kind = divmod(first, 16)
    if version != INAGG_VERSION:
        raise NoPacketError(f"version {version}, not {INAGG_VERSION}")
    if kind & ~(KIND_QUERY | KIND_RESULT) not in _CONTENTS:
        raise NoPacketError(f"kind {kind:#x}")
    bits = _bits(kind, length)
    if bits is None:
        raise NoPacketError(f"{length} bytes, which no packet of kind {kind:#x} has")
    end = INAGG_HEADER_BYTES + bits
    members, waits_with = (
        _BITS.unpack_from(data, at)[0] if at < end and at + MEMBERS_BYTES <= len(data) else None
        for at in (INAGG_HEADER_BYTES, INAGG_HEADER_BYTES + MEMBERS_BYTES)
    )
    flags, exponent = divmod(stated, 1024)
    flags_check, exponent_check = divmod(check, 1024)
    return Packet(
        kind, rank, job, flags, exponent, flags_check, exponent_check, epoch, chunk, checksum, length,
        members, waits_with,
    )  # fmt: skip


def _bits(kind: int, length: int) -> int | None:
    """How many bytes of bits (5.7) are in a packet of this kind and length; None if there is no such packet."""
    has_words = kind & ~KIND_RESULT == KIND_DATA
    words, rest = divmod(length - INAGG_HEADER_BYTES, WORD_BYTES)
    if (words > 0) != has_words or words > _MOST_WORDS:
        return None
    if rest == 0:
        return 0
    bits = MEMBERS_BYTES * (2 if kind & KIND_QUERY else 1)
    return bits if rest == bits and not kind & KIND_RESULT else None


def may_be(data: bytes, length: int) -> bool:
    """Whether a datagram at any port looks like the protocol's (5.6): its first packet has right check fields."""
    if len(data) < INAGG_HEADER_BYTES or data[0] >> 4 != INAGG_VERSION:
        return False
    _, _, _, stated, check, *_ = _HEADER.unpack_from(data)
    return check == stated + EXPONENT_CHECK and bool(split(data, length, ()))


def split(data: bytes, length: int, known: Collection[int]) -> list[tuple[int, int]]:
    """(offset, length) of each packet in a datagram of `length` bytes, of which a capture may have fewer.

    known: lengths of packets with words that this capture has had. They decide where the headers that would show the
    length have been cut away. Empty if there is no packet, or if the length cannot be known.
    """
    if length in known:
        return [(0, length)]
    kind = data[0] & 15 if data else 0
    cut = len(data) < length
    words = range(1, _MOST_WORDS + 1) if kind & ~KIND_RESULT == KIND_DATA else (0,)
    bits = (0,) if kind & KIND_RESULT else (0, MEMBERS_BYTES * (2 if kind & KIND_QUERY else 1))
    sizes = (INAGG_HEADER_BYTES + WORD_BYTES * many + more for many in words for more in bits)
    for size in itertools.takewhile(lambda size: size <= length, sizes):
        offsets = range(0, length, size)
        if _bits_of_last(data, offsets[-1], length, cut) and all(
            _continues(data, offset) for offset in offsets[1:]
        ):
            if cut and size != length and size not in known and len(data) < size + INAGG_HEADER_BYTES:
                continue  # nothing of the second packet is there
            return [(offset, min(size, length - offset)) for offset in offsets]
    return []


def _bits_of_last(data: bytes, offset: int, length: int, cut: bool) -> bool:
    """Whether the last packet's length is one that a packet of its kind has."""
    left = length - offset
    if offset < len(data):
        return _bits(data[offset] & 15, left) is not None
    kinds = [kind | KIND_RESULT & data[0] for kind in (KIND_EXPONENT, KIND_DATA, KIND_EXPONENT | KIND_QUERY)]
    return cut and any(_bits(kind, left) is not None for kind in kinds)


def _continues(data: bytes, offset: int) -> bool:
    """Whether a packet of the same job and epoch begins here, as far as the capture shows."""
    there = data[offset : offset + INAGG_HEADER_BYTES]
    if len(there) < INAGG_HEADER_BYTES:
        return len(data) < offset + INAGG_HEADER_BYTES
    same = there[0] >> 4 == data[0] >> 4 and (there[0] ^ data[0]) & KIND_RESULT == 0
    return same and there[2:4] == data[2:4] and there[8:12] == data[8:12]
