# SPDX-License-Identifier: Apache-2.0
"""The P4 program, compiled and run in this process, behind the interface of reference.Aggregator.

Worker r of the job is at port r + 1, 10.0.0.(r + 1), UDP port 40000 + r. The group address of job j is 239.192.0.j.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from inagg_switch.switch import Switch
from inagg_switch.vectors.format import Insert, Key
from tests.conformance.reference import decode
from tests.conformance.reference_switch import Version
from tests.conformance.scapy_layer import IP, PORT, UDP, Ether

P4 = Path(__file__).parents[2] / "p4" / "inagg.p4"
AGGREGATOR_IP = "10.0.0.253"
AGGREGATOR_MAC = "02:49:41:00:00:01"
GROUP_IP = "239.192.0.{}"
GROUP_MAC = "01:00:5e:40:00:{:02x}"  # RFC 1112, 6.4
ALL_RANKS = 255
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
    """Ethernet, IPv4 and UDP in front of a result to a worker's own address (protocol 2)."""
    return _result_headers(worker_mac(rank), worker_ip(rank), worker_udp_port(rank), length, chunk)


@cache
def group_headers(job: int, length: int, chunk: int) -> bytes:
    """Ethernet, IPv4 and UDP in front of a result to the group of a job (protocol 2)."""
    return _result_headers(GROUP_MAC.format(job), GROUP_IP.format(job), PORT, length, chunk)


def _result_headers(mac: str, ip: str, udp_port: int, length: int, chunk: int) -> bytes:
    return bytes(
        Ether(src=AGGREGATOR_MAC, dst=mac)
        / IP(src=AGGREGATOR_IP, dst=ip, len=28 + length, id=chunk & 0xFFFF, ttl=64)
        / UDP(sport=PORT, dport=udp_port, len=8 + length, chksum=0)
    )


def load(words: int) -> Switch:
    """The program, compiled once and cached on disk."""
    return Switch.from_p4(P4, defines={"WORDS": str(words)})


@dataclass(frozen=True, kw_only=True)
class Entries:
    """The entries of one job. base: its first slot version. group: its multicast group in the switch.

    multicast: results go to the job's group address, if it has more than one worker (protocol 5.3).
    """

    job: int
    workers: int
    slots: int
    epoch: int
    base: int = 0
    group: int = RESULT_GROUP
    multicast: bool = False

    @property
    def to_group(self) -> bool:
        return self.multicast and self.workers > 1

    def inserts(self) -> list[Insert]:
        ranks = range(self.workers)
        made = [
            Insert(
                table="admission",
                match={"port": rank + 1, "source": packed_ip(worker_ip(rank)), "job": self.job, "rank": rank},
                action="admit",
                params={
                    "worker": 1 << rank,
                    "all": (1 << self.workers) - 1,
                    "slot_base": self.base,
                    "slot_mask": 2 * self.slots - 1,
                    "epoch": self.epoch,
                    "result_group": self.group,
                },
            )
            for rank in ranks
        ]
        made += [
            self._receiver(rank, worker_mac(rank), worker_ip(rank), worker_udp_port(rank)) for rank in ranks
        ]
        if self.to_group:
            made.append(
                self._receiver(ALL_RANKS, GROUP_MAC.format(self.job), GROUP_IP.format(self.job), PORT)
            )
        return made

    def _receiver(self, rank: int, mac: str, ip: str, udp_port: int) -> Insert:
        params = {"mac": int(mac.replace(":", ""), 16), "ip": packed_ip(ip), "udp_port": udp_port}
        match: dict[str, Key] = {"job": self.job, "rank": rank}
        return Insert(table="receiver", match=match, action="deliver", params=params)

    def replicas(self) -> list[tuple[int, int]]:
        """(port, replication id) of each copy of a result."""
        return [(rank + 1, (ALL_RANKS if self.to_group else rank) + 1) for rank in range(self.workers)]

    def frame(self, rank: int, result: bytes, *, again: bool) -> bytes:
        """What a worker's network card gets. again: the result is sent again, to the worker that asked."""
        size, chunk = len(result), decode(result).chunk
        if self.to_group and not again:
            return group_headers(self.job, size, chunk) + result
        return result_headers(rank, size, chunk) + result


@dataclass
class P4Switch:
    """One job on the program. A second job on the same program finds the slots as the first one left them."""

    program: Switch
    entries: Entries
    counters: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.program.multicast_group(self.entries.group, self.entries.replicas())
        for entry in self.entries.inserts():
            assert isinstance(entry.action, str)
            self.program.insert(entry.table, entry.match, entry.action, entry.params)

    def hold(self, versions: Mapping[int, Version]) -> None:
        """Set the state of slot versions, without their words."""
        for index, version in versions.items():
            self.program.register("slot_epoch")[index] = version.epoch
            self.program.register("slot_chunk")[index] = version.chunk
            self.program.register("slot_workers")[index] = version.workers

    def remove(self) -> None:
        """Remove the job's entries, as the controller does when the job has ended."""
        for entry in self.entries.inserts():
            self.program.delete(entry.table, entry.match)
        self.program.multicast_group(self.entries.group, [])

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(receiver's rank, datagram) of each packet that leaves. Checks every outer header."""
        before = self._outcomes(rank)
        frames = self.program.process(rank + 1, contribution_headers(rank, len(datagram)) + datagram)
        outcome = Counter(self._outcomes(rank)) - Counter(before)
        self.counters += outcome
        out = []
        for port, frame in frames:
            result = frame[HEADERS_BYTES:]
            assert frame == self.entries.frame(port - 1, result, again="result_resent" in outcome)
            out.append((port - 1, result))
        return out

    def _outcomes(self, rank: int) -> dict[str, int]:
        return {name: self.program.counter(name)[rank + 1][0] for name in OUTCOMES}
