# SPDX-License-Identifier: Apache-2.0
"""scapy's layers for what stands behind the header, and for beacons. tests/conformance has the header's vectors."""

import subprocess
import sys

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from inagg_contract.constants import ETHERTYPE_BEACON, INAGG_PORT, WORD_BYTES
from inagg_simulator import reference
from inagg_wire.layers import KINDS, Beacon, Inagg, Members
from inagg_wire.packets import parse
from tests.wire.capturing import contribution, query, result

BITS = (5).to_bytes(8, "big"), (0x8000000000000001).to_bytes(8, "big")


def test_a_sum_that_goes_on_has_the_ranks_bits_before_its_words() -> None:
    whole = contribution(1, 7)
    datagram = whole[:20] + BITS[0] + whole[20:]
    packet = Inagg(datagram)
    assert packet[Members].members == 5
    assert packet[Members].waits_with is None
    assert packet[Raw].load == whole[20:]
    assert bytes(packet) == datagram
    assert parse(datagram, len(datagram)).members == 5


def test_a_query_that_goes_on_says_whom_it_waits_with() -> None:
    datagram = query(1, 7, 99) + BITS[0] + BITS[1]
    packet = Inagg(datagram)
    assert (packet[Members].members, packet[Members].waits_with) == (5, 0x8000000000000001)
    assert bytes(packet) == datagram
    found = parse(datagram, len(datagram))
    assert (found.members, found.waits_with) == (5, 0x8000000000000001)


def test_a_result_has_no_bits() -> None:
    assert Members not in Inagg(result(7) + bytes(8))


def test_kinds_are_those_of_the_page() -> None:
    assert {name: kind for kind, name in KINDS.items()} == {
        "EXPONENT": 0x1,
        "DATA": 0x2,
        "EXPONENT query": 0x5,
        "DATA query": 0x6,
        "EXPONENT result": 0x9,
        "DATA result": 0xA,
        "EXPONENT answer": 0xD,
        "DATA answer": 0xE,
    }


def test_the_import_binds_the_port_and_the_beacons() -> None:
    datagram = IP() / UDP(sport=40000, dport=INAGG_PORT) / Inagg(kind=2, chunk=5) / bytes(WORD_BYTES)
    assert IP(bytes(datagram))[Inagg].chunk == 5
    # 7.3: out_port 101, in_port 0, 16 secret bytes, switch 2; padded to the shortest frame
    body = bytes.fromhex("0065 0000") + bytes(range(16)) + bytes.fromhex("0002")
    frame = Ether(bytes(12) + ETHERTYPE_BEACON.to_bytes(2, "big") + body + bytes(24))
    beacon = frame[Beacon]
    assert (beacon.out_port, beacon.in_port, beacon.secret, beacon.switch) == (101, 0, bytes(range(16)), 2)


@pytest.mark.parametrize("name", ["special", "not_ready", "wide", "congested", "again"])
def test_flags_have_the_names_of_the_page(name: str) -> None:
    flag = getattr(reference, name.upper())
    assert str(Inagg(flags=flag).flags) == name.replace("_", " ")


def test_without_scapy_the_import_says_what_to_install() -> None:
    script = "import sys; sys.modules['scapy'] = None; import inagg_wire.layers"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: inagg_wire.layers needs scapy: pip install")
    assert "[wire]" in last
