# SPDX-License-Identifier: Apache-2.0
"""Frames for fan_out.p4, and frames of many kinds."""

import random
import struct
from dataclasses import dataclass, replace

from tests.switch.ports.segments import TCP, UDP, Offload, Packet

EVERYONE = b"\xff" * 6
SOURCE = b"\x02\0\0\0\0\x01"
ETHERTYPE, PROBE = 0x88B5, 0x88B6  # local experimental. receive() skips PROBE frames.
TO_ONE, CHANGE_ALL, CHANGE_4, CLONE_3, IS_CLONE = 0x04, 0x06, 0x0A, 0x0E, 99  # fan_out.p4 explains them


def frame(payload: bytes, dst: bytes = EVERYONE, src: bytes = SOURCE, ethertype: int = ETHERTYPE) -> bytes:
    """A frame of at least 60 bytes: shorter ones use no device."""
    return dst + src + struct.pack("!H", ethertype) + payload.ljust(46, b"\0")


def numbered(number: int, dst: bytes = EVERYONE, src: bytes = SOURCE, size: int = 46) -> bytes:
    return frame(struct.pack("!I", number).ljust(size, b"\0"), dst, src)


def one(number: int) -> bytes:
    """The destination of a frame to one port."""
    return bytes([TO_ONE, 0, 0, 0, 0, number])


def source(what: int, last: int = 0) -> bytes:
    return bytes([what, 0, 0, 0, 0, last])


PROBE_FRAME = frame(b"", ethertype=PROBE)
LAST = frame(b"last")


@dataclass
class Sent:
    """What a packet socket with PACKET_VNET_HDR sends, and the packets that it is."""

    data: bytes
    packets: list[bytes]


def broadcast(data: bytes) -> bytes:
    """No host answers a frame to this address, whatever is in it."""
    return EVERYONE + data[6:]


def single(data: bytes) -> Sent:
    return Sent(Offload().encode() + data, [data])


def large(base: Packet, size: int, number: int, draw: random.Random) -> Sent:
    """Packets in one frame. The last is shorter."""
    base = replace(base, payload=draw.randbytes(size * number - size // 2))
    offload, whole = base.large(size)
    packets = []
    for k, at in enumerate(range(0, len(base.payload), size)):
        packet = replace(
            base,
            payload=base.payload[at : at + size],
            identification=base.identification + k,
            sequence=base.sequence + at,
        )
        packets.append(broadcast(packet.encode()))
    return Sent(offload.encode() + broadcast(whole), packets)


def rows(number: int, packets: int) -> list[Sent]:
    """Large frames of UDP datagrams with 1000 bytes."""
    base = Packet(b"", addresses=(77, 78))
    return [large(base, 1000, packets, random.Random(seed)) for seed in range(number)]


def assorted(draw: random.Random) -> list[Sent]:
    """Frames of many kinds and sizes, up to the MTU."""
    sent: list[Sent] = []
    for number in range(100):
        base = Packet(
            b"",
            ipv6=draw.random() < 0.3,
            protocol=draw.choice([UDP, UDP, TCP]),
            identification=100 * number,
            addresses=(77, 78),
            ports=(5000 + number, 9),
        )
        sent.append(large(base, draw.choice([7, 100, 1000, 1024, 1428]), draw.randint(2, 40), draw))
        unchecked = replace(base, ipv6=False, protocol=UDP, checksum=0, payload=draw.randbytes(500))
        for k in range(draw.randrange(10)):  # datagrams without a checksum, which may share a frame
            sent.append(single(broadcast(replace(unchecked, identification=100 * number + k).encode())))
        tags = draw.choice([(), ((0x8100, 7),), ((0x88A8, 9), (0x8100, 0x2003))])
        tagged = replace(base, tags=tags, payload=draw.randbytes(draw.randint(0, 1420)))
        sent.append(single(broadcast(tagged.encode())))
        spanning_tree, ipv6_nodes = b"\x01\x80\xc2\0\0\0", b"\x33\x33\0\0\0\x01"
        for dst in draw.sample([EVERYONE, spanning_tree, ipv6_nodes, one(2), one(3)], 4):
            ethertype = draw.choice([ETHERTYPE, 0x0800, 0x0806, 0x86DD, 0x0026])
            payload = draw.randbytes(draw.choice([0, 1, 28, 45, 46, 47, 1500, draw.randint(0, 1500)]))
            sent.append(single(dst + SOURCE + struct.pack("!H", ethertype) + payload))
    return sent


def with_checksum(data: bytes) -> bytes:
    """The frame; a datagram without a UDP checksum gets one, as the kernel may give it."""
    if data[12:15] != b"\x08\0\x45" or data[23] != UDP or data[40:42] != b"\0\0":
        return data
    identification, port = (int.from_bytes(data[at : at + 2], "big") for at in (18, 34))
    right = Packet(data[42:], identification=identification, addresses=(77, 78), ports=(port, 9))
    return broadcast(right.encode())
