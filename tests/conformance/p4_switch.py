# SPDX-License-Identifier: Apache-2.0
"""The P4 program, compiled and run in this process, behind the interface of reference.Aggregator.

Worker r of the job is at port r + 1, 10.0.0.(r + 1), UDP port 40000 + r.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from inagg_switch.switch import Switch
from tests.conformance.reference import decode
from tests.conformance.reference_switch import Version
from tests.conformance.scapy_layer import IP, PORT, UDP, Ether

P4 = Path(__file__).parents[2] / "p4" / "inagg.p4"
AGGREGATOR_IP = "10.0.0.253"
AGGREGATOR_MAC = "02:49:41:00:00:01"
HEADERS_BYTES = 14 + 20 + 8
RESULT_GROUP = 2
# Counters that are indexed by the port a packet came in on; each packet to the aggregator increments just one, or one
# of the last two and `completed`.
OUTCOMES = (
    "malformed",
    "not_admitted",
    "wrong_epoch",
    "stale",
    "ahead",
    "result_resent",
    "duplicate_pending",
    "started",
    "added",
)


def worker_ip(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def worker_mac(rank: int) -> str:
    return f"02:00:00:00:00:{rank + 1:02x}"


def worker_udp_port(rank: int) -> int:
    return 40000 + rank


def packed_ip(ip: str) -> int:
    return int.from_bytes(bytes(map(int, ip.split("."))), "big")


@cache
def contribution_headers(rank: int, length: int) -> bytes:
    """Ethernet, IPv4 and UDP in front of a contribution of `length` bytes."""
    return bytes(
        Ether(src=worker_mac(rank), dst=AGGREGATOR_MAC)
        / IP(src=worker_ip(rank), dst=AGGREGATOR_IP, len=28 + length)
        / UDP(sport=worker_udp_port(rank), dport=PORT, len=8 + length, chksum=0)
    )


@cache
def result_headers(rank: int, length: int, chunk: int) -> bytes:
    """Ethernet, IPv4 and UDP in front of a result (protocol 2)."""
    return bytes(
        Ether(src=AGGREGATOR_MAC, dst=worker_mac(rank))
        / IP(src=AGGREGATOR_IP, dst=worker_ip(rank), len=28 + length, id=chunk & 0xFFFF, ttl=64)
        / UDP(sport=PORT, dport=worker_udp_port(rank), len=8 + length, chksum=0)
    )


def load(words: int) -> Switch:
    """The program, compiled once and cached on disk."""
    return Switch.from_p4(P4, defines={"WORDS": str(words)})


@dataclass
class P4Switch:
    """One job on the program. A second job on the same program finds the slots as the first one left them."""

    program: Switch
    job: int
    workers: int
    slots: int
    epoch: int
    base: int = 0
    group: int = RESULT_GROUP
    counters: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.program.multicast_group(self.group, [(rank + 1, rank + 1) for rank in range(self.workers)])
        for rank in range(self.workers):
            self.program.insert("admission", self._admission_key(rank), "admit", self._admission(rank))
            self.program.insert(
                "receiver",
                {"job": self.job, "rank": rank},
                "deliver",
                {
                    "mac": int(worker_mac(rank).replace(":", ""), 16),
                    "ip": packed_ip(worker_ip(rank)),
                    "udp_port": worker_udp_port(rank),
                },
            )

    def hold(self, versions: Mapping[int, Version]) -> None:
        """Set the state of slot versions, without their words."""
        for index, version in versions.items():
            self.program.register("slot_epoch")[index] = version.epoch
            self.program.register("slot_chunk")[index] = version.chunk
            self.program.register("slot_workers")[index] = version.workers

    def remove(self) -> None:
        """Remove the job's entries, as the controller does when the job has ended."""
        for rank in range(self.workers):
            self.program.delete("admission", self._admission_key(rank))
            self.program.delete("receiver", {"job": self.job, "rank": rank})
        self.program.multicast_group(self.group, [])

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(receiver's rank, datagram) of each packet that leaves. Checks every outer header."""
        before = self._outcomes(rank)
        frames = self.program.process(rank + 1, contribution_headers(rank, len(datagram)) + datagram)
        self.counters += Counter(self._outcomes(rank)) - Counter(before)
        out = []
        for port, frame in frames:
            result = frame[HEADERS_BYTES:]
            assert frame[:HEADERS_BYTES] == result_headers(port - 1, len(result), decode(result).chunk)
            out.append((port - 1, result))
        return out

    def _outcomes(self, rank: int) -> dict[str, int]:
        return {name: self.program.counter(name)[rank + 1][0] for name in OUTCOMES}

    def _admission_key(self, rank: int) -> dict[str, int]:
        return {"port": rank + 1, "source": packed_ip(worker_ip(rank)), "job": self.job, "rank": rank}

    def _admission(self, rank: int) -> dict[str, int]:
        return {
            "worker": 1 << rank,
            "all": (1 << self.workers) - 1,
            "slot_base": self.base,
            "slot_mask": 2 * self.slots - 1,
            "epoch": self.epoch,
            "result_group": self.group,
        }
