# SPDX-License-Identifier: Apache-2.0
"""Addresses that hosts may use, and pings to the aggregator, in p4/inagg.p4 (docs/protocol.md, 5.4)."""

import struct

import pytest

from inagg_switch import Switch
from tests.switch.inagg.packets import (
    AGGREGATOR_IP,
    AGGREGATOR_MAC,
    BROADCAST,
    INAGG_PORT,
    RESULT,
    Inagg,
    Job,
    arp,
    ethernet,
    inet_checksum,
    ipv4,
    udp,
)

# Hosts 1 and 2 are bound to ports 1 and 2; ports 3 and 4 have no binding.
PORTS = (1, 2, 3, 4)
REQUEST, REPLY = 1, 2
ICMP = 1


def mac(host: int) -> int:
    return 0x020000000000 + host


def ip(host: int) -> int:
    return 0x0A000000 + host


@pytest.fixture
def program(fresh: Switch) -> Switch:
    fresh.multicast_group(1, [(port, 0) for port in PORTS])
    fresh.insert("arp_responder", {"ip": AGGREGATOR_IP}, "answer", {"mac": AGGREGATOR_MAC})
    fresh.insert("ping_responder", {"ip": AGGREGATOR_IP}, "answer_ping", {"mac": AGGREGATOR_MAC})
    fresh.insert("source_mac", {"mac": AGGREGATOR_MAC}, "mac_of_aggregator", {})
    fresh.insert("source_ip", {"ip": AGGREGATOR_IP}, "ip_of_aggregator", {})
    for host in (1, 2):
        fresh.insert("source_mac", {"mac": mac(host)}, "mac_of_port", {"port": host})
        fresh.insert("source_ip", {"ip": ip(host)}, "ip_of_host", {"port": host, "mac": mac(host)})
        fresh.insert("station", {"mac": mac(host)}, "to_port", {"port": host})
        fresh.insert("bound_port", {"port": host}, "refuse_stranger", {})
    return fresh


def packets(program: Switch, counter: str, port: int) -> int:
    return program.counter(counter)[port][0]


def datagram(src_mac: int, src_ip: int, dst_mac: int = mac(9), dst_ip: int = ip(9)) -> bytes:
    return ethernet(dst_mac, src_mac, 0x0800, ipv4(src_ip, dst_ip, udp(1, 2, b"hello")))


def claim(src_mac: int, sender_mac: int, sender_ip: int, operation: int = REPLY) -> bytes:
    return ethernet(BROADCAST, src_mac, 0x0806, arp(operation, sender_mac, sender_ip, BROADCAST, ip(9)))


# --- the aggregator's addresses


def result_from(src_mac: int, src_ip: int, fragment: int = 0x4000) -> bytes:
    """A result for host 2, as the switch sends it."""
    job = Job(workers=2)
    payload = udp(INAGG_PORT, job.udp_port(1), Inagg(kind=RESULT | 1, rank=1).encode())
    return ethernet(job.mac(1), src_mac, 0x0800, ipv4(src_ip, job.ip(1), payload, fragment=fragment))


FORGED = {
    "a result": result_from(AGGREGATOR_MAC, AGGREGATOR_IP),
    "a result from its address with the sender's own MAC": result_from(mac(3), AGGREGATOR_IP),
    "a result with its MAC and the sender's own address": result_from(AGGREGATOR_MAC, ip(3)),
    "a fragment": result_from(mac(3), AGGREGATOR_IP, fragment=0x2000),
    "a later fragment": result_from(mac(3), AGGREGATOR_IP, fragment=0x0003),
    "an ARP reply": claim(AGGREGATOR_MAC, AGGREGATOR_MAC, AGGREGATOR_IP),
    "an ARP reply with the sender's own MAC": claim(mac(3), mac(3), AGGREGATOR_IP),
    "an ARP request with the sender's own MAC": claim(mac(3), mac(3), AGGREGATOR_IP, REQUEST),
    "a frame of any type": ethernet(mac(2), AGGREGATOR_MAC, 0x88B5, b"hello"),
}


@pytest.mark.parametrize("port", [1, 3])
@pytest.mark.parametrize("what", FORGED)
def test_frames_with_the_aggregators_addresses_are_dropped_and_counted(
    program: Switch, what: str, port: int
) -> None:
    assert program.process(port, FORGED[what]) == []
    assert packets(program, "aggregator_forged", port) == 1
    # The switch has learned nothing: it floods a frame to the aggregator's MAC address.
    hello = ethernet(AGGREGATOR_MAC, mac(5), 0x88B5, b"hello")
    assert len(program.process(4, hello)) == len(PORTS) - 1


@pytest.mark.parametrize("tag", [0x8100, 0x88A8])
def test_a_vlan_tag_hides_nothing(program: Switch, tag: int) -> None:
    """Hosts accept a frame with a tag of VLAN 0 like one without."""
    whole = FORGED["a result"]
    tagged = whole[:12] + struct.pack("!HH", tag, 0) + whole[12:]
    assert program.process(3, tagged) == []
    assert packets(program, "vlan_tagged", 3) == 1


def test_an_aggregators_arp_answer_with_another_sender_mac_is_dropped(program: Switch) -> None:
    assert program.process(3, claim(mac(3), AGGREGATOR_MAC, ip(3))) == []
    assert packets(program, "source_refused", 3) == 1


# --- hosts that are bound to a port


@pytest.mark.parametrize("host", [1, 2])
def test_frames_of_a_bound_host_pass_at_its_port(program: Switch, host: int) -> None:
    for frame in (
        datagram(mac(host), ip(host)),
        claim(mac(host), mac(host), ip(host)),
        claim(
            mac(host), mac(host), 0, REQUEST
        ),  # an ARP probe: the host asks whether its address is free (RFC 5227)
        datagram(mac(host), 0),  # DHCP: the host asks for an address (RFC 2131)
        ethernet(mac(9), mac(host), 0x86DD, bytes(40)),
    ):
        assert [port for port, _ in program.process(host, frame)] == [p for p in PORTS if p != host]
    assert packets(program, "source_refused", host) == 0


SPOOFED = {
    "another host's addresses": datagram(mac(2), ip(2)),
    "another host's MAC address": datagram(mac(2), ip(1)),
    "another host's IPv4 address": datagram(mac(1), ip(2)),
    "an address that nobody has": datagram(mac(1), ip(77)),
    "a MAC address that nobody has": datagram(mac(77), ip(1)),
    "addresses that nobody has": datagram(mac(77), ip(77)),
    "ARP for another host": claim(mac(1), mac(1), ip(2)),
    "ARP with another host's MAC": claim(mac(1), mac(2), ip(1)),
    "ARP as another host": claim(mac(2), mac(2), ip(2)),
    "ARP with a MAC that nobody has": claim(mac(1), mac(77), 0, REQUEST),
    "a frame of another host": ethernet(mac(9), mac(2), 0x88B5, b""),
    "a frame of nobody": ethernet(mac(9), mac(77), 0x88B5, b""),
    "a group source": ethernet(mac(9), 0x030000000001, 0x88B5, b""),
}


@pytest.mark.parametrize("what", SPOOFED)
def test_a_bound_port_passes_only_frames_with_its_addresses(program: Switch, what: str) -> None:
    assert program.process(1, SPOOFED[what]) == []
    assert packets(program, "source_refused", 1) == 1


@pytest.mark.parametrize(
    "what", ["another host's addresses", "another host's MAC address", "another host's IPv4 address",
             "ARP for another host", "ARP as another host", "a frame of another host"]
)  # fmt: skip
def test_a_port_without_binding_may_not_use_addresses_of_others(program: Switch, what: str) -> None:
    assert program.process(3, SPOOFED[what]) == []
    assert packets(program, "source_refused", 3) == 1


def test_hosts_at_ports_without_binding_are_learned(program: Switch) -> None:
    there = datagram(mac(7), ip(7), mac(1), ip(1))
    assert program.process(3, there) == [(1, there)]
    back = datagram(mac(1), ip(1), mac(7), ip(7))
    assert program.process(1, back) == [(3, back)]
    # The host moves, and takes another address.
    assert len(program.process(4, claim(mac(7), mac(7), ip(8)))) == 3
    assert program.process(1, back) == [(4, back)]


def test_a_bound_host_stays_reachable_when_others_share_its_bucket(program: Switch) -> None:
    """Learned hosts whose MAC addresses share a bucket replace one another, never the bound host."""
    to_it = datagram(mac(9), ip(9), mac(1), ip(1))
    for difference in (0x0001_0001_0000, 0x0200_0200_0000):
        program.process(4, ethernet(BROADCAST, mac(1) ^ difference, 0x88B5, b""))
        assert program.process(3, to_it) == [(1, to_it)]


def test_a_spoofed_frame_changes_no_learned_address(program: Switch) -> None:
    back = datagram(mac(1), ip(1), mac(7), ip(7))
    program.process(3, datagram(mac(7), ip(7)))
    program.process(4, datagram(mac(7), ip(2)))  # claims host 2's address with host 7's MAC
    assert program.process(1, back) == [(3, back)]


# --- ping


def ping(
    host: int, payload: bytes, *, kind: int = 8, code: int = 0, number: int = 1, checksum: int = 0
) -> bytes:
    message = struct.pack("!BBHHH", kind, code, 0, number, 0) + payload
    right = inet_checksum(message) ^ checksum
    message = message[:2] + right.to_bytes(2, "big") + message[4:]
    return ethernet(AGGREGATOR_MAC, mac(host), 0x0800, ipv4(ip(host), AGGREGATOR_IP, message, protocol=ICMP))


def checked_reply(frame: bytes, host: int) -> bytes:
    """The ICMP message of an answer to `host`. Checks addresses, TTL and both checksums."""
    assert frame[:14] == ethernet(mac(host), AGGREGATOR_MAC, 0x0800, b"")
    header, message = frame[14:34], frame[34:]
    assert inet_checksum(header) == 0
    assert struct.unpack("!II", header[12:]) == (AGGREGATOR_IP, ip(host))
    assert (header[8], header[9]) == (64, ICMP)
    assert inet_checksum(message) == 0
    assert message[:2] == b"\0\0"
    return message


@pytest.mark.parametrize("host", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 17, 56, 1471, 1472, 8972])
def test_the_aggregator_answers_pings_of_any_size(program: Switch, host: int, size: int) -> None:
    payload = bytes(value * 7 % 256 for value in range(size))
    ((port, frame),) = program.process(host, ping(host, payload, number=0x1234))
    assert port == host
    message = checked_reply(frame, host)
    assert (message[4:8], message[8:]) == (b"\x12\x34\0\0", payload)


@pytest.mark.parametrize("number", [0, 1, 0xF7FE, 0xF7FF, 0xF800, 0xFFFF])
def test_the_checksum_of_an_answer_is_correct_where_the_sum_wraps(program: Switch, number: int) -> None:
    ((_, frame),) = program.process(1, ping(1, b"", number=number))
    checked_reply(frame, 1)


def test_a_damaged_ping_has_a_damaged_answer(program: Switch) -> None:
    ((_, frame),) = program.process(1, ping(1, b"payload", checksum=0x0100))
    assert inet_checksum(frame[34:]) != 0


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(ping(1, b"", kind=0), id="an answer"),
        pytest.param(ping(1, b"", kind=13), id="a timestamp request"),
        pytest.param(ping(1, b"", code=1), id="a code"),
        pytest.param(
            ethernet(mac(9), mac(1), 0x0800, ipv4(ip(1), ip(9), struct.pack("!BBHHH", 8, 0, 0xF7FE, 1, 0),
                                                  protocol=ICMP)), id="another host's",
        ),
        pytest.param(
            ethernet(mac(9), mac(1), 0x0800, ipv4(ip(1), AGGREGATOR_IP, bytes(8), protocol=ICMP, fragment=0x2000)),
            id="a fragment",
        ),
        pytest.param(
            ethernet(mac(9), mac(1), 0x0800, ipv4(ip(1), AGGREGATOR_IP, b"\x08\0\xf7", protocol=ICMP)),
            id="cut short",
        ),
        pytest.param(
            ethernet(mac(9), mac(1), 0x0800, ipv4(ip(1), AGGREGATOR_IP, b"\x08\0\xf7\xff" + bytes(4),
                                                  protocol=ICMP, checksum=1)), id="a wrong IPv4 checksum",
        ),
    ],
)  # fmt: skip
def test_other_messages_are_ordinary_traffic(program: Switch, frame: bytes) -> None:
    assert program.process(1, frame) == [(2, frame), (3, frame), (4, frame)]


def test_a_ping_from_a_spoofed_address_is_not_answered(program: Switch) -> None:
    frame = ping(2, b"hello")
    assert program.process(1, frame) == []
    assert program.process(3, frame) == []
    assert (packets(program, "source_refused", 1), packets(program, "source_refused", 3)) == (1, 1)
