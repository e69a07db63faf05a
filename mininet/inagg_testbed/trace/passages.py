# SPDX-License-Identifier: Apache-2.0
"""What passes a switch's ports: contributions and results, from the frames of a `PacketRing`.

A message of several packets is one frame (GSO), of which only the first header is there. All its packets are of the
length of the first, which is that of the shortest frame of its kind; its chunks follow on the first one but for those
that are sent again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from inagg_contract.constants import INAGG_HEADER_BYTES, KIND_DATA, KIND_RESULT, WORD_BYTES
from inagg_testbed.trace.packet_ring import Frame
from inagg_wire.errors import NoPacketError
from inagg_wire.frames import ETHERNET, datagram
from inagg_wire.packets import Packet, parse


class Passage(NamedTuple):
    """A message passes a port.

    time_s: of `time.monotonic`. port: what it leads to, such as h1. leaves: the switch sent it. is_result: results, not
    contributions. packets: how many. chunk: of the first.
    """

    time_s: float
    switch: str
    port: str
    leaves: bool
    is_result: bool
    job: int
    chunk: int
    packets: int


def read_passages(switch: str, ports: Mapping[int, str], frames: Iterable[Frame]) -> Iterator[Passage]:
    """The contributions and results among the frames. ports: by the interface's index, what a port leads to."""
    found: list[tuple[Frame, Packet, int]] = []
    shortest: dict[int, int] = {}
    for frame in frames:
        sent = datagram(frame.data, ETHERNET) if frame.interface in ports else None
        if sent is None:
            continue
        try:
            packet = _first(sent.data)
        except NoPacketError:
            continue
        if packet.is_contribution or packet.is_result:
            shortest[packet.kind] = min(shortest.get(packet.kind, sent.length), sent.length)
            found.append((frame, packet, sent.length))
    for frame, packet, length in found:
        yield Passage(
            frame.time_s,
            switch,
            ports[frame.interface],
            frame.leaves,
            packet.is_result,
            packet.job,
            packet.chunk,
            -(-length // shortest[packet.kind]),
        )


def _first(data: bytes) -> Packet:
    """The first packet of a message, as if it had one word at most. Raises NoPacketError."""
    has_words = bool(data) and data[0] & 15 & ~KIND_RESULT == KIND_DATA
    return parse(data, INAGG_HEADER_BYTES + WORD_BYTES * has_words)
