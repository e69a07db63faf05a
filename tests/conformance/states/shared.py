# SPDX-License-Identifier: Apache-2.0
"""The one shared slot of a switch for which two jobs compete: a root with a switch below it, or that switch.

Any member sends anything about any chunk at any time, and whatever is in the slot is old or new. The entries are the
controller's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from inagg_contract.addresses import format_ip, format_mac
from inagg_contract.constants import INAGG_PORT
from inagg_contract.sizes import way_of
from inagg_controller.jobs.epochs import KEY_BYTES, Epochs
from inagg_simulator.p4_switch import SlotRegisters, Station, Taken, headers, job_group
from inagg_simulator.reference import AGAIN, DATA, EXPONENT, QUERY, RESULT
from inagg_simulator.shared_fabric import Pool, SharedFabric, SharedJob, unwrap
from inagg_simulator.slot_rules import shared as rules
from inagg_simulator.slot_rules.packets import Packet, Query, Sum
from inagg_simulator.slot_rules.shared import Slot
from inagg_simulator.slot_rules.versions import FromAbove
from inagg_switch.switch import Switch
from tests.conformance.states.exploration import After, DifferenceError
from tests.conformance.states.versions import Relayed, contributed, encode, number

SLOT_VERSIONS = 64
SLOT = SLOT_VERSIONS - 1  # the last one is shared
EXPIRY_US = 1000
NOW_US = 1_000_000
JOBS = (
    SharedJob(at=(0, 1, 1), slots=2, colocated=False),
    SharedJob(at=(0, 0), slots=2, colocated=False, priority=1),
)
# Each with a server in the processes of ranks 0 and 1, which are at home in the job at one switch.
COLOCATED_JOBS = (SharedJob(at=(0, 1, 1), slots=2), SharedJob(at=(0, 0, 0), slots=2, priority=1))
# Counters of packets that the rules are about.
COUNTERS = (
    "slot_taken",
    "slot_added",
    "slot_combined",
    "slot_flushed",
    "slot_evicted",
    "slot_expired",
    "slot_collided",
    "slot_freed",
    "passed",
    "query_forwarded",
    "result_forwarded",
    "answer_unexpected",
    "no_server",
    "malformed",
    "not_admitted",
    "wrong_epoch",
)
# What an earlier job has left in the slot, and what is in the registers of an empty one.
LEFTOVER = Slot(99, 1, 2**31 - 5, 0b01, Sum(0x20, 600, 0x20, 941, 0xABCDEF, (2**2048 - 1,)))


def make_fabric(programs: Sequence[Switch], jobs: Sequence[SharedJob] = JOBS) -> SharedFabric:
    """Two switches, s1 below s0, with two registered servers at s0."""
    pool = Pool(size=1, slot_versions=SLOT_VERSIONS, expiry_us=EXPIRY_US)
    return SharedFabric(programs, (0,), jobs, pool, servers=(0, 0), epochs=Epochs(bytes(KEY_BYTES)))


class Arrival(NamedTuple):
    """A packet at a port. sender: of the frame. has_bits: behind the header. expired: what is in the slot then."""

    port: int
    sender: Station
    to: Station
    content: Relayed
    has_bits: bool
    expired: bool = False

    @property
    def frame(self) -> bytes:
        kind, packet, rank, _ = self.content
        if self.has_bits:
            datagram = self.content.datagram
        elif isinstance(packet, Query):
            datagram = encode(kind, rank, packet, number(9, AGAIN if kind & RESULT else 0))
        else:
            datagram = encode(kind, rank, packet, packet.sum)
        return headers(self.sender, self.to, len(datagram)) + datagram


class Left(NamedTuple):
    """What leaves by a port."""

    port: int
    to: Station
    datagram: bytes


class SharedSlot:
    """One switch's slot by the rules. chunks: that members send packets about."""

    def __init__(self, fabric: SharedFabric, name: str, chunks: int, start: Slot = Slot()) -> None:  # noqa: B008
        self.fabric, self.name, self.chunks, self.start = fabric, name, chunks, start
        self.jobs = {job.id: job for job in fabric.jobs if name in job.placement.tree.by_name}
        self.priority = {job.id: job.placement.priority for job in fabric.jobs}
        self.packets = list(self._packets())

    def station(self, switch: str) -> Station:
        node = self.fabric.topology.by_name[switch]
        return Station(format_mac(node.mac), format_ip(node.ip), INAGG_PORT)

    def _port_to(self, switch: str) -> int:
        """The port that leads to the other switch."""
        (link,) = self.fabric.topology.links
        assert {end.switch for end in link.ends} == {self.name, switch}
        return link.end_at(self.name).port

    def _bits_below(self, job: int, switch: str) -> int:
        at = self.jobs[job].placement.tree.by_name[switch]
        return sum(1 << rank for rank in at.ranks) + sum(self._bits_below(job, below) for below in at.below)

    def everybody(self, job: int, chunk: int) -> int:
        """The bits of the ranks below this switch that send it a chunk."""
        home = self.home(job, chunk)
        return self._bits_below(job, self.name) & ~(0 if home is None else 1 << home)

    def way(self, job: int, chunk: int) -> int:
        """The index of what a chunk goes on to."""
        return way_of(chunk, self.jobs[job].slots, len(self.ways(job)))

    def home(self, job: int, chunk: int) -> int | None:
        """The rank in whose process a chunk's server runs."""
        return self.way(job, chunk) if self.jobs[job].placement.homes else None

    def _host(self, ip: int) -> tuple[int, Station]:
        """The port towards a host at this switch or below, and the host's addresses."""
        host = self.fabric.topology.host_at[ip]
        assert host.mac is not None
        here = host.place.switch == self.name
        port = host.place.port if here else self._port_to(host.place.switch)
        return port, Station(format_mac(host.mac), format_ip(ip), 0)

    def ways(self, job: int) -> list[tuple[int, Station, int]]:
        """Port, addresses and rank of what goes on: to the servers, or to the switch above."""
        made = self.jobs[job]
        at = made.placement.tree.by_name[self.name]
        if at.above:
            (above,) = at.above
            rank = made.placement.tree.by_name[above].number_of(self.name)
            return [(self._port_to(above), self.station(above), rank)]
        assert made.placement.servers is not None
        ways = [(self._host(seat.ip), seat.udp_port) for seat in made.placement.servers.seats]
        return [(port, station._replace(udp_port=udp_port), 0) for (port, station), udp_port in ways]

    def _packets(self) -> Iterator[Arrival]:
        for job, made in self.jobs.items():
            at, own = made.placement.tree.by_name[self.name], self.station(self.name)
            for chunk in range(self.chunks):
                for i, rank in enumerate(at.ranks):
                    member = made.members[rank]
                    port, station = self._host(member.ip)
                    for content in self._of_members(job, chunk, 1 << rank, i):
                        yield from self._old_and_new(port, station, own, content, has_bits=False)
                for below in at.below:
                    port, station = self._port_to(below), self.station(below)
                    bits = self._bits_below(job, below)
                    for content in self._of_members(job, chunk, bits, at.number_of(below)):
                        yield from self._old_and_new(port, station, own, content, has_bits=True)
                for port, station, _ in self.ways(job):
                    label = Packet(job, made.placement.epoch, chunk, 0, Sum(0x3F, 500, 0x3F, 841, 77, (5,)))
                    to = job_group(job) if at.above else own
                    home = self.home(job, chunk) or 0
                    for content in (
                        Relayed(DATA | RESULT, label, home),
                        Relayed(EXPONENT | RESULT, label._replace(sum=label.sum._replace(words=())), home),
                        Relayed(DATA | QUERY | RESULT, Query(*label[:4]), 0),
                    ):
                        yield Arrival(port, station, to, content, has_bits=False)

    def _of_members(self, job: int, chunk: int, bits: int, rank: int) -> Iterator[Relayed]:
        """What a member with these bits sends: sums of any of them, and queries."""
        at = job, self.jobs[job].placement.epoch, chunk
        inside = [part for part in range(1, bits + 1) if part & ~bits == 0]
        for part in inside:
            for kind in (DATA, EXPONENT):
                sums = [contributed(chunk, worker, kind) for worker in range(3) if part >> worker & 1]
                yield Relayed(kind, Packet(*at, part, reduce(Sum.added, sums)), rank)
            if part.bit_count() == 1:
                several = bits.bit_count() > 1
                for waits_with in (0, *inside) if several else (0,):
                    yield Relayed(DATA | QUERY, Query(*at, part, waits_with), rank)

    def _old_and_new(
        self, port: int, sender: Station, to: Station, content: Relayed, *, has_bits: bool
    ) -> Iterator[Arrival]:
        for expired in (False, True) if content.kind == DATA else (False,):
            yield Arrival(port, sender, to, content, has_bits, expired)

    def step(self, state: Slot, arrival: Arrival) -> After[Slot]:
        kind, packet = arrival.content[:2]
        if kind & RESULT:
            what = FromAbove.ANSWER if kind & QUERY else FromAbove.RESULT
            after, leaves, counters = rules.from_above(state, packet, what)
            return After(after, self._to_members(arrival.content) if leaves else [], sorted(counters))
        everybody = self.everybody(packet.job, packet.chunk)
        if isinstance(packet, Query):
            return self._sent_on(state, kind, rules.ask(state, packet, everybody), ["query_forwarded"])
        lower = self.priority.get(state.job, 0) < self.priority[packet.job]
        after, left, counter = rules.contribute(
            state, packet, everybody, data=kind == DATA, expired=arrival.expired, lower=lower
        )
        return self._sent_on(after, kind, left, [counter])

    def _sent_on(
        self, state: Slot, kind: int, left: Packet | Query | None, counters: list[str]
    ) -> After[Slot]:
        if left is None:
            return After(state, [], counters)
        if left.job not in self.jobs:
            return After(state, [], sorted([*counters, "no_server"]))
        port, to, rank = self.ways(left.job)[self.way(left.job, left.chunk)]
        return After(state, [Left(port, to, Relayed(kind, left, rank).datagram)], counters)

    def _to_members(self, content: Relayed) -> list[Left]:
        job, at = content.packet.job, self.jobs[content.packet.job].placement.tree.by_name[self.name]
        kind, packet, rank, _ = content
        ports = [
            self._host(self.jobs[job].members[member].ip)[0]
            for member in at.ranks
            if member != self.home(job, packet.chunk)
        ]
        ports += [self._port_to(below) for below in at.below]
        assert isinstance(packet, Packet)
        return [Left(port, job_group(job), encode(kind, rank, packet, packet.sum)) for port in sorted(ports)]


class SharedSlotInP4:
    """The compiled program. Its registers are set to the state."""

    def __init__(self, program: Switch, model: SharedSlot) -> None:
        self.program, self.model = program, model
        self.registers = SlotRegisters(program)
        self.counters = {name: program.counter(name) for name in COUNTERS}
        program.process(0, b"", 0.0)  # the program's clock starts with its first frame

    def _taken(self, slot: Slot, time: int) -> Taken:
        way = self.model.way(slot.job, slot.chunk) if slot.job in self.model.jobs else 0
        return Taken(way, self.model.priority.get(slot.job, 0), time)

    def __call__(self, state: Slot, path: Sequence[Arrival], arrival: Arrival) -> After[Slot]:
        taken = self._taken(state, NOW_US - EXPIRY_US - arrival.expired)
        # An empty slot's sum may be anything.
        self.registers.set_shared(SLOT, state if state.members else state._replace(sum=LEFTOVER.sum), taken)
        before = self._counts(arrival.port)
        left = self.program.process(arrival.port, arrival.frame, NOW_US / 1e6)
        frames = [(port, unwrap(frame)) for port, frame in left]
        counted = Counter(self._counts(arrival.port)) - Counter(before)
        counters = sorted(counted.elements())
        slot, held = self.registers.shared(SLOT)
        if not {"slot_taken", "slot_expired", "slot_evicted"}.isdisjoint(counters):
            taken = self._taken(slot, NOW_US)
        if held != taken:
            raise DifferenceError(f"{arrival} in {state}: the slot should be {taken}, but is {held}")
        slot = slot if slot.members else slot._replace(sum=Sum())
        sent = sorted(Left(port, frame.destination, frame.payload) for port, frame in frames)
        own = self.model.station(self.model.name)
        if any(frame.source != own for _, frame in frames):
            raise DifferenceError(f"{arrival} in {state} leaves with another source than {own}")
        return After(slot, sent, sorted(counters))

    def _counts(self, port: int) -> dict[str, int]:
        return {name: counter[port][0] for name, counter in self.counters.items()}
