# SPDX-License-Identifier: Apache-2.0
"""Frames from another host as fast as its link carries them, while ranks sum."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import host_address, host_mac
from tests.attack.facts import AGGREGATOR_IP, AGGREGATOR_MAC, INAGG_PORT
from tests.attack.frames import BATCH, Batch, packet_socket
from tests.attack.outcome import Outcome
from tests.attack.ranks import Ranks
from tests.attack.siege import STRANGER, attack_sums

# At this rate a flood leaves processor time for the switch's other work; a link without a rate does not.
LINK = "100mbit"


def floods() -> dict[str, list[bytes]]:
    """A batch of frames for each flood, by the flood's name."""
    from scapy.layers.inet import ICMP, IP, UDP
    from scapy.layers.l2 import ARP, Ether

    own, address = host_mac(STRANGER), host_address(STRANGER)
    to_switch = Ether(src=own, dst=AGGREGATOR_MAC) / IP(src=address, dst=AGGREGATOR_IP)
    to_rank = Ether(src=own, dst=host_mac(1)) / IP(src=address, dst=host_address(1))
    nowhere = Ether(src=own, dst="02:00:00:00:99:99") / IP(src=address, dst="10.0.0.99")
    everybody = Ether(src=own, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=own, psrc=address, pdst="10.0.0.99")
    contribution = UDP(sport=4000, dport=INAGG_PORT)
    return {
        "short contributions": [bytes(to_switch / contribution / os.urandom(20)) for _ in range(BATCH)],
        "long contributions": [bytes(to_switch / contribution / os.urandom(1044)) for _ in range(BATCH)],
        "pings to the switch": [bytes(to_switch / ICMP(seq=number)) for number in range(BATCH)],
        "frames to nobody": [bytes(nowhere / UDP() / os.urandom(18)) for _ in range(BATCH)],
        "broadcasts": [bytes(everybody)] * BATCH,
        "datagrams to a rank": [
            bytes(to_rank / UDP(sport=INAGG_PORT, dport=port) / os.urandom(100))
            for port in range(32768, 32768 + BATCH)
        ],
    }


def run(folder: Path, full: bool) -> Iterator[Outcome]:
    """Each flood for 15 s, or for 3 s."""
    for name, frames in floods().items():
        seconds = 15.0 if full else 3.0

        def flood(testbed: Testbed, _ranks: Ranks, frames: list[bytes] = frames, s: float = seconds) -> str:
            batch, taken, end = Batch(frames), 0, time.monotonic() + s
            with packet_socket(testbed, STRANGER) as link:
                while time.monotonic() < end:
                    taken += batch.send(link)
            return f"{taken:,} frames, {taken / s:,.0f} a second"

        yield attack_sums(Outcome(f"flood: {name}"), folder, flood, link=LINK)
