# SPDX-License-Identifier: Apache-2.0
"""Admission, ordinary traffic and loss injection of p4/inagg.p4 (docs/protocol.md, 5.1, 5.4 and 8)."""

import math

import pytest

from inagg_switch import Switch
from tests import INAGG_P4
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
    ipv4,
    udp,
)

WORDS = [1, 2, 3, 4]


@pytest.fixture
def program(fresh: Switch) -> Switch:
    fresh.multicast_group(1, [(port, 0) for port in (1, 2, 3, 4)])
    Job(workers=2).install(fresh)
    return fresh


def packets(program: Switch, counter: str, port: int = 1) -> int:
    return program.counter(counter)[port][0]


# --- 5.1: malformed packets


def datagram(
    payload: bytes, *, udp_length: int | None = None, total: int | None = None, checksum: int | None = None
) -> bytes:
    """A datagram of worker 0. The keyword arguments replace the correct UDP length, IPv4 length, IPv4 checksum."""
    job = Job(workers=2)
    inner = udp(5000, INAGG_PORT, payload, length=udp_length)
    packet = ipv4(job.ip(0), AGGREGATOR_IP, inner, total=total, checksum=checksum)
    return ethernet(AGGREGATOR_MAC, job.mac(0), 0x0800, packet)


def good(**fields: int) -> bytes:
    return Inagg(**fields).encode() + b"".join(w.to_bytes(256, "big") for w in WORDS)


MALFORMED = {
    "no inagg header at all": datagram(b""),
    "inagg header cut short": datagram(Inagg().encode()[:-1]),
    "no words": datagram(Inagg().encode()),
    "a word cut short": datagram(good()[:-1]),
    "a word too few": datagram(good()[:-256]),
    "a word too many": datagram(good() + bytes(256)),
    "unknown version": datagram(good(version=5)),
    "version 3": datagram(good(version=3)),
    "version 2": datagram(good(version=2)),
    "version 1": datagram(good(version=1)),
    "version 0": datagram(good(version=0)),
    "kind 0": datagram(good(kind=0)),
    "unknown kind": datagram(good(kind=3)),
    "a result with a length that is not its own": datagram(good(kind=RESULT | 1)),
    "flags that were damaged": datagram(good(flags=1, flags_check=0)),
    "flags that were damaged in the copy": datagram(good(flags_check=32)),
    "an exponent that was damaged": datagram(good(exponent=256, exponent_check=255 + 341)),
    "an exponent that was damaged in the copy": datagram(good(exponent_check=340)),
    "an exponent whose check field has no room": datagram(
        good(exponent=700, flags_check=1, exponent_check=700 + 341 - 1024)
    ),
    "an exponent with words": datagram(good(kind=1)),
    "bytes behind the datagram": datagram(good()) + bytes(1),
    "bytes behind an exponent": datagram(Inagg(kind=1).encode()) + bytes(4),
    "frame cut short": datagram(good())[:-1],
    "UDP length too short": datagram(good(), udp_length=8 + 20 + 1023),
    "UDP length too long": datagram(good(), udp_length=8 + 20 + 1025),
    "UDP length of a header less": datagram(good(), udp_length=8 + 20),
    "IPv4 length too short": datagram(good(), total=20 + 8 + 20 + 1023),
    "IPv4 length too long": datagram(good(), total=20 + 8 + 20 + 1025),
    "IPv4 checksum wrong": datagram(good(), checksum=0x1234),
    "IPv4 checksum zero": datagram(good(), checksum=0),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_packets_are_dropped_and_counted(program: Switch, kind: str) -> None:
    assert program.process(1, MALFORMED[kind]) == []
    assert packets(program, "malformed") == 1
    assert packets(program, "started") == 0


def test_a_frame_cut_anywhere_never_reaches_a_slot(program: Switch) -> None:
    frame = Job(workers=2).data(0, 0, WORDS)
    ours = 0
    for length in range(len(frame)):
        program.process(1, frame[:length])
        # Cut before the end of the UDP header, it is ordinary traffic; after it, it is counted as malformed.
        ours += length >= 14 + 20 + 8
        assert packets(program, "malformed") == ours
    assert packets(program, "started") == 0


@pytest.mark.parametrize(("port", "fields"), [
    (2, {}), (1, {"job": 4}), (1, {"rank": 1}), (1, {"rank": 2}), (1, {"job": 0}),
])  # fmt: skip
def test_strangers_are_not_admitted(program: Switch, port: int, fields: dict[str, int]) -> None:
    frame = datagram(good(**fields))
    assert program.process(port, frame) == []
    assert packets(program, "not_admitted", port) == 1


def test_a_foreign_source_address_is_not_admitted(program: Switch) -> None:
    frame = ethernet(AGGREGATOR_MAC, 2, 0x0800, ipv4(0x0A000063, AGGREGATOR_IP, udp(1, INAGG_PORT, good())))
    assert program.process(1, frame) == []
    assert packets(program, "not_admitted") == 1


def test_a_wrong_epoch_is_dropped_and_counted(program: Switch) -> None:
    assert program.process(1, datagram(good(epoch=6))) == []
    assert packets(program, "wrong_epoch") == 1
    assert program.direct_counter("admission", Job(workers=2).key(0))[0] == 1


@pytest.mark.parametrize("how", ["fragment", "later fragment", "options", "tcp", "other port"])
def test_a_packet_that_only_resembles_a_contribution_is_ordinary_traffic(program: Switch, how: str) -> None:
    job = Job(workers=2)
    inner = udp(5000, INAGG_PORT if how != "other port" else INAGG_PORT + 1, good())
    packet = {
        "fragment": ipv4(job.ip(0), AGGREGATOR_IP, inner, fragment=0x2000),
        "later fragment": ipv4(job.ip(0), AGGREGATOR_IP, inner, fragment=0x0001),
        "options": ipv4(job.ip(0), AGGREGATOR_IP, inner, options=bytes(4)),
        "tcp": ipv4(job.ip(0), AGGREGATOR_IP, inner, protocol=6),
        "other port": ipv4(job.ip(0), AGGREGATOR_IP, inner),
    }[how]
    frame = ethernet(0x02AA, job.mac(0), 0x0800, packet)
    assert program.process(1, frame) == [(2, frame), (3, frame), (4, frame)]


# --- 5.4: ordinary traffic


def test_an_arp_request_for_the_aggregator_is_answered(program: Switch) -> None:
    program.insert("arp_responder", {"ip": AGGREGATOR_IP}, "answer", {"mac": AGGREGATOR_MAC})
    request = ethernet(
        BROADCAST, 0x020000000001, 0x0806, arp(1, 0x020000000001, 0x0A000001, 0, AGGREGATOR_IP)
    )
    reply = ethernet(0x020000000001, AGGREGATOR_MAC, 0x0806,
                     arp(2, AGGREGATOR_MAC, AGGREGATOR_IP, 0x020000000001, 0x0A000001))  # fmt: skip
    assert program.process(3, request + bytes(18)) == [(3, reply + bytes(18))]


@pytest.mark.parametrize("operation", [0, 2, 3])
def test_arp_that_does_not_ask_for_the_aggregator_is_flooded(program: Switch, operation: int) -> None:
    program.insert("arp_responder", {"ip": AGGREGATOR_IP}, "answer", {"mac": AGGREGATOR_MAC})
    frame = ethernet(BROADCAST, 2, 0x0806, arp(operation, 2, 0x0A000001, 0, AGGREGATOR_IP))
    assert [port for port, _ in program.process(3, frame)] == [1, 2, 4]
    elsewhere = ethernet(BROADCAST, 2, 0x0806, arp(1, 2, 0x0A000001, 0, 0x0A000009))
    assert [port for port, _ in program.process(3, elsewhere)] == [1, 2, 4]


def test_stations_are_learned(program: Switch) -> None:
    there = ethernet(0x020000000002, 0x020000000001, 0x88B5, b"ping")
    back = ethernet(0x020000000001, 0x020000000002, 0x88B5, b"pong")
    assert program.process(1, there) == [(2, there), (3, there), (4, there)]
    assert program.process(3, back) == [(1, back)]
    assert program.process(1, there) == [(3, there)]


def test_a_station_that_moves_is_learned_again(program: Switch) -> None:
    hello = ethernet(BROADCAST, 0x020000000001, 0x88B5, b"")
    to_it = ethernet(0x020000000001, 0x020000000002, 0x88B5, b"")
    program.process(1, hello)
    program.process(2, hello)
    assert program.process(3, to_it) == [(2, to_it)]


def test_group_sources_are_not_learned_and_group_destinations_are_flooded(program: Switch) -> None:
    group = 0x030000000001
    program.process(1, ethernet(2, group, 0x88B5, b""))
    frame = ethernet(group, 2, 0x88B5, b"")
    assert [port for port, _ in program.process(2, frame)] == [1, 3, 4]


def test_frames_for_stations_that_share_a_bucket_are_flooded_and_not_misdelivered(program: Switch) -> None:
    one, other = 0x020000000010, 0x020000100000  # equal after folding to 12 bits
    program.process(1, ethernet(BROADCAST, one, 0x88B5, b""))
    to_other = ethernet(other, 2, 0x88B5, b"")
    assert [port for port, _ in program.process(2, to_other)] == [1, 3, 4]
    program.process(3, ethernet(BROADCAST, other, 0x88B5, b""))
    assert [port for port, _ in program.process(2, to_other)] == [3]
    to_one = ethernet(one, 2, 0x88B5, b"")
    assert [port for port, _ in program.process(2, to_one)] == [1, 3, 4]


def test_a_frame_for_a_station_at_its_own_port_is_dropped_and_counted(program: Switch) -> None:
    frame = ethernet(1, 2, 0x88B5, b"")
    program.process(2, ethernet(BROADCAST, 1, 0x88B5, b""))
    assert packets(program, "own_port", 2) == 0
    assert program.process(2, frame) == []
    assert packets(program, "own_port", 2) == 1
    assert [port for port, _ in program.process(1, frame)] == [2]


@pytest.mark.parametrize("length", [0, 1, 13])
def test_a_frame_without_an_ethernet_header_is_dropped_and_counted(program: Switch, length: int) -> None:
    assert program.process(2, bytes(length)) == []
    assert packets(program, "not_ethernet", 2) == 1


@pytest.mark.parametrize("length", [14, 15, 60, 1514, 9014, 65535])
def test_ordinary_frames_pass_unchanged(program: Switch, length: int) -> None:
    frame = (ethernet(0x0255, 2, 0x88B5, b"") + bytes(range(256)) * 256)[:length]
    assert program.process(1, frame) == [(2, frame), (3, frame), (4, frame)]


def test_ordinary_ipv4_keeps_its_wrong_checksum(program: Switch) -> None:
    frame = ethernet(0x0255, 2, 0x0800, ipv4(1, 2, b"x" * 30, protocol=1, checksum=0xBEEF))
    assert program.process(1, frame) == [(2, frame), (3, frame), (4, frame)]


# --- 8: loss injection


@pytest.mark.parametrize("probability", [0.01, 0.05, 0.2])
def test_ingress_loss_has_the_configured_frequency(program: Switch, probability: float) -> None:
    program.insert("ingress_loss", {"port": 1, "aggregation": 0}, "inject_ingress_loss",
                   {"threshold": int(probability * 2**32)})  # fmt: skip
    frame = ethernet(0x0255, 2, 0x88B5, b"")
    total = 20000
    dropped = total - sum(bool(program.process(1, frame)) for _ in range(total))
    # Six standard deviations of a binomial.
    assert abs(dropped - total * probability) < 6 * math.sqrt(total * probability * (1 - probability))
    assert packets(program, "ingress_loss_injected") == dropped
    assert len(program.process(2, frame)) == 3  # the other ports lose nothing


def test_loss_is_set_per_class_of_traffic(program: Switch) -> None:
    program.insert(
        "ingress_loss", {"port": 1, "aggregation": 1}, "inject_ingress_loss", {"threshold": 2**32 - 1}
    )
    assert program.process(1, Job(workers=2).data(0, 0, WORDS)) == []
    assert packets(program, "ingress_loss_injected") == 1
    assert packets(program, "started") == 0
    assert len(program.process(1, ethernet(0x0255, 2, 0x88B5, b""))) == 3


def test_copies_of_a_multicast_are_lost_independently(program: Switch) -> None:
    for port in (1, 2):
        program.insert(
            "egress_loss", {"port": port, "aggregation": 1}, "inject_egress_loss", {"threshold": 2**31}
        )
    job = Job(workers=2)
    seen = {(False, False): 0, (False, True): 0, (True, False): 0, (True, True): 0}
    total = 4000
    for chunk in range(total):
        program.process(1, job.data(0, chunk, WORDS))
        ports = [port for port, _ in program.process(2, job.data(1, chunk, WORDS))]
        seen[1 in ports, 2 in ports] += 1
    for count in seen.values():
        assert abs(count - total / 4) < 6 * math.sqrt(total * 3 / 16)
    assert packets(program, "egress_loss_injected", 1) == seen[False, False] + seen[False, True]


def test_equal_seeds_lose_the_same_packets() -> None:
    frame = ethernet(0x0255, 2, 0x88B5, b"")

    def pattern(seed: int) -> list[bool]:
        with Switch.from_p4(INAGG_P4, seed=seed) as program:
            program.multicast_group(1, [(1, 0), (2, 0)])
            program.insert("ingress_loss", {"port": 1, "aggregation": 0}, "inject_ingress_loss",
                           {"threshold": 2**31})  # fmt: skip
            return [bool(program.process(1, frame)) for _ in range(64)]

    assert pattern(5) == pattern(5)
    assert pattern(5) != pattern(6)
