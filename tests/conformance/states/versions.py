# SPDX-License-Identifier: Apache-2.0
"""The versions of slots: leased in a switch, or in a server, also in one behind shared slots.

Any member sends any packet about any chunk, at any time. So all states are reached that members which keep to the rules
can reach, and others. Ranks may disagree on a chunk's kind.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import product
from typing import NamedTuple

from inagg._core import ServedJob
from inagg_simulator.p4_switch import Above, Entries, P4Switch, switch_station
from inagg_simulator.reference import (
    AGAIN,
    DATA,
    EXPONENT,
    EXPONENT_CHECK,
    QUERY,
    RESULT,
    VERSION,
    WORD_BYTES,
    Header,
)
from inagg_simulator.reference_switch import Aggregator, Job, Sent
from inagg_simulator.servers import ServedSwitch, make_servers
from inagg_simulator.slot_rules import versions as rules
from inagg_simulator.slot_rules.packets import Packet, Query, Sum
from inagg_simulator.slot_rules.versions import Leaves, Version
from inagg_simulator.virtual_network import make_shape
from inagg_switch.switch import Switch
from tests.conformance.states.exploration import After

JOB, EPOCH, BASE = 3, 0x01020304, 4
State = tuple[Version, ...]


def contributed(chunk: int, member: int, kind: int) -> Sum:
    """What a member's contribution carries: bits that no other contribution has, in the first and in the last of the
    64-bit numbers of a server. The checksums wrap."""
    own = 1 << (3 * chunk + member) % 24
    flags, exponent = (0x01, 0x04, 0x10)[member], (300, 100, 682)[member] - chunk % 8
    words = (own << 1984 | own,) if kind == DATA else ()
    return Sum(flags, exponent, flags, exponent + EXPONENT_CHECK, (2**31 + own) % 2**32, words)


def encode(kind: int, rank: int, packet: Packet | Query, carried: Sum) -> bytes:
    """The packet, without bits behind its header."""
    announced, about = carried[:4], packet[1:3]
    header = Header(VERSION, kind, rank, packet.job, *announced, *about, carried.checksum)
    return header.encode() + b"".join(word.to_bytes(WORD_BYTES, "big") for word in carried.words)


def number(value: int, flags: int = 0) -> Sum:
    """What a query or an answer carries."""
    return Sum(flags, 0, flags, EXPONENT_CHECK, value)


def with_words(version: Version) -> Version:
    """The version with words of 0 instead of none."""
    return version._replace(sum=version.sum._replace(words=version.sum.words or (0,)))


class Arrival(NamedTuple):
    """A packet of a member, or of the switch above (None)."""

    sender: int | None
    datagram: bytes


@dataclass(frozen=True, kw_only=True)
class Leased:
    """A job that leases slots, or has them in a server. chunks: that members send packets about, from the first on.

    first_chunk: f. above: the job's member numbers at the switches above. leftover: what all versions have from an
    earlier job.
    """

    workers: int
    chunks: int
    slots: int = 1
    first_chunk: int = 0
    far: tuple[int, ...] = ()  # more chunks, counted from the first
    above: tuple[int, ...] = ()
    leftover: Version = Version()  # noqa: RUF009  immutable

    @cached_property
    def job(self) -> Job:
        return Job(self.workers, self.slots, EPOCH, BASE, self.first_chunk, self.above)

    @property
    def start(self) -> State:
        return (with_words(self.leftover),) * (2 * self.slots)

    @cached_property
    def packets(self) -> list[Arrival]:
        return list(self._packets())

    def _packets(self) -> Iterator[Arrival]:
        # DATA first: paths go through states with words, which a server must not send with a later chunk.
        for chunk in (*range(-1, self.chunks), *self.far):
            label = Packet(JOB, EPOCH, (self.first_chunk + chunk) % 2**32, 0)
            for member, kind in product(range(self.workers), (DATA, EXPONENT)):
                carried = contributed(chunk, member, kind)
                yield Arrival(member, encode(kind, member, label, carried))
                yield Arrival(member, encode(kind | QUERY, member, label, number(chunk % 8)))
            for kind in (EXPONENT, DATA) if self.above else ():
                words = (3 << 2000 | 5,) if kind == DATA else ()
                carried = Sum(0x3F, 500, 0x3F, 500 + EXPONENT_CHECK, 77, words)
                yield Arrival(None, encode(kind | RESULT, 0, label, carried))
                yield Arrival(None, encode(kind | QUERY | RESULT, 0, label, number(5, AGAIN)))

    def step(self, state: State, packet: Arrival) -> After[State]:
        aggregator = Aggregator(1, {JOB: self.job}, {BASE + i: version for i, version in enumerate(state)})
        if packet.sender is None:
            sent = aggregator.result(packet.datagram)
        else:
            sent = aggregator.contribute(packet.sender, packet.datagram)
        held = tuple(with_words(aggregator.versions[BASE + i]) for i in range(len(state)))
        return After(held, sent, sorted(aggregator.counters.elements()))


class LeasedInP4:
    """The compiled program. Its registers are set to the state."""

    def __init__(self, program: Switch, model: Leased) -> None:
        above = tuple(Above(switch_station(i), 100 + i, rank) for i, rank in enumerate(model.above))
        entries = Entries(
            job=JOB,
            workers=model.workers,
            slots=model.slots,
            epoch=EPOCH,
            base=BASE,
            first_chunk=model.first_chunk,
            above=above,
            multicast=True,
        )
        self.switch = P4Switch(program, entries)

    def __call__(self, state: State, path: Sequence[Arrival], packet: Arrival) -> After[State]:
        self.switch.hold({BASE + i: version for i, version in enumerate(state)})
        self.switch.counters.clear()
        if packet.sender is None:
            sent = self.switch.result(packet.datagram)
        else:
            sent = self.switch.contribute(packet.sender, packet.datagram)
        held = tuple(self.switch.registers.version(BASE + i) for i in range(len(state)))
        return After(held, sent, sorted(self.switch.counters.elements()))


def held_by(server: ServedJob) -> State:
    """The versions of a server of a job with one slot."""
    return tuple(_version(server, chunk) for chunk in range(2))


def _version(server: ServedJob, chunk: int) -> Version:
    held = server.held(chunk)
    if held is None:
        return with_words(Version())
    carried = Sum(
        held["flags"],
        held["exponent"],
        held["flags_check"],
        held["exponent_check"],
        held["checksum"],
        (int.from_bytes(held["words"], "big"),),
    )
    return Version(EPOCH, held["chunk"], held["members"], carried, held["final"])


@dataclass
class LeasedInServer:
    """A server in place of a switch. It gets the packets that lead to the state."""

    model: Leased

    def __call__(self, state: State, path: Sequence[Arrival], packet: Arrival) -> After[State]:
        model = self.model
        shape = make_shape(
            max(model.workers, *(member + 1 for member in model.above), 1),
            job=JOB,
            epoch=EPOCH,
            slots=model.slots,
            words=1,
            first_chunk=model.first_chunk,
        )
        server = ServedSwitch(
            shape, model.slots, model.workers, ways=max(len(model.above), 1), above=model.above
        )
        for one in path:
            self._receive(server, one)
        before = server.counters
        sent = self._receive(server, packet)
        held = tuple(_version(server.served(chunk), chunk) for chunk in range(2 * model.slots))
        return After(held, sent, sorted((server.counters - before).elements()))

    def _receive(self, server: ServedSwitch, packet: Arrival) -> Sent:
        if packet.sender is None:
            return server.result(packet.datagram)
        return server.contribute(packet.sender, packet.datagram)


class Relayed(NamedTuple):
    """A packet of a switch with shared slots, or of the rank at home. rank: that its header says."""

    kind: int
    packet: Packet | Query
    rank: int
    direct: bool = False

    @property
    def datagram(self) -> bytes:
        if self.direct:
            carried = number(9) if isinstance(self.packet, Query) else self.packet.sum
            return encode(self.kind, self.rank, self.packet, carried)
        if isinstance(self.packet, Query):
            bits = self.packet.asker.to_bytes(8, "big") + self.packet.waits_with.to_bytes(8, "big")
            return encode(self.kind, self.rank, self.packet, number(9)) + bits
        whole = encode(self.kind, self.rank, self.packet, self.packet.sum)
        return whole[:20] + self.packet.members.to_bytes(8, "big") + whole[20:]


@dataclass(frozen=True)
class BehindShared:
    """A job of three workers with one slot in a server, which gets partial sums of any of them.

    exponents: the workers that may also send EXPONENT packets. home: the worker that sends to the server directly.
    """

    chunks: int
    exponents: tuple[int, ...] = (0,)
    workers: int = 3
    home: int | None = None

    @property
    def everybody(self) -> int:
        return (1 << self.workers) - 1

    @property
    def start(self) -> State:
        return (with_words(Version()),) * 2

    @cached_property
    def packets(self) -> list[Relayed]:
        return list(self._packets())

    def _packets(self) -> Iterator[Relayed]:
        for chunk in range(-1, self.chunks):
            at = JOB, EPOCH, chunk % 2**32
            for members in range(1, self.everybody + 1):
                sums = [contributed(chunk, i, DATA) for i in range(self.workers) if members >> i & 1]
                yield Relayed(DATA, Packet(*at, members, reduce(Sum.added, sums)), rank=members % 3)
            for worker in self.exponents:
                carried = contributed(chunk, worker, EXPONENT)
                yield Relayed(EXPONENT, Packet(*at, 1 << worker, carried), rank=0)
            for worker, waits_with in product(range(self.workers), range(self.everybody + 1)):
                yield Relayed(DATA | QUERY, Query(*at, 1 << worker, waits_with), rank=worker)
            if self.home is not None:
                for kind in (DATA, EXPONENT):
                    own = Packet(*at, 1 << self.home, contributed(chunk, self.home, kind))
                    yield Relayed(kind, own, self.home, direct=True)
                yield Relayed(DATA | QUERY, Query(*at, 1 << self.home, 0), self.home, direct=True)

    def step(self, state: State, packet: Relayed) -> After[State]:
        chunk = packet.packet.chunk
        held, other = state[chunk % 2], state[(chunk - 1) % 2]
        if isinstance(packet.packet, Query):
            outcome = rules.ask(held, packet.packet, self.everybody)
        else:
            outcome = rules.contribute(held, other, packet.packet, 1, self.everybody)
        after = with_words(outcome.version)
        versions = (after, other) if chunk % 2 == 0 else (other, after)
        return After(versions, self._sent(packet, after, outcome.leaves), sorted(outcome.counters))

    def _sent(self, packet: Relayed, held: Version, leaves: Leaves) -> list[tuple[int | None, bytes]]:
        """(receiver, datagram) of what leaves; None: to the switch, for all."""
        kind = packet.kind | RESULT
        if isinstance(packet.packet, Query):
            flags = {Leaves.SAY_AGAIN: AGAIN, Leaves.SAY_HELD: 0}
            asker = packet.packet.asker.bit_length() - 1
            return [
                (asker, encode(kind, packet.rank, packet.packet, number(9, flags[one])))
                for one in flags
                if one is leaves
            ]
        carried = held.sum if packet.kind == DATA else held.sum._replace(words=())
        senders = [worker for worker in range(self.workers) if packet.packet.members >> worker & 1]
        receivers: dict[Leaves, list[int | None]] = {
            Leaves.RESULT: [None],
            Leaves.RESULT_AGAIN: [*senders],
            Leaves.NOTHING: [],
        }
        rank = packet.rank if self.home is None else self.home
        return [(to, encode(kind, rank, packet.packet, carried)) for to in receivers[leaves]]


@dataclass
class RelayedServer:
    """The C++ server. It gets the packets that lead to the state."""

    model: BehindShared
    datagrams: dict[Relayed, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.datagrams = {packet: packet.datagram for packet in self.model.packets}

    def __call__(self, state: State, path: Sequence[Relayed], packet: Relayed) -> After[State]:
        (server,) = make_servers(
            1,
            job=JOB,
            epoch=EPOCH,
            slots=1,
            words=1,
            workers=self.model.workers,
            relayed=True,
            homes=[] if self.model.home is None else [self.model.home],
        )

        def receive(one: Relayed) -> list[tuple[int | None, bytes]]:
            return server.receive(self.datagrams[one], one.rank if one.direct else None)

        for one in path:
            receive(one)
        before = Counter(server.counts)
        sent = receive(packet)
        return After(held_by(server), sent, sorted((Counter(server.counts) - before).elements()))
