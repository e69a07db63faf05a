# SPDX-License-Identifier: Apache-2.0
"""The packets of a switch: the kernel's ring, and what they were."""

import os
import socket
import time

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from inagg_contract.constants import INAGG_PORT, KIND_DATA, KIND_EXPONENT, KIND_QUERY, KIND_RESULT
from inagg_testbed.trace.packet_ring import Frame, PacketRing
from inagg_testbed.trace.passages import Passage, read_passages
from inagg_wire.layers import Inagg

_CUT = 64


def send(port: int, *texts: bytes) -> None:
    """Datagrams to this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
        for text in texts:
            source.sendto(text, ("127.0.0.1", port))


@pytest.mark.netns
def test_the_ring_has_the_protocols_datagrams_with_their_times_and_without_their_ends() -> None:
    ring = PacketRing(os.getpid(), keep=1 << 20, cut=_CUT)
    try:
        begin_s = time.monotonic()
        send(INAGG_PORT, *(bytes([number]) * 500 for number in range(5)))
        send(INAGG_PORT + 1, b"other")
        end_s = time.monotonic()
    finally:
        ring.close()
    loopback = socket.if_nametoindex("lo")
    sent = [frame for frame in ring.frames() if frame.leaves and frame.interface == loopback]
    assert [len(frame.data) for frame in sent] == [_CUT] * 5
    assert [frame.data[-1] for frame in sent] == list(range(5))
    times = [frame.time_s for frame in sent]
    assert times == sorted(times)
    # CLOCK_REALTIME may be set or slewed between the packet and its reading.
    assert begin_s - 0.01 < times[0] <= times[-1] < end_s + 0.01
    assert ring.dropped == 0


@pytest.mark.netns
def test_the_ring_forgets_the_oldest() -> None:
    ring = PacketRing(os.getpid(), keep=0, cut=_CUT)
    send(INAGG_PORT, b"x" * 500)
    ring.close()
    assert list(ring.frames()) == []


def frame(time_s: float, interface: int, leaves: bool, packet: Inagg, words: int = 0) -> Frame:
    """As the ring has it: cut, but with the whole length in its headers."""
    source, destination = (INAGG_PORT, 1234) if leaves else (1234, INAGG_PORT)
    addresses = IP(src="10.0.0.1", dst="10.0.0.254") / UDP(sport=source, dport=destination)
    whole = Ether() / addresses / packet / Raw(b"\0" * 4 * words)
    return Frame(time_s, interface, leaves, bytes(whole)[:_CUT])


def test_messages_are_counted_in_packets_of_the_shortest() -> None:
    # A message of three packets of 256 words is one frame: behind the first header come two more.
    more = 2 * (20 + 4 * 256) // 4
    frames = [
        frame(1.0, 5, False, Inagg(kind=KIND_EXPONENT, job=9, chunk=6)),
        frame(2.0, 5, False, Inagg(kind=KIND_DATA, job=9, chunk=7), words=256),
        frame(3.0, 6, False, Inagg(kind=KIND_DATA, job=9, chunk=7), words=256 + more),
        frame(4.0, 6, False, Inagg(kind=KIND_DATA | KIND_QUERY, job=9, chunk=7)),
        frame(5.0, 5, True, Inagg(kind=KIND_DATA | KIND_RESULT, job=9, chunk=7), words=256),
        frame(6.0, 8, False, Inagg(kind=KIND_DATA, job=9, chunk=7), words=256),  # no port of the switch
        Frame(7.0, 5, False, b"\0" * 60),
    ]
    assert list(read_passages("s1", {5: "h1", 6: "h2"}, frames)) == [
        Passage(1.0, "s1", "h1", False, False, 9, 6, 1),
        Passage(2.0, "s1", "h1", False, False, 9, 7, 1),
        Passage(3.0, "s1", "h2", False, False, 9, 7, 3),
        Passage(5.0, "s1", "h1", True, True, 9, 7, 1),
    ]
