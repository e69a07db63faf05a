# SPDX-License-Identifier: Apache-2.0
"""Cutting frames and coalescing packets, compared with each other and with the kernel's segmentation."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.switch.inagg.packets import inet_checksum
from tests.switch.network import Network
from tests.switch.ports.segments import (
    ACK,
    BAD,
    CWR,
    ECE,
    FIN,
    NEEDS_CHECKSUM,
    OK,
    PSH,
    RST,
    SYN,
    TCP,
    TCP_IPV4,
    TCP_IPV6,
    UDP,
    UNKNOWN,
    URG,
    Driver,
    Offload,
    Packet,
    large_packets,
    packet_rows,
)

some = settings(max_examples=150, suppress_health_check=list(HealthCheck))
SENTINEL = b"\xff" * 12 + b"\x88\xb6" + b"the end" + bytes(46)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(tmp_path_factory.mktemp("driver"))
    yield made
    made.close()


# --- examples


def test_udp_segments(driver: Driver) -> None:
    packet = Packet(b"abcdefgh" * 5, identification=0xFFFF)
    result, packets = driver.cut(*packet.large(16))
    assert result == OK
    assert packets == [
        Packet(b"abcdefgh" * 2, identification=0xFFFF).encode(),
        Packet(b"abcdefgh" * 2, identification=0).encode(),
        Packet(b"abcdefgh", identification=1).encode(),
    ]


def test_tcp_segments(driver: Driver) -> None:
    packet = Packet(b"0123456789", protocol=TCP, flags=ACK | FIN | PSH | CWR, sequence=2**32 - 4, ipv6=True)
    _, packets = driver.cut(*packet.large(4))
    assert packets == [
        Packet(b"0123", protocol=TCP, flags=ACK | CWR, sequence=2**32 - 4, ipv6=True).encode(),
        Packet(b"4567", protocol=TCP, flags=ACK, sequence=0, ipv6=True).encode(),
        Packet(b"89", protocol=TCP, flags=ACK | FIN | PSH, sequence=4, ipv6=True).encode(),
    ]


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 63, 64, 65, 1459])
def test_a_missing_checksum_is_filled_in(driver: Driver, protocol: int, size: int) -> None:
    packet = Packet(os.urandom(size), protocol=protocol)
    offload, frame = packet.large(0)
    assert driver.cut(offload._replace(gso_type=0), frame) == (OK, [packet.encode()])


def test_a_frame_without_offloads_stays_as_it_is(driver: Driver) -> None:
    for frame in (b"x", b"\0" * 60, os.urandom(1514), Packet(b"abc", checksum=0xBAD).encode()):
        assert driver.cut(Offload(), frame) == (OK, [frame])


@pytest.mark.parametrize("checksum", [0, None])
def test_consecutive_datagrams_become_one_frame(driver: Driver, checksum: int | None) -> None:
    packets = [Packet(bytes([k]) * 8, identification=k, checksum=checksum).encode() for k in range(3)]
    last = Packet(b"end", identification=3, checksum=checksum).encode()
    taken, frames = driver.queue([*packets, last])
    assert taken == 4
    assert frames == [Packet(b"\0" * 8 + b"\1" * 8 + b"\2" * 8 + b"end", identification=0).large(8)]


@pytest.mark.parametrize("ipv6", [False, True])
def test_consecutive_tcp_segments_become_one_frame(driver: Driver, ipv6: bool) -> None:
    options = b"\x01\x01\x08\x0a" + bytes(8)
    first = Packet(
        b"abcd", ipv6, TCP, flags=ACK | CWR, sequence=2**32 - 2, identification=0xFFFF, tcp_options=options
    )
    second = replace(first, payload=b"efgh", flags=ACK, sequence=2, identification=0)
    last = replace(first, payload=b"ij", flags=ACK | PSH | FIN, sequence=6, identification=1)
    taken, frames = driver.queue([first.encode(), second.encode(), last.encode()])
    assert taken == 3
    assert frames == [replace(first, payload=b"abcdefghij", flags=ACK | CWR | PSH | FIN).large(4)]


TCP_FIRST = Packet(b"abcdefgh", protocol=TCP, sequence=100)
TCP_SECOND = Packet(b"12345678", protocol=TCP, sequence=108, identification=2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (TCP_FIRST, replace(TCP_SECOND, sequence=107)),
        (TCP_FIRST, replace(TCP_SECOND, sequence=109)),
        (TCP_FIRST, replace(TCP_SECOND, identification=1)),
        (TCP_FIRST, replace(TCP_SECOND, flags=ACK | CWR)),
        (TCP_FIRST, replace(TCP_SECOND, flags=ACK | ECE)),
        (TCP_FIRST, replace(TCP_SECOND, flags=ACK | RST)),
        (TCP_FIRST, replace(TCP_SECOND, tcp_options=b"\x01" * 4)),
        (TCP_FIRST, replace(TCP_SECOND, payload=b"")),
        (TCP_FIRST, replace(TCP_SECOND, payload=b"123456789")),
        (TCP_FIRST, replace(TCP_SECOND, checksum=0x1234)),
        *(
            (replace(TCP_FIRST, flags=flags), replace(TCP_SECOND, flags=flags))
            for flags in (SYN, RST | ACK, ACK | URG, ACK | PSH, ACK | FIN)
        ),
    ],
)
def test_a_segment_that_is_not_the_next_is_not_coalesced(
    driver: Driver, first: Packet, second: Packet
) -> None:
    packets = [first.encode(), second.encode()]
    assert driver.queue(packets) == (2, [(Offload(), packet) for packet in packets])


def test_a_segment_with_psh_is_the_last_of_its_frame(driver: Driver) -> None:
    rows = [
        replace(TCP_FIRST, identification=k, sequence=8 * k, flags=ACK | (PSH if k == 1 else 0)).encode()
        for k in range(4)
    ]
    _, frames = driver.queue(rows)
    assert [len(frame) for _, frame in frames] == [54 + 16, 54 + 16]


@pytest.mark.parametrize(
    ("protocol", "at", "checksum", "frames"), [(TCP, 50, 0, 1), (TCP, 50, 0xFFFF, 2), (UDP, 40, 0xFFFF, 1)]
)
def test_a_checksum_of_zero_is_written_as_the_kernel_does(
    driver: Driver, protocol: int, at: int, checksum: int, frames: int
) -> None:
    """0 and 0xFFFF are equal in a sum, but the kernel's segmentation writes 0 for TCP and 0xFFFF for UDP."""
    empty = Packet(bytes(2), protocol=protocol, sequence=100)
    payload = empty.encode()[at : at + 2]  # with its checksum as payload, the sum becomes 0
    first = replace(empty, payload=payload, checksum=checksum)
    second = Packet(b"ab", protocol=protocol, sequence=102, identification=2)
    assert len(driver.queue([first.encode(), second.encode()])[1]) == frames


OTHER = Packet(b"12345678", identification=2, checksum=0)  # of the same flow as the first packet of the test


@pytest.mark.parametrize(
    "other",
    [
        replace(OTHER, identification=5),
        replace(OTHER, ttl=63),
        replace(OTHER, traffic_class=1),
        replace(OTHER, ports=(5000, 10)),
        replace(OTHER, addresses=(1, 3)),
        replace(OTHER, checksum=0x1234),
        replace(OTHER, checksum=None),
        replace(OTHER, protocol=TCP),
        replace(OTHER, fragment=0),
        replace(OTHER, fragment=0x2000),
        replace(OTHER, extra=b"\x01" * 4),
        replace(OTHER, tags=((0x8100, 1),)),
        replace(OTHER, payload=b"longer than the first"),
        replace(OTHER, payload=b""),
        replace(OTHER, ipv6=True),
    ],
)
def test_a_packet_that_differs_in_more_is_not_coalesced(driver: Driver, other: Packet) -> None:
    packets = [Packet(b"abcdefgh", identification=1, checksum=0).encode(), other.encode()]
    assert driver.queue(packets) == (2, [(Offload(), packet) for packet in packets])


def test_datagrams_longer_than_the_mtu_are_not_coalesced(driver: Driver) -> None:
    packets = [Packet(bytes(1000), identification=k).encode() for k in range(2)]
    assert driver.queue(packets, limit=1041)[1] == [(Offload(), packet) for packet in packets]


def test_a_frame_holds_64_segments_and_65535_bytes(driver: Driver) -> None:
    _, frames = driver.queue([Packet(bytes(10), identification=k).encode() for k in range(130)])
    assert [len(frame) for _, frame in frames] == [42 + 640, 42 + 640, 42 + 20]
    _, frames = driver.queue([Packet(bytes(1472), identification=k).encode() for k in range(64)])
    assert [len(frame) for _, frame in frames] == [42 + 44 * 1472, 42 + 20 * 1472]


# --- properties


def packets_of(driver: Driver, frames: list[tuple[Offload, bytes]]) -> list[bytes]:
    packets = []
    for offload, frame in frames:
        result, cut = driver.cut(offload, frame)
        assert result == OK
        packets += cut
    return packets


def with_checksum(frame: bytes) -> bytes:
    """An IPv4 datagram with its zero checksum replaced by the correct one; other frames as they are."""
    if frame[12:15] != b"\x08\x00\x45" or frame[23] != UDP or frame[40:42] != b"\0\0":
        return frame
    length = struct.unpack("!H", frame[38:40])[0]
    pseudo = frame[26:34] + struct.pack("!HH", UDP, length)
    value = inet_checksum(pseudo + frame[34 : 34 + length]) or 0xFFFF
    return frame[:40] + struct.pack("!H", value) + frame[42:]


@some
@given(rows=packet_rows())
def test_cutting_coalesced_frames_restores_the_packets(driver: Driver, rows: list[bytes]) -> None:
    taken, frames = driver.queue(rows)
    assert taken == len(rows)
    at = 0
    for offload, frame in frames:
        packets = packets_of(driver, [(offload, frame)])
        came = rows[at : at + len(packets)]
        # The only difference allowed: a datagram without a checksum gets one when it is coalesced.
        assert packets == (came if len(packets) == 1 else [with_checksum(one) for one in came])
        at += len(packets)
    assert at == len(rows)


@some
@given(large=large_packets())
def test_coalescing_the_packets_of_a_frame_restores_it(driver: Driver, large: tuple[Packet, int]) -> None:
    packet, segment_bytes = large
    offload, frame = packet.large(segment_bytes)
    packets = packets_of(driver, [(offload, frame)])
    taken, frames = driver.queue(packets)
    assert taken == len(packets)
    plain = not packet.tags and not packet.extra and (packet.protocol == UDP or not packet.flags & URG)
    if plain and len(packets) > 1:
        assert frames == [(offload, frame)]
    else:
        assert frames == [(Offload(), one) for one in packets]


@some
@given(rows=packet_rows(), room=st.integers(2000, 30000), limit=st.integers(1, 40))
def test_a_full_queue_refuses_whole_packets(driver: Driver, rows: list[bytes], room: int, limit: int) -> None:
    taken, frames = driver.queue(rows, room=room, frames=limit)
    assert len(frames) <= limit
    assert sum(len(frame) + 10 for _, frame in frames) <= room
    assert len(packets_of(driver, frames)) == taken


@settings(some, max_examples=600)
@given(
    large=large_packets(),
    offload=st.builds(
        Offload,
        st.integers(0, 255),
        st.one_of(st.sampled_from([0, 1, 4, 5, 0x81, 0x84, 0x85, 3]), st.integers(0, 255)),
        *[st.one_of(st.integers(0, 80), st.integers(0, 65535))] * 4,
    ),
    keep=st.sets(st.sampled_from(Offload._fields)),
    flips=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=3),
    length=st.one_of(st.none(), st.integers(0, 200)),
)
def test_wrong_headers_do_no_harm(
    driver: Driver,
    large: tuple[Packet, int],
    offload: Offload,
    keep: set[str],
    flips: list[tuple[int, int]],
    length: int | None,
) -> None:
    """The sanitizers find nothing, and the packets hold no more bytes than the frame and their headers."""
    packet, segment_bytes = large
    right, frame = packet.large(segment_bytes)
    offload = offload._replace(**{name: getattr(right, name) for name in keep})
    damaged = bytearray(frame[:length])
    for at, value in flips:
        if at < len(damaged):
            damaged[at] = value
    result, packets = driver.cut(offload, bytes(damaged))
    assert result in (OK, BAD, UNKNOWN)
    if result != OK:
        assert packets == []
    elif offload.gso_type == 0:
        assert [len(one) for one in packets] == ([len(damaged)] if damaged else [])
    else:
        assert sum(len(one) for one in packets) <= len(damaged) + 256 * (len(packets) - 1)
    driver.queue([bytes(damaged) or b"x", bytes(damaged) or b"x"])


@pytest.mark.parametrize("gso_type", [2, 3, 6, 0x10, 0x20, 0x40, 0x80, 0x83, 0x85, 255])
def test_an_unknown_kind_of_segmentation_is_refused(driver: Driver, gso_type: int) -> None:
    offload, frame = Packet(bytes(100)).large(10)
    assert driver.cut(offload._replace(gso_type=gso_type), frame) == (UNKNOWN, [])


def test_a_checksum_that_is_not_the_internet_checksum_is_refused(driver: Driver) -> None:
    """SCTP has a CRC32c at byte 8 of its header. A kernel may leave that to hardware as well."""
    sctp = Offload(flags=NEEDS_CHECKSUM, checksum_start=34, checksum_offset=8)
    assert driver.cut(sctp, bytes(100)) == (UNKNOWN, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_bytes": 0},
        {"checksum_start": 33},
        {"checksum_start": 65535},
        {"checksum_offset": 16},
        {"gso_type": TCP_IPV4},
        {"gso_type": TCP_IPV6},
        {"gso_type": 0, "checksum_start": 13},
        {"gso_type": 0, "checksum_start": 142},
        {"gso_type": 0, "checksum_offset": 107},
        {"gso_type": 0, "checksum_start": 65535, "checksum_offset": 65535},
    ],
)
def test_an_offload_that_does_not_fit_the_frame_is_refused(driver: Driver, wrong: dict[str, int]) -> None:
    offload, frame = Packet(bytes(100)).large(10)
    assert driver.cut(offload._replace(**wrong), frame) == (BAD, [])


# --- the kernel


class Wire:
    """Sends frames with offloads on a host's interface that has none, so that the kernel cuts them, and receives the
    packets at the other end."""

    def __init__(self, net: Network) -> None:
        with net.inside(net.host(1)):
            self._sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._sender.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
            self._sender.bind(("eth0", 0))
        with net.inside(net.switch):
            self._receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._receiver.setsockopt(263, 8, 1)  # PACKET_AUXDATA
            self._receiver.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
            self._receiver.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            self._receiver.bind((net.port_interface(1), 3))
        self._receiver.settimeout(10)

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()

    def cut(self, offload: Offload, frame: bytes) -> list[bytes]:
        self._sender.send(offload.encode() + frame)
        self._sender.send(Offload().encode() + SENTINEL)
        packets = []
        while (packet := self._receive()) != SENTINEL:
            packets.append(packet)
        return packets

    def _receive(self) -> bytes:
        data, controls, _, _ = self._receiver.recvmsg(70000, 100)
        status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", controls[0][2])
        return data[:12] + struct.pack("!HH", tpid, tci) + data[12:] if status & 0x10 else data


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    net = Network(f"isw{os.getpid()}seg", 1)
    with contextlib.ExitStack() as stack:
        stack.callback(net.remove)
        net.create()
        net.set_offloads(1, False)
        made = Wire(net)
        stack.callback(made.close)
        yield made


@pytest.mark.netns
@some
@given(large=large_packets())
def test_segments_are_those_of_the_kernel(driver: Driver, wire: Wire, large: tuple[Packet, int]) -> None:
    packet, segment_bytes = large
    assume(len(packet.payload) > segment_bytes)  # the kernel refuses some frames of only one segment
    offload, frame = packet.large(segment_bytes)
    assume(offload.header_bytes + segment_bytes <= 1514)  # the kernel drops packets larger than the MTU
    assert driver.cut(offload, frame) == (OK, wire.cut(offload, frame))


@pytest.mark.netns
@some
@given(rows=packet_rows())
def test_the_kernel_restores_the_packets_of_coalesced_frames(
    driver: Driver, wire: Wire, rows: list[bytes]
) -> None:
    rows = [frame for frame in rows if len(frame) <= 1514]
    _, frames = driver.queue(rows)
    at = 0
    for offload, frame in frames:
        packets = wire.cut(offload, frame)
        came = rows[at : at + len(packets)]
        assert packets == (came if offload.gso_type == 0 else [with_checksum(one) for one in came])
        at += len(packets)
    assert at == len(rows)
