# SPDX-License-Identifier: Apache-2.0
"""Frames for the tests of segmentation, and the native code that cuts and coalesces them (offload_driver.cpp)."""

import random
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

from tests.switch.inagg.packets import inet_checksum
from tests.switch.ports.sanitized import build

SOURCES = (*(f"ports/offload/{name}" for name in ("checksum", "coalesce", "cut", "headers")), "ports/queue")

TCP, UDP = 6, 17
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
OK, BAD, UNKNOWN = 0, 1, 2

# struct virtio_net_hdr: its layout, the flag, and kinds of segmentation (gso_type).
OFFLOAD = struct.Struct("=BBHHHH")
NEEDS_CHECKSUM = 1
TCP_IPV4, TCP_IPV6, UDP_L4, ECN = 1, 4, 5, 0x80


class Offload(NamedTuple):
    """struct virtio_net_hdr."""

    flags: int = 0
    gso_type: int = 0
    header_bytes: int = 0
    segment_bytes: int = 0
    checksum_start: int = 0
    checksum_offset: int = 0

    def encode(self) -> bytes:
        return OFFLOAD.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> "Offload":
        return cls(*OFFLOAD.unpack(data))


class Driver:
    """offload_driver.cpp as a process (`sanitized`)."""

    def __init__(self, folder: Path) -> None:
        binary = build(folder, "offload_driver.cpp", SOURCES)
        self._process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0

    def cut(self, offload: Offload, frame: bytes) -> tuple[int, list[bytes]]:
        """The Cutter's result, and the packets."""
        self._write(b"c" + offload.encode() + _counted(frame))
        return self._number(), self._all()

    def queue(
        self, packets: Sequence[bytes], *, room: int = 8 << 20, frames: int = 4096, limit: int = 1514
    ) -> tuple[int, list[tuple[Offload, bytes]]]:
        """The number of packets that an OutputQueue took, and the frames that it makes of them."""
        numbers = struct.pack("=4I", room, frames, limit, len(packets))
        self._write(b"q" + numbers + b"".join(map(_counted, packets)))
        taken = self._number()
        size = OFFLOAD.size
        return taken, [(Offload.decode(one[:size]), one[size:]) for one in self._all()]

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        assert len(data) == size, "the driver has ended: see its message on stderr"
        return data

    def _number(self) -> int:
        return int(struct.unpack("=I", self._read(4))[0])

    def _all(self) -> list[bytes]:
        return [self._read(self._number()) for _ in range(self._number())]


def _counted(data: bytes) -> bytes:
    return struct.pack("=I", len(data)) + data


@dataclass(frozen=True)
class Packet:
    """A TCP or UDP packet. `extra` is IPv4 options or IPv6 extension headers; `tags` are VLAN tags, the outer first."""

    payload: bytes
    ipv6: bool = False
    protocol: int = UDP
    tags: tuple[tuple[int, int], ...] = ()
    extra: bytes = b""
    tcp_options: bytes = b""
    flags: int = ACK
    sequence: int = 1
    identification: int = 1
    traffic_class: int = 0
    ttl: int = 64
    fragment: int = 0x4000
    ports: tuple[int, int] = (5000, 9)
    addresses: tuple[int, int] = (1, 2)
    checksum: int | None = None  # None: the correct one

    def encode(self) -> bytes:
        return self._below_transport() + self._transport(partial=False) + self.payload

    def large(self, segment_bytes: int) -> tuple[Offload, bytes]:
        """The packet as a frame before segmentation. Its checksum covers the pseudo header only."""
        below, transport = self._below_transport(), self._transport(partial=True)
        kind = UDP_L4
        if self.protocol == TCP:
            kind = (TCP_IPV6 if self.ipv6 else TCP_IPV4) | (ECN if self.flags & CWR else 0)
        offset = 16 if self.protocol == TCP else 6
        header_bytes = len(below) + len(transport)
        offload = Offload(NEEDS_CHECKSUM, kind, header_bytes, segment_bytes, len(below), offset)
        return offload, below + transport + self.payload

    def _below_transport(self) -> bytes:
        tags = b"".join(struct.pack("!HH", *tag) for tag in self.tags)
        ether = b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + tags + (b"\x86\xdd" if self.ipv6 else b"\x08\x00")
        return ether + (self._ipv6() if self.ipv6 else self._ipv4())

    def _address(self, number: int) -> bytes:
        return (0xFD << 120 | number).to_bytes(16, "big") if self.ipv6 else bytes([10, 0, 0, number])

    def _transport_bytes(self) -> int:
        return (8 if self.protocol == UDP else 20 + len(self.tcp_options)) + len(self.payload)

    def _ipv4(self) -> bytes:
        length = 20 + len(self.extra) + self._transport_bytes()
        version = 0x45 + len(self.extra) // 4
        head = struct.pack("!BBHHHBBH", version, self.traffic_class, length, self.identification, self.fragment,
                           self.ttl, self.protocol, 0)  # fmt: skip
        head += self._address(self.addresses[0]) + self._address(self.addresses[1]) + self.extra
        return head[:10] + struct.pack("!H", inet_checksum(head)) + head[12:]

    def _ipv6(self) -> bytes:
        head = struct.pack("!IHBB", 6 << 28 | self.traffic_class << 20, len(self.extra) + self._transport_bytes(),
                           60 if self.extra else self.protocol, self.ttl)  # fmt: skip
        return head + self._address(self.addresses[0]) + self._address(self.addresses[1]) + self.extra

    def _transport(self, partial: bool) -> bytes:
        if self.protocol == UDP:
            head, at = struct.pack("!HHHH", *self.ports, self._transport_bytes(), 0), 6
        else:
            offset = (20 + len(self.tcp_options)) // 4 << 4
            head = struct.pack("!HHIIBBHHH", *self.ports, self.sequence, 7, offset, self.flags, 1000, 0, 0)
            head, at = head + self.tcp_options, 16
        pseudo = self._address(self.addresses[0]) + self._address(self.addresses[1])
        pseudo += struct.pack("!II", self._transport_bytes(), self.protocol)
        if partial:
            value = ~inet_checksum(pseudo) & 0xFFFF
        else:
            value = inet_checksum(pseudo + head + self.payload)
            if value == 0 and self.protocol == UDP:
                value = 0xFFFF
        if self.checksum is not None:
            value = self.checksum
        return head[:at] + struct.pack("!H", value) + head[at + 2 :]


def some_bytes(draw: st.DrawFn, size: int) -> bytes:
    """Bytes that are cheap to draw. Some are all zeros or all ones, which checksums treat specially."""
    kind = draw(st.sampled_from(["random", "random", "zeros", "ones"]))
    if kind != "random":
        return (b"\0" if kind == "zeros" else b"\xff") * size
    return random.Random(draw(st.integers(0, 2**32))).randbytes(size)


@st.composite
def large_packets(draw: st.DrawFn) -> tuple[Packet, int]:
    """A packet and the payload of its segments."""
    ipv6, protocol = draw(st.booleans()), draw(st.sampled_from([TCP, UDP]))
    tags = draw(st.sampled_from([(), (), ((0x8100, 7),), ((0x88A8, 9), (0x8100, 0x2003))]))
    extra = b""
    if draw(st.booleans()):
        words = draw(st.integers(1, 10))
        extra = bytes([protocol, 0, 1, 4, 0, 0, 0, 0]) if ipv6 else b"\x01" * (4 * words)
    segment_bytes = draw(st.integers(1, 1400))
    segments = draw(st.integers(1, min(64, 60000 // segment_bytes)))
    size = segment_bytes * (segments - 1) + draw(st.integers(1, segment_bytes))
    return (
        Packet(
            some_bytes(draw, size), ipv6, protocol, tags, extra,
            tcp_options=b"\x01" * (4 * draw(st.integers(0, 10))),
            flags=draw(st.sampled_from([ACK, ACK | PSH, ACK | FIN | PSH, ACK | CWR | PSH, ACK | ECE, ACK | URG])),
            sequence=draw(st.integers(0, 2**32 - 1)),
            identification=draw(st.integers(0, 65535)),
            traffic_class=draw(st.integers(0, 255)),
            ttl=draw(st.integers(1, 255)),
        ),
        segment_bytes,
    )  # fmt: skip


TCP_FLAGS = st.sampled_from([ACK, ACK | PSH, ACK | FIN | PSH, ACK | CWR, ACK | ECE, SYN, RST, ACK | URG])


@st.composite
def packet_rows(draw: st.DrawFn) -> list[bytes]:
    """Frames as a port may get them: runs that can be coalesced, and other frames between them."""
    frames: list[bytes] = []
    for _ in range(draw(st.integers(1, 6))):
        base = Packet(
            b"", draw(st.booleans()), draw(st.sampled_from([UDP, TCP])),
            tags=draw(st.sampled_from([(), (), ((0x8100, 7),)])),
            traffic_class=draw(st.sampled_from([0, 3])),
            checksum=draw(st.sampled_from([None, None, 0, 0, 0x1234])),
            fragment=draw(st.sampled_from([0x4000, 0x4000, 0, 0x2000, 0x0001])),
            ports=draw(st.sampled_from([(5000, 9), (5001, 9)])),
            tcp_options=draw(st.sampled_from([b"", b"\x01" * 12])),
        )  # fmt: skip
        size = draw(st.integers(0, 1448))
        first, sequence = draw(st.integers(0, 65535)), draw(st.integers(0, 2**32 - 1))
        step = draw(st.sampled_from([1, 1, 1, 0, 2]))
        overlap = draw(st.sampled_from([0, 0, 0, 1]))  # bytes that a TCP segment repeats
        flags = {0: draw(st.sampled_from([ACK, ACK | CWR]))}  # by segment; ACK where there are none
        for _ in range(draw(st.integers(0, 2))):
            flags[draw(st.integers(0, 80))] = draw(TCP_FLAGS)
        sizes = [size] * draw(st.integers(1, 80))
        if draw(st.booleans()):
            sizes.append(draw(st.integers(0, size)))
        for k, bytes_here in enumerate(sizes):
            packet = replace(
                base,
                payload=some_bytes(draw, bytes_here),
                identification=(first + step * k) % 65536,
                sequence=(sequence + (size - overlap) * k) % 2**32,
                flags=flags.get(k, ACK),
            )
            frames.append(packet.encode())
    if draw(st.booleans()):
        frames[draw(st.integers(0, len(frames) - 1))] += b"padding"
    return frames
