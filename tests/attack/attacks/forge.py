# SPDX-License-Identifier: Apache-2.0
"""Forged frames: a third host sends with the addresses of the aggregator, of the ranks and of the controller."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inagg_contract.documents import DEFAULT_PORT
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import CONTROL_ADDRESS, CONTROL_MAC, host_address, host_mac
from tests.attack.facts import (
    AGGREGATOR_IP,
    AGGREGATOR_MAC,
    DATA,
    DATA_RESULT,
    EXPONENT,
    EXPONENT_RESULT,
    INAGG_PORT,
    JobFacts,
    payload,
    spy,
)
from tests.attack.frames import packet_socket, send_all
from tests.attack.outcome import Outcome
from tests.attack.ranks import Ranks
from tests.attack.siege import STRANGER, attack_sums

if TYPE_CHECKING:
    from scapy.packet import Packet

OWN, OWN_IP = host_mac(STRANGER), host_address(STRANGER)
RANK, RANK_IP = host_mac(1), host_address(1)
OTHER, OTHER_IP = host_mac(2), host_address(2)
EVERYBODY = "ff:ff:ff:ff:ff:ff"


def datagram(
    data: bytes,
    *,
    src: str = OWN,
    ip: str = OWN_IP,
    dst: str = RANK,
    to: str = RANK_IP,
    sport: int,
    dport: int,
) -> "Packet":
    """A UDP datagram from MAC `src` and address `ip` to MAC `dst` and address `to`."""
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    return Ether(src=src, dst=dst) / IP(src=ip, dst=to) / UDP(sport=sport, dport=dport) / data


def results(job: JobFacts) -> "dict[str, Packet]":
    """Results that the switch did not make."""
    to_rank = partial(datagram, sport=INAGG_PORT, dport=job.udp_port)
    found: dict[str, Packet] = {}
    for kind, name in ((EXPONENT_RESULT, "exponent"), (DATA_RESULT, "data")):
        data = payload(kind, job)
        found |= {
            f"{name} result, aggregator's MAC and IP": to_rank(data, src=AGGREGATOR_MAC, ip=AGGREGATOR_IP),
            f"{name} result, aggregator's IP": to_rank(data, ip=AGGREGATOR_IP),
            f"{name} result, aggregator's MAC": to_rank(data, src=AGGREGATOR_MAC),
            f"{name} result, own addresses": to_rank(data),
            f"{name} result, a rank's addresses": to_rank(data, src=OTHER, ip=OTHER_IP),
        }
    return found


def contributions(job: JobFacts) -> "dict[str, Packet]":
    """Contributions in the name of a rank, and contributions that no rank makes."""
    to_switch = partial(datagram, dst=AGGREGATOR_MAC, to=AGGREGATOR_IP, sport=job.udp_port, dport=INAGG_PORT)
    as_rank = partial(to_switch, src=RANK, ip=RANK_IP)
    return {
        "exponents as a rank": as_rank(payload(EXPONENT, job)),
        "data as a rank": as_rank(payload(DATA, job)),
        "data as a rank, far ahead": as_rank(payload(DATA, replace(job, chunk=job.chunk + (1 << 30)))),
        "data from own addresses": to_switch(payload(DATA, job)),
        "data from a rank's IP": to_switch(payload(DATA, job), ip=RANK_IP),
        "data of rank 63": to_switch(payload(DATA, job, rank=63)),
        "data of rank 255": to_switch(payload(DATA, job, rank=255)),
        "data of another epoch": as_rank(payload(DATA, replace(job, epoch=job.epoch - 1))),
        "data of job 0": as_rank(payload(DATA, replace(job, job=0))),
        "data of job 65535": as_rank(payload(DATA, replace(job, job=65535))),
        "a result to the switch": as_rank(payload(DATA_RESULT, job)),
        "an unknown kind": to_switch(payload(0x2F, job)),
        "another version": to_switch(payload(0x12, job)),
        "an invalid exponent": to_switch(payload(EXPONENT, job, exponent=600)),
        "a header cut short": to_switch(payload(DATA, job)[:11]),
        "no payload": to_switch(b""),
    }


def addresses() -> "dict[str, Packet]":
    """ARP packets that claim the address of another host."""
    from scapy.layers.l2 import ARP, Ether

    found: dict[str, Packet] = {}
    for name, ip, mac in (
        ("aggregator", AGGREGATOR_IP, AGGREGATOR_MAC),
        ("rank", RANK_IP, RANK),
        ("controller", CONTROL_ADDRESS, CONTROL_MAC),
    ):
        claim = ARP(op=2, hwsrc=OWN, psrc=ip, hwdst=OTHER, pdst=OTHER_IP)
        found |= {
            f"ARP reply: I am the {name}": Ether(src=OWN, dst=OTHER) / claim,
            f"gratuitous ARP: I am the {name}": Ether(src=OWN, dst=EVERYBODY)
            / ARP(op=1, hwsrc=OWN, psrc=ip, pdst=ip),
            f"ARP from the {name}'s MAC": Ether(src=mac, dst=OTHER)
            / ARP(op=2, hwsrc=mac, psrc=ip, hwdst=OTHER, pdst=OTHER_IP),
        }
    return found


def errors(job: JobFacts) -> "dict[str, Packet]":
    """ICMP errors about a rank's datagrams, and a TCP reset of its connection to the controller."""
    from scapy.layers.inet import ICMP, IP, TCP, UDP
    from scapy.layers.l2 import Ether

    about = IP(src=RANK_IP, dst=AGGREGATOR_IP) / UDP(sport=job.udp_port, dport=INAGG_PORT) / bytes(8)
    found: dict[str, Packet] = {}
    for name, ip in (("own address", OWN_IP), ("aggregator's address", AGGREGATOR_IP)):
        head = Ether(src=OWN, dst=RANK) / IP(src=ip, dst=RANK_IP)
        found |= {
            f"ICMP port unreachable, {name}": head / ICMP(type=3, code=3) / about,
            f"ICMP host unreachable, {name}": head / ICMP(type=3, code=1) / about,
            f"ICMP fragmentation needed, {name}": head / ICMP(type=3, code=4, nexthopmtu=68) / about,
            f"ICMP time exceeded, {name}": head / ICMP(type=11) / about,
            f"ICMP redirect, {name}": head / ICMP(type=5, code=1, gw=OWN_IP) / about,
        }
    reset = TCP(sport=DEFAULT_PORT, dport=40000, flags="RA", seq=1)
    found["TCP reset as the controller"] = (
        Ether(src=OWN, dst=RANK) / IP(src=CONTROL_ADDRESS, dst=RANK_IP) / reset
    )
    return found


def shapes(job: JobFacts) -> "dict[str, Packet | bytes]":
    """Fragments, VLANs, IPv6, wrong lengths and checksums, runts and giants."""
    from scapy.layers.inet import IP, UDP, IPOption, fragment
    from scapy.layers.inet6 import ICMPv6ND_NA, IPv6
    from scapy.layers.l2 import Dot1AD, Dot1Q, Ether

    head = Ether(src=OWN, dst=AGGREGATOR_MAC)
    ip = IP(src=OWN_IP, dst=AGGREGATOR_IP)
    forged = IP(src=AGGREGATOR_IP, dst=RANK_IP) / UDP(sport=INAGG_PORT, dport=job.udp_port)
    result = payload(DATA_RESULT, job)
    udp = UDP(sport=job.udp_port, dport=INAGG_PORT) / payload(DATA, job)
    whole = bytes(head / ip / udp)
    pieces: list[Packet] = fragment(forged / result, fragsize=256)  # type: ignore[no-untyped-call]
    fragmented: list[Packet] = fragment(ip / udp, fragsize=256)  # type: ignore[no-untyped-call]
    return {
        "first fragment of a result": Ether(src=OWN, dst=RANK) / pieces[0],
        "last fragment of a result": Ether(src=OWN, dst=RANK) / pieces[-1],
        "fragmented contribution": head / fragmented[1],
        "IP options": head / IP(src=OWN_IP, dst=AGGREGATOR_IP, options=[IPOption(b"\x01\x01\x01\x00")]) / udp,
        "wrong IP header checksum": head / IP(src=OWN_IP, dst=AGGREGATOR_IP, chksum=1) / udp,
        "UDP length too short": head / ip / UDP(sport=4000, dport=INAGG_PORT, len=9) / bytes(20),
        "UDP length too long": head / ip / UDP(sport=4000, dport=INAGG_PORT, len=60000) / bytes(20),
        "IP length too long": head / IP(src=OWN_IP, dst=AGGREGATOR_IP, len=1500) / UDP(dport=INAGG_PORT),
        "IP header length 0": head / IP(src=OWN_IP, dst=AGGREGATOR_IP, ihl=0) / udp,
        "VLAN 0 around a result": Ether(src=OWN, dst=RANK) / Dot1Q(vlan=0) / forged / result,
        "VLAN 7 twice around a result": Ether(src=OWN, dst=RANK)
        / Dot1AD(vlan=7)
        / Dot1Q(vlan=7)
        / forged
        / result,
        "IPv6 datagram": Ether(src=OWN, dst=RANK)
        / IPv6(src="fe80::3", dst="fe80::1")
        / UDP(sport=INAGG_PORT, dport=job.udp_port)
        / result,
        "IPv6 neighbour": Ether(src=OWN, dst=EVERYBODY)
        / IPv6(src="fe80::1", dst="ff02::1")
        / ICMPv6ND_NA(tgt="fe80::1"),
        "unknown EtherType": Ether(src=OWN, dst=AGGREGATOR_MAC, type=0x88B5) / os.urandom(60),
        "EtherType as length": Ether(src=OWN, dst=AGGREGATOR_MAC, type=60) / os.urandom(60),
        "source is a group address": Ether(src="01:00:5e:00:00:01", dst=RANK) / forged / result,
        "source is zero": Ether(src="00:00:00:00:00:00", dst=RANK) / forged / result,
        "runt of 14 bytes": whole[:14],
        "runt of 20 bytes": whole[:20],
        "runt that ends in the IP header": whole[:33],
        "runt that ends in the UDP header": whole[:38],
        "giant": whole + bytes(7000),
        "giant result": bytes(Ether(src=OWN, dst=RANK) / forged / result) + bytes(7000),
    }


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Sends all kinds of frames in turn, many times, so that each kind meets many chunks of the job."""

    def forge(testbed: Testbed, ranks: Ranks) -> str:
        kinds = taken = 0
        interface = testbed.network.gloo_interface(STRANGER)
        testbed.network.host(STRANGER).cmd(f"ip link set dev {interface} mtu 9000")
        with packet_socket(testbed, STRANGER) as link:
            for _ in range(100 if full else 5):
                job = spy(testbed)
                forged: dict[str, Packet | bytes] = {
                    **results(job),
                    **contributions(job),
                    **addresses(),
                    **errors(job),
                    **shapes(job),
                }
                kinds = len(forged)
                frames = [bytes(frame) for frame in forged.values()]
                taken += send_all(link, frames * 10)
                ranks.go_on(1)
        return f"{taken:,} frames of {kinds} kinds"

    yield attack_sums(Outcome("forge"), folder, forge)
