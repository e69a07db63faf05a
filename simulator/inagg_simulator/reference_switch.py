# SPDX-License-Identifier: Apache-2.0
"""The switch of docs/protocol.md (5.1 to 5.3) in plain Python, and whole collectives through it, packet by packet."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inagg_contract.sizes import way_of
from inagg_simulator.reference import (
    AGAIN,
    DATA,
    EXPONENT,
    HEADER,
    NOT_READY,
    QUERY,
    RESULT,
    SPECIAL,
    VERSION,
    WIDE,
    WORD_BYTES,
    Header,
    Lanes,
    block_exponent,
    block_flags,
    checksum,
    class_lanes,
    contribution,
    decode,
    exponent_code,
    fingerprint,
    marks,
    outliers,
    quantise,
    together,
)
from inagg_simulator.slot_rules import versions as rules
from inagg_simulator.slot_rules.packets import Packet, Query, Sum
from inagg_simulator.slot_rules.versions import Leaves, Outcome, Version


@dataclass
class Job:
    """A job at one switch. `workers`: the members of the job at this switch, workers and switches below.

    first_chunk: f. above: the job's member numbers at the switches above, which share the chunks; a root has none.
    """

    workers: int
    slots: int  # S
    epoch: int
    base: int = 0  # first slot version of the lease
    first_chunk: int = 0
    above: Sequence[int] = ()

    @property
    def everybody(self) -> int:
        """The bits of all members."""
        return (1 << self.workers) - 1

    def version(self, chunk: int) -> int:
        """The index of a chunk's slot version."""
        return self.base + chunk % (2 * self.slots)


class Up(NamedTuple):
    """The receiver of a partial sum: a switch above, by its number in Job.above."""

    parent: int


Sent = list[tuple[int | Up, bytes]]


@dataclass
class Aggregator:
    """The switch of sections 5.1 to 5.3, without ports and addresses: packets come by member."""

    words: int
    jobs: dict[int, Job]
    versions: dict[int, Version] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)

    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]:
        """(receiver's rank, datagram) of each packet that leaves a root because of a contribution or query."""
        sent = self.contribute(rank, datagram)
        return [(receiver, reply) for receiver, reply in sent if not isinstance(receiver, Up)]

    def contribute(self, member: int, datagram: bytes) -> Sent:
        """(receiver, datagram) of each packet that leaves because of a contribution or query."""
        return self._count(self._admit(datagram, member) or self._from_below(datagram))

    def result(self, datagram: bytes) -> Sent:
        """The same because of a result or answer of a switch above."""
        return self._count(self._admit(datagram, None) or self._from_above(datagram))

    def _count(self, outcome: tuple[Sent, Sequence[str]]) -> Sent:
        sent, counters = outcome
        self.counters.update(counters)
        return sent

    def _admit(self, datagram: bytes, member: int | None) -> tuple[Sent, Sequence[str]] | None:
        """What refuses the packet; None: nothing. `member`: the sender, None for a switch above."""
        if len(datagram) < HEADER.size:
            return [], ["malformed"]
        header = decode(datagram)
        words = self.words if header.kind in (DATA, DATA | RESULT) else 0
        known = header.version == VERSION and header.kind & ~(QUERY | RESULT) in (EXPONENT, DATA)
        if not known or len(datagram) != HEADER.size + words * WORD_BYTES or not header.agrees:
            return [], ["malformed"]
        job = self.jobs.get(header.job)
        if job is None or (header.kind & RESULT != 0) != (member is None):
            return [], ["not_admitted"]
        if not (job.above if member is None else header.rank == member < job.workers):
            return [], ["not_admitted"]
        return ([], ["wrong_epoch"]) if header.epoch != job.epoch else None

    def _from_below(self, datagram: bytes) -> tuple[Sent, Sequence[str]]:
        header, payload = decode(datagram), datagram[HEADER.size :]
        job = self.jobs[header.job]
        index, other = job.version(header.chunk), job.version(header.chunk - job.slots)
        held, member = self.versions.get(index, Version()), 1 << header.rank
        if header.kind & QUERY:
            outcome = rules.ask(held, _query(header, member), job.everybody)
            return self._answer(outcome.leaves, header), outcome.counters
        outcome = rules.contribute(
            held,
            self.versions.get(other, Version()),
            _packet(header, payload, member),
            job.slots,
            job.everybody,
            first_chunk=job.first_chunk,
            root=not job.above,
        )
        self.versions[index] = outcome.version
        return self._sums(outcome, header, payload), outcome.counters

    def _sums(self, outcome: Outcome, header: Header, payload: bytes) -> Sent:
        """What leaves because of a contribution."""
        if outcome.leaves is Leaves.NOTHING:
            return []
        if outcome.leaves is Leaves.PARTIAL:
            up, own = self._as_member(header)
            return [(up, _carrying(outcome.version.sum, own, payload))]
        result = _carrying(outcome.version.sum, header._replace(kind=header.kind | RESULT), payload)
        to_all = outcome.leaves is Leaves.RESULT
        return [
            (member, result) for member in (range(self.jobs[header.job].workers) if to_all else [header.rank])
        ]

    def _answer(self, leaves: Leaves, query: Header) -> Sent:
        """What leaves because of a query."""
        if leaves is Leaves.NOTHING:
            return []
        if leaves is Leaves.QUERY:
            up, own = self._as_member(query)
            return [(up, own.encode())]
        answer = query._replace(kind=query.kind | RESULT)
        return [(query.rank, answer.announcing(AGAIN if leaves is Leaves.SAY_AGAIN else 0, 0).encode())]

    def _as_member(self, header: Header) -> tuple[Up, Header]:
        """The switch above that sums the chunk, and the header as this switch's."""
        job = self.jobs[header.job]
        above = job.above
        parent = way_of(header.chunk, job.slots, len(above))
        return Up(parent), header._replace(rank=above[parent])

    def _from_above(self, datagram: bytes) -> tuple[Sent, Sequence[str]]:
        header, payload = decode(datagram), datagram[HEADER.size :]
        job = self.jobs[header.job]
        index = job.version(header.chunk)
        held = self.versions.get(index, Version())
        if header.kind & QUERY:
            outcome = rules.hear(held, _query(header, 0), job.everybody)
        else:
            outcome = rules.keep(held, _packet(header, payload, 0), job.everybody)
        self.versions[index] = outcome.version
        everybody = range(job.workers)
        receivers = {Leaves.RESULT: everybody, Leaves.ANSWER: [0], Leaves.NOTHING: []}
        return [(member, datagram) for member in receivers[outcome.leaves]], outcome.counters


def _packet(header: Header, payload: bytes, members: int) -> Packet:
    words = (payload[i : i + WORD_BYTES] for i in range(0, len(payload), WORD_BYTES))
    carried = Sum(
        header.flags,
        header.exponent,
        header.flags_check,
        header.exponent_check,
        header.checksum,
        tuple(int.from_bytes(word, "big") for word in words),
    )
    return Packet(header.job, header.epoch, header.chunk, members, carried)


def _query(header: Header, asker: int) -> Query:
    return Query(header.job, header.epoch, header.chunk, asker)


def _carrying(held: Sum, header: Header, payload: bytes) -> bytes:
    """A version's sum in the packet that leaves, which is as long as the one that has come."""
    words = b"".join(word.to_bytes(WORD_BYTES, "big") for word in held.words) or bytes(len(payload))
    header = header._replace(
        flags=held.flags,
        exponent=held.exponent,
        flags_check=held.flags_check,
        exponent_check=held.exponent_check,
        checksum=held.checksum,
    )
    return header.encode() + (words if payload else b"")


class Exchange(NamedTuple):
    """A contribution, and the packets that the switch sends because of it."""

    rank: int
    datagram: bytes
    results: list[tuple[int, bytes]]


@dataclass
class AllReduce:
    """One collective: each rank's elements, and the format of its packets."""

    inputs: Sequence[Sequence[float]]
    lane_bits: int
    average: bool = False

    def __post_init__(self) -> None:
        self.exponents: dict[int, Header] = {}  # by block: the result that carried the exponent

    def divide(self, workers: int, slots: int, words: int) -> None:
        """Divide elements into blocks. Returns K, P and the blocks of each rank."""
        self.lanes = Lanes(self.lane_bits, workers)
        size = self.lanes.block_elements(words)
        self.blocks = [[x[first : first + size] for first in range(0, len(x), size)] for x in self.inputs]
        self.count = len(self.blocks[0])  # K
        self.lead = min(slots, self.count)  # P

    def with_flags(self, mask: int) -> list[int]:
        """The blocks whose results have any of these flags."""
        return [block for block in range(self.count) if self.exponents[block].flags & mask]

    @property
    def fingerprint(self) -> int:
        return fingerprint(len(self.inputs[0]), self.lane_bits, self.average)


@dataclass
class Dialogue:
    """All ranks of a job, in step: chunk after chunk, rank after rank, nothing lost."""

    aggregator: Aggregator
    job: int
    chunk: int = 0  # the next

    def all_reduces(self, collectives: Sequence[AllReduce], *, queued: bool) -> list[list[Exchange]]:
        """The packets of each collective. queued: ranks submit all collectives first, not one after the other."""
        job, words = self.aggregator.jobs[self.job], self.aggregator.words
        for collective in collectives:
            collective.divide(job.workers, job.slots, words)
        out = []
        announced = 0  # A
        for index, collective in enumerate(collectives):
            following = collectives[index + 1] if queued and index + 1 < len(collectives) else None
            out.append(self._all_reduce(collective, following, announced))
            announced = min(collective.lead, following.lead) if following else 0
        return out

    def _all_reduce(
        self, collective: AllReduce, following: AllReduce | None, announced: int
    ) -> list[Exchange]:
        words, lanes = self.aggregator.words, collective.lanes
        out: list[Exchange] = []
        for block in range(announced, collective.lead):
            out += self._announce(collective, collective, block)
        for block in range(collective.count):
            code = collective.exponents[block].exponent
            packed = [quantise(together(own[block]), code, lanes, words) for own in collective.blocks]
            payloads = [lanes.pack(x) for x in packed]
            ahead = block + collective.lead
            if ahead < collective.count:
                out += self._announce(collective, collective, ahead, payloads, packed)
            elif following is None:
                unready = [(NOT_READY, 0)] * len(packed)
                out += self._everybody(collective, payloads, packed, unready)
            elif ahead - collective.count < following.lead:
                out += self._announce(collective, following, ahead - collective.count, payloads, packed)
            else:
                out += self._everybody(collective, payloads, packed)
        outlier_codes = {}
        for block in collective.with_flags(SPECIAL | WIDE):
            codes = [(0, exponent_code(outliers(own[block]), lanes)) for own in collective.blocks]
            classes = [class_lanes(own[block], lanes, words) for own in collective.blocks]
            size = len(classes[0]) // lanes.class_chunks
            for part in range(lanes.class_chunks):
                parts = [x[part * size : (part + 1) * size] for x in classes]
                payloads = [lanes.class_format.pack(x) for x in parts]
                out += self._everybody(collective, payloads, parts, codes if part == 0 else None)
            outlier_codes[block] = max(code for _, code in codes)
        for block in collective.with_flags(WIDE):
            code = outlier_codes[block]
            packed = [quantise(outliers(own[block]), code, lanes, words) for own in collective.blocks]
            out += self._everybody(collective, [lanes.pack(x) for x in packed], packed)
        return out

    def _announce(
        self,
        collective: AllReduce,
        announced: AllReduce,
        block: int,
        payloads: Sequence[bytes] | None = None,
        packed: Sequence[Sequence[int]] | None = None,
    ) -> list[Exchange]:
        """Send one chunk of every rank that carries the exponents of a block of `announced`."""
        own = [blocks[block] for blocks in announced.blocks]
        codes = [(block_flags(x), block_exponent(x, announced.lanes)) for x in own]
        out = self._everybody(collective, payloads, packed, codes)
        announced.exponents[block] = decode(out[-1].results[0][1])
        return out

    def _everybody(
        self,
        collective: AllReduce,
        payloads: Sequence[bytes] | None,
        packed: Sequence[Sequence[int]] | None,
        announced: Sequence[tuple[int, int]] | None = None,
    ) -> list[Exchange]:
        """Send one chunk of every rank: EXPONENT without payloads, otherwise DATA.

        announced: flags and exponent of each rank's packet; None: 0.
        """
        out = []
        job = self.aggregator.jobs[self.job]
        for rank in range(job.workers):
            summed = checksum(packed[rank]) if packed else 0
            flags, exponent = announced[rank] if announced else (0, 0)
            header = contribution(
                kind=EXPONENT if payloads is None else DATA,
                rank=rank,
                job=self.job,
                flags=flags,
                exponent=exponent,
                epoch=job.epoch,
                chunk=self.chunk,
                checksum=(summed + collective.fingerprint + marks(self.chunk, rank)) % 2**32,
            )
            datagram = header.encode() + (payloads[rank] if payloads else b"")
            out.append(Exchange(rank, datagram, self.aggregator.process(rank, datagram)))
        self.chunk = (self.chunk + 1) % 2**32
        return out
