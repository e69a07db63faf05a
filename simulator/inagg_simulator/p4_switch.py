# SPDX-License-Identifier: Apache-2.0
"""The P4 program, compiled and run in this process, behind the interface of reference_switch.Aggregator.

Worker r of the job is at port r + 1, 10.0.0.(r + 1), UDP port 40000 + r. The group address of job j is 239.192.0.j.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from inagg_contract.constants import INAGG_PORT
from inagg_contract.program import inagg_p4
from inagg_contract.sizes import run_bits, way_of
from inagg_simulator.reference import decode
from inagg_simulator.reference_switch import Sent, Up
from inagg_simulator.slot_rules.packets import Sum
from inagg_simulator.slot_rules.shared import Slot
from inagg_simulator.slot_rules.versions import Version
from inagg_switch.switch import Switch
from inagg_switch.vectors.format import Insert, Key

P4 = inagg_p4()
AGGREGATOR_IP = "10.0.0.253"
AGGREGATOR_MAC = "02:49:41:00:00:01"
ALL_RANKS = 255
HEADERS_BYTES = 14 + 20 + 8
HELD_HEADER = struct.Struct("!HHI")  # what slot_header has: flags and exponent, their check fields, checksum
RESULT_GROUP = 2
# Counters that are indexed by the port a packet came in on. Each packet to the aggregator increments just one; but one
# that is started or added may also complete, or complete a partial sum, and what goes up may find no_parent.
OUTCOMES = (
    "malformed",
    "not_admitted",
    "wrong_epoch",
    "stale",
    "ahead",
    "result_resent",
    "duplicate_pending",
    "query_again",
    "query_held",
    "query_passed",
    "answer_passed",
    "partial_resent",
    "no_parent",
    "result_kept",
    "result_duplicate",
    "result_unexpected",
    "completed",
    "partial_sent",
    "started",
    "added",
)


# Those of packets after which one leaves to a single member.
TO_ONE = frozenset({"result_resent", "query_again", "query_held", "answer_passed"})


def packed_ip(ip: str) -> int:
    return int.from_bytes(bytes(map(int, ip.split("."))), "big")


class Station(NamedTuple):
    """The addresses of a worker, a switch or a job's group."""

    mac: str
    ip: str
    udp_port: int

    @property
    def params(self) -> dict[str, int]:
        """As an action takes them."""
        return {"mac": int(self.mac.replace(":", ""), 16), "ip": packed_ip(self.ip)}


AGGREGATOR = Station(AGGREGATOR_MAC, AGGREGATOR_IP, INAGG_PORT)


def worker(rank: int) -> Station:
    high, low = divmod(rank + 1, 256)
    return Station(f"02:00:00:00:{high:02x}:{low:02x}", f"10.0.{high}.{low}", 40000 + rank)


def switch_station(number: int) -> Station:
    """A switch of a tree."""
    return Station(f"02:49:41:00:01:{number:02x}", f"10.1.0.{number + 1}", INAGG_PORT)


def job_group(job: int) -> Station:
    return Station(f"01:00:5e:40:00:{job:02x}", f"239.192.0.{job}", INAGG_PORT)  # RFC 1112, 6.4


@cache
def headers(source: Station, destination: Station, length: int, identification: int = 1) -> bytes:
    """Ethernet, IPv4 and UDP in front of `length` bytes."""
    return bytes(
        Ether(src=source.mac, dst=destination.mac)
        / IP(src=source.ip, dst=destination.ip, len=28 + length, id=identification, ttl=64)
        / UDP(sport=source.udp_port, dport=destination.udp_port, len=8 + length, chksum=0)
    )


def contribution_headers(rank: int, length: int) -> bytes:
    """Those in front of a worker's contribution."""
    return headers(worker(rank), AGGREGATOR, length)


def load(words: int, slot_versions: int | None = None) -> Switch:
    """The program, compiled once and cached on disk. slot_versions: as many as usual if not given."""
    defines = {"WORDS": str(words)}
    if slot_versions is not None:
        defines["SLOT_VERSIONS"] = str(slot_versions)
    return Switch.from_p4(P4, defines=defines)


class Taken(NamedTuple):
    """How a shared slot was taken: the number of the job's server, the job's priority, and when, in microseconds."""

    way: int
    priority: int
    time: int


class SlotRegisters:
    """What the program's slots hold. Registers are found once: finding one by its name takes longer than a packet."""

    def __init__(self, program: Switch) -> None:
        names = ("epoch", "chunk", "members", "header", "final", "owner", "time")
        self._slot = {name: program.register(f"slot_{name}") for name in names}
        self._pool = program.register("pool")
        self._words = len(self._pool) // len(self._slot["header"])

    def version(self, index: int) -> Version:
        """The state of a slot version."""
        return Version(
            self._slot["epoch"][index],
            self._slot["chunk"][index],
            self._slot["members"][index],
            self._sum(index),
            self._slot["final"][index] == 1,
        )

    def set_version(self, index: int, version: Version) -> None:
        """Set the state of a slot version."""
        self._slot["epoch"][index] = version.epoch
        self._slot["chunk"][index] = version.chunk
        self._slot["members"][index] = version.members
        self._slot["final"][index] = version.final
        self._set_sum(index, version.sum)

    def shared(self, index: int) -> tuple[Slot, Taken]:
        """The state of a shared slot."""
        owner = self._slot["owner"][index]
        slot = Slot(
            owner >> 16,
            self._slot["epoch"][index],
            self._slot["chunk"][index],
            self._slot["members"][index],
            self._sum(index),
        )
        return slot, Taken(owner >> 8 & 0xFF, owner & 0xFF, self._slot["time"][index])

    def set_shared(self, index: int, slot: Slot, taken: Taken) -> None:
        """Set the state of a shared slot."""
        self._slot["owner"][index] = slot.job << 16 | taken.way << 8 | taken.priority
        self._slot["time"][index] = taken.time
        self._slot["epoch"][index] = slot.epoch
        self._slot["chunk"][index] = slot.chunk
        self._slot["members"][index] = slot.members
        self._set_sum(index, slot.sum)

    def _sum(self, index: int) -> Sum:
        """With all words."""
        stated, check, checksum = HELD_HEADER.unpack(self._slot["header"][index].to_bytes(8, "big"))
        first = index * self._words
        words = tuple(self._pool[i] for i in range(first, first + self._words))
        return Sum(stated >> 10, stated % 1024, check >> 10, check % 1024, checksum, words)

    def _set_sum(self, index: int, held: Sum) -> None:
        stated, check = held.flags << 10 | held.exponent, held.flags_check << 10 | held.exponent_check
        self._slot["header"][index] = int.from_bytes(HELD_HEADER.pack(stated, check, held.checksum), "big")
        for i, word in enumerate(held.words or (0,) * self._words):
            self._pool[index * self._words + i] = word


@dataclass(frozen=True)
class Above:
    """A switch above: its addresses, the port that leads to it, and this switch's number among its members."""

    station: Station
    port: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Entries:
    """The entries of one job at one switch. base: its first slot version. group: its multicast group in the switch.

    first_chunk: f. multicast: results go to the job's group address, if it has more than one member (protocol 5.3).
    members: the members' addresses; those of workers if not given. ports: theirs; r + 1 if not given.
    """

    job: int
    workers: int
    slots: int
    epoch: int
    base: int = 0
    first_chunk: int = 0
    group: int = RESULT_GROUP
    multicast: bool = False
    own: Station = AGGREGATOR
    members: tuple[Station, ...] = ()
    ports: tuple[int, ...] = ()
    above: tuple[Above, ...] = ()

    @property
    def to_group(self) -> bool:
        return self.multicast and self.workers > 1

    @property
    def _lease(self) -> dict[str, int]:
        return {
            "all": (1 << self.workers) - 1,
            "slot_base": self.base,
            "slot_mask": 2 * self.slots - 1,
            "epoch": self.epoch,
            "result_group": self.group,
        }

    def station(self, member: int) -> Station:
        return self.members[member] if self.members else worker(member)

    def port(self, member: int) -> int:
        return self.ports[member] if self.ports else member + 1

    def member(self, port: int) -> int:
        """Who is behind a port."""
        return self.ports.index(port) if self.ports else port - 1

    def inserts(self) -> list[Insert]:
        ranks = range(self.workers)
        made = [self._receiver(rank, self.station(rank)) for rank in ranks]
        if self.to_group:
            made.append(self._receiver(ALL_RANKS, job_group(self.job)))
        for number, one in enumerate(self.above):
            match: dict[str, Key] = {"job": self.job, "parent": number}
            params = {"port": one.port, **one.station.params, "rank": one.rank}
            made.append(Insert(table="uplink", match=match, action="send_up", params=params))
            made.append(self._arrival(one.port, one.station))
        for rank in ranks:
            source = packed_ip(self.station(rank).ip)
            match = {"port": self.port(rank), "source": source, "job": self.job, "rank": rank}
            params = {
                "member": 1 << rank,
                **self._lease,
                "first_chunk": self.first_chunk,
                "parents": len(self.above),
                "run_bits": run_bits(self.slots, len(self.above)),
            }
            made.append(Insert(table="admission", match=match, action="admit", params=params))
        return made

    def _arrival(self, port: int, source: Station) -> Insert:
        match: dict[str, Key] = {"port": port, "source": packed_ip(source.ip), "job": self.job}
        params = {**self._lease, **self.own.params, "first_port": self.port(0)}
        return Insert(table="parent", match=match, action="accept_result", params=params)

    def _receiver(self, rank: int, station: Station) -> Insert:
        match: dict[str, Key] = {"job": self.job, "rank": rank}
        params = {**station.params, "udp_port": station.udp_port}
        return Insert(table="receiver", match=match, action="deliver", params=params)

    def replicas(self) -> list[tuple[int, int]]:
        """(port, replication id) of each copy of a result."""
        return [(self.port(rank), (ALL_RANKS if self.to_group else rank) + 1) for rank in range(self.workers)]

    def from_member(self, member: int, datagram: bytes) -> tuple[int, bytes]:
        """(port, frame) of a contribution."""
        return self.port(member), headers(self.station(member), self.own, len(datagram)) + datagram

    def from_above(self, datagram: bytes) -> tuple[int, bytes]:
        """(port, frame) of a packet of the switch above whose turn it is."""
        above = self.above[way_of(decode(datagram).chunk, self.slots, len(self.above))]
        to = job_group(self.job) if self.multicast else self.own
        return above.port, headers(above.station, to, len(datagram)) + datagram

    def frame(self, rank: int, result: bytes, *, again: bool) -> bytes:
        """What a member gets. again: it leaves to that member alone."""
        to = job_group(self.job) if self.to_group and not again else self.station(rank)
        return headers(self.own, to, len(result), decode(result).chunk & 0xFFFF) + result

    def frame_up(self, parent: int, partial: bytes) -> bytes:
        """What a switch above gets."""
        to = self.above[parent].station
        return headers(self.own, to, len(partial), decode(partial).chunk & 0xFFFF) + partial


@dataclass
class P4Switch:
    """One job on the program. A second job on the same program finds the slots as the first one left them."""

    program: Switch
    entries: Entries
    counters: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        # Found once: finding one by its name takes longer than a packet.
        self._counted = {name: self.program.counter(name) for name in OUTCOMES}
        self.registers = SlotRegisters(self.program)
        self.program.multicast_group(self.entries.group, self.entries.replicas())
        for entry in self.entries.inserts():
            assert isinstance(entry.action, str)
            self.program.insert(entry.table, entry.match, entry.action, entry.params)

    def hold(self, versions: Mapping[int, Version]) -> None:
        """Set the state of slot versions, by index."""
        for index, version in versions.items():
            self.registers.set_version(index, version)

    def remove(self) -> None:
        """Remove the job's entries, as the controller does when the job has ended."""
        for entry in self.entries.inserts():
            self.program.delete(entry.table, entry.match)
        self.program.multicast_group(self.entries.group, [])

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """As Aggregator.process. Checks every outer header."""
        sent = self.contribute(rank, datagram)
        return [(receiver, reply) for receiver, reply in sent if not isinstance(receiver, Up)]

    def contribute(self, member: int, datagram: bytes) -> Sent:
        """As Aggregator.contribute."""
        return self._process(*self.entries.from_member(member, datagram))

    def result(self, datagram: bytes) -> Sent:
        """As Aggregator.result."""
        return self._process(*self.entries.from_above(datagram))

    def _process(self, port: int, frame: bytes) -> Sent:
        before = self._outcomes(port)
        frames = self.program.process(port, frame)
        outcome = Counter(self._outcomes(port)) - Counter(before)
        self.counters += outcome
        parents = {one.port: Up(number) for number, one in enumerate(self.entries.above)}
        out: Sent = []
        for to, left in frames:
            payload = left[HEADERS_BYTES:]
            if to in parents:
                assert left == self.entries.frame_up(parents[to].parent, payload)
                out.append((parents[to], payload))
            else:
                alone = not TO_ONE.isdisjoint(outcome)
                member = self.entries.member(to)
                assert left == self.entries.frame(member, payload, again=alone)
                out.append((member, payload))
        return out

    def _outcomes(self, port: int) -> dict[str, int]:
        return {name: counter[port][0] for name, counter in self._counted.items()}
